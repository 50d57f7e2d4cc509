"""A kit for whoever writes a backend: some hundred programs and checks, as a function and as a pytest plugin.

```py
from hatch_lower.backends.testing import backend_tests, check_backend

test_backend = backend_tests("demo")  # one test for each program and check
print(check_backend("demo"))  # the same as a table
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatch_lower.backends.testing.bench import Exports
    from hatch_lower.backends.testing.case import Tolerance
    from hatch_lower.backends.testing.facts import Facts
    from hatch_lower.backends.testing.kit import check_backend, trial_names
    from hatch_lower.backends.testing.report import Outcome, Report
    from hatch_lower.backends.testing.suite import backend_tests

__all__ = ["Exports", "Facts", "Outcome", "Report", "Tolerance", "backend_tests", "check_backend", "trial_names"]

HOMES = {
    "Exports": "bench",
    "Facts": "facts",
    "Outcome": "report",
    "Report": "report",
    "Tolerance": "case",
    "backend_tests": "suite",
    "check_backend": "kit",
    "trial_names": "kit",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: pytest imports this package in every run, for its plugin."""
    if name not in HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
