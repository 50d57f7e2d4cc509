"""Operators with which a backend replaces patterns."""
