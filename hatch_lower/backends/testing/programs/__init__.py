"""All programs of the kit."""

from __future__ import annotations

from collections.abc import Iterator

from hatch_lower.backends.testing.case import Case
from hatch_lower.backends.testing.programs import limits, operators, shapes, state


def all_cases() -> Iterator[Case]:
    yield from operators.operator_cases()
    yield from limits.limit_cases()
    yield from shapes.shape_cases()
    yield from operators.resizing_cases()
    yield from shapes.value_cases()
    yield from state.state_cases()
    yield from state.control_cases()
