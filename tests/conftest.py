"""What all tests share: the order of the run, fresh interpreters to look at imports, and how much is drawn at random.

Property tests try a few examples, always the same; `--hypothesis-profile=thorough` tries many, ever new ones.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile(
    "quick", max_examples=60, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], **COMMON
)
settings.register_profile("thorough", max_examples=1500, print_blob=True, **COMMON)
settings.load_profile("quick")


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
