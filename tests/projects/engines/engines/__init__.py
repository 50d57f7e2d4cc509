"""Something for each of several engines."""
