"""The operators of the edge dialect and of backends."""
