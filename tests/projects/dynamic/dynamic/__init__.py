"""A dynamic batch, keyword arguments, nested outputs; portable."""
