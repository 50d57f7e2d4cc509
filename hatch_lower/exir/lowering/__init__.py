"""From an edge program and its partitioners to a program that calls lowered modules."""
