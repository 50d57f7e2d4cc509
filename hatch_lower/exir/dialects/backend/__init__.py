"""Operators that a backend puts in the place of a pattern."""
