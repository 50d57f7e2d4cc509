"""Comparing two wheels that should be equal: what differs, where, and the likely reason. Torch is not imported."""
