"""The operators of the edge dialect, and those that backends add."""
