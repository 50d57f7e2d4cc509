"""How much the tests try: what every run needs, or everything with `--long`."""

from __future__ import annotations

LONG = False
"""Whether this is a long run. `tests/conftest.py` says so before test modules are imported; they may read it then."""
