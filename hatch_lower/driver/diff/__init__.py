"""Comparing two wheels that should be equal: differences, places, likely reasons. Torch is not imported."""
