"""Benchmarks of lowered models: what they cost beside another version of them, and whether that is within limits."""
