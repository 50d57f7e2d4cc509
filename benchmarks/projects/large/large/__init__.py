"""Gibibytes of weights; `scripts/large_weights.py` makes their file."""
