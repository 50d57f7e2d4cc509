"""Sides of a measurement that cannot share a process have processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.apart import divide, process_settings
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.timed import Eager, TimedWork, ask_pair
from hatch_lower.format.constants import DelegateEntry

CALLS = ((FigureSubject("net", "default", "forward", "", 1), {}),)
ONE, DEFAULT = {"executorch.threads": 1}, {"executorch.threads": None}


class Answers:
    """A measuring process that answers with the order of its sides."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    def ask(self, request: Mapping[str, Any], title: str, limit: float) -> Mapping[str, Any]:
        self.asked.append(request)
        sides = [*request["order"], *(["eager"] if request["eager"] else [])]
        return {"calls": [{side: [float(len(self.asked))] for side in sides}], "no eager": ""}


def delegate(backend: str, **info: Any) -> DelegateEntry:
    return DelegateEntry(backend, "a.blob", (), info, None)


def work(**settings: Mapping[str, object]) -> TimedWork:
    folders = {side: Path(side) for side in settings}
    return TimedWork("net", "default", 1, CALLS, folders, Eager((), "net:export"), settings=settings)


def test_the_threads_of_executorch_are_a_state_of_the_process() -> None:
    assert process_settings([delegate("executorch", threads=1), delegate("aoti")]) == ONE
    assert process_settings([delegate("executorch", threads=None)]) == DEFAULT
    assert process_settings([delegate("onnxruntime", threads=1)]) == {}


def test_sides_with_different_settings_are_in_different_groups() -> None:
    settings = {"A": DEFAULT, "B": {}, "C": ONE, "D": DEFAULT, "E": ONE}
    assert divide(list("ABCDE"), settings) == [["A", "B", "D"], ["C", "E"]]
    assert divide(list("AB"), {}) == [["A", "B"]]


def test_an_unset_side_in_a_group_leaves_room_for_one_setting_only() -> None:
    assert divide(list("ABC"), {"A": {}, "B": ONE, "C": DEFAULT}) == [["A", "B"], ["C"]]


def test_each_group_has_a_process_in_either_order_and_eager_is_beside_the_first() -> None:
    host = Answers()
    forward, backward = ask_pair(host, work(A=DEFAULT, B=ONE, C={}), CALLS, "calls", 60.0)  # type: ignore[arg-type]
    assert [request["order"] for request in host.asked] == [["A", "C"], ["B"], ["B"], ["C", "A"]]
    assert [sorted(request["sides"]) for request in host.asked] == [["A", "C"], ["B"], ["B"], ["A", "C"]]
    assert forward["calls"] == [{"A": [1.0], "C": [1.0], "eager": [1.0], "B": [2.0]}]
    assert backward["calls"] == [{"B": [3.0], "C": [4.0], "A": [4.0], "eager": [4.0]}]


def test_sides_of_equal_settings_share_a_process() -> None:
    host = Answers()
    ask_pair(host, work(A=ONE, B=ONE), CALLS, "calls", 60.0)  # type: ignore[arg-type]
    assert [request["order"] for request in host.asked] == [["A", "B"], ["B", "A"]]
