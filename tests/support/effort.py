"""How much the tests try: a short run, more with `--all`, or everything with `--long`."""

from __future__ import annotations

ALL = False
"""Whether this run has `--all` or `--long`. `tests/conftest.py` sets both before test modules are imported."""

LONG = False
"""Whether this is a long run."""
