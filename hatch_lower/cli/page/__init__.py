"""What is in a lowered wheel, as one HTML page, and graphs of its methods for viewers of graphs."""
