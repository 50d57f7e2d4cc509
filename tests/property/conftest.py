"""How many random programs are tried: few in each run of all tests, many with `--hypothesis-profile=thorough`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile(
    "quick", max_examples=60, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate], **COMMON
)
settings.register_profile("thorough", max_examples=1500, print_blob=True, **COMMON)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the quick profile unless another is named."""
    settings.load_profile(config.getoption("--hypothesis-profile") or "quick")
