"""All programs of the kit."""

from __future__ import annotations

from collections.abc import Iterator

from hatch_lower.testing.case import Case
from hatch_lower.testing.control import control_cases
from hatch_lower.testing.operators import operator_cases
from hatch_lower.testing.shapes import shape_cases
from hatch_lower.testing.state import state_cases
from hatch_lower.testing.values import value_cases

__all__ = ["all_cases"]


def all_cases() -> Iterator[Case]:
    """Yield every program."""
    yield from operator_cases()
    yield from shape_cases()
    yield from value_cases()
    yield from state_cases()
    yield from control_cases()
