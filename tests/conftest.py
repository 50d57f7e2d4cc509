"""What all tests share: the order of the run, and fresh interpreters to look at imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that install things last: whoever breaks a function hears of it first."""
    items.sort(key=lambda item: item.get_closest_marker("isolated") is not None)


@pytest.fixture
def modules_after() -> Callable[[str], set[str]]:
    """Return what is in `sys.modules` of a fresh interpreter after it has run some code."""

    def run(code: str) -> set[str]:
        script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        return set(done.stdout.split("\n"))

    return run
