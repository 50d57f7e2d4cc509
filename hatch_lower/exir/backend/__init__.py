"""Interfaces for authors of backends, and the lookup of backends."""
