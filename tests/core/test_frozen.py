"""`Frozen` makes dataclasses that behave as frozen ones do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from hatch_lower.frozen import Frozen


class Ours(Frozen):
    name: str
    parts: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


class Place(Frozen):
    name: str
    line: int = 0


@dataclass(frozen=True)
class Theirs:
    name: str
    parts: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("values", "named"), [(("a",), {}), (("a", ("b",)), {"notes": {"c": "d"}}), ((), {"parts": ("b",), "name": "a"})]
)
def test_instances_hold_what_those_of_a_frozen_dataclass_hold(values: Sequence[Any], named: Mapping[str, Any]) -> None:
    ours, theirs = Ours(*values, **named), Theirs(*values, **named)
    assert vars(ours) == vars(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert vars(replace(ours, name="other")) == vars(replace(theirs, name="other"))
    assert ours == Ours(*values, **named)
    assert ours != replace(ours, name="other")
    assert ours != theirs


def test_defaults_are_made_anew_for_each_instance() -> None:
    assert Ours("a").notes is not Ours("a").notes


def test_equal_instances_have_one_hash() -> None:
    assert len({Place("a"), replace(Place("b"), name="a"), Place("a", 1)}) == 2


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "Ours was given no `name`"),
        (("a", (), {}, 4), {}, "Ours takes 3 values, and was given 4"),
        (("a",), {"name": "b"}, "Ours was given `name` twice"),
        (("a",), {"colour": "red"}, "Ours has no `colour`"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: Sequence[Any], named: Mapping[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as refused:
        Ours(*values, **named)
    assert str(refused.value) == message
    with pytest.raises(TypeError):
        Theirs(*values, **named)


def test_nothing_can_be_assigned_or_deleted() -> None:
    ours = Ours("a")
    with pytest.raises(FrozenInstanceError):
        ours.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del ours.name
    assert ours.name == "a"
