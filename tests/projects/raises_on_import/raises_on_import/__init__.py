"""A module that cannot be imported where it is built."""
