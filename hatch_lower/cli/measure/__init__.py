"""Measurements of lowered models for `bench`, `profile` and the pytest plugin."""
