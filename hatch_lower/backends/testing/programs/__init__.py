"""All programs of the kit."""

from __future__ import annotations

from collections.abc import Iterator

from hatch_lower.backends.testing.case import Case
from hatch_lower.backends.testing.programs.limits import limit_cases
from hatch_lower.backends.testing.programs.operators import operator_cases, resizing_cases
from hatch_lower.backends.testing.programs.shapes import shape_cases, value_cases
from hatch_lower.backends.testing.programs.state import control_cases, state_cases


def all_cases() -> Iterator[Case]:
    yield from operator_cases()
    yield from limit_cases()
    yield from shape_cases()
    yield from resizing_cases()
    yield from value_cases()
    yield from state_cases()
    yield from control_cases()
