"""A kit for authors of backends: some hundred programs and checks, as tests of pytest.

A line in a test module makes a test of each program and check:

```py
from hatch_lower.backends.testing import backend_tests

test_backend = backend_tests("demo")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hatch_lower.backends.testing.bench import Exports, Facts
    from hatch_lower.backends.testing.kit import backend_tests, trial_names
    from hatch_lower.runtime.numbers import Tolerance

__all__ = ["Exports", "Facts", "Tolerance", "backend_tests", "trial_names"]

HOMES = {
    "Exports": "hatch_lower.backends.testing.bench",
    "Facts": "hatch_lower.backends.testing.bench",
    "Tolerance": "hatch_lower.runtime.numbers",
    "backend_tests": "hatch_lower.backends.testing.kit",
    "trial_names": "hatch_lower.backends.testing.kit",
}


def __getattr__(name: str) -> object:
    # public names are imported at first use
    if name not in HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(HOMES[name]), name)
