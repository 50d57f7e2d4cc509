"""What is shown of units that are made elsewhere."""

from __future__ import annotations

import pytest

from hatch_lower.driver.spread.pool import UnitWork
from hatch_lower.driver.spread.scheduler import UnitProgress, UnitView, duration_text
from hatch_lower.events import Event

A, B = UnitWork("a", "digits/a"), UnitWork("b", "digits/b")


class Shown:
    """A view whose clock is set by hand, and the events that it reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.time = 0.0
        self.view = UnitView(self, "net", lambda: self.time)

    def report(self, event: Event) -> None:
        self.events.append(event)


def test_the_view_counts_units_and_names_those_that_run_for_longest() -> None:
    shown = Shown()
    running = [(UnitWork(str(number), f"digits/{number}"), float(number)) for number in range(7)]
    shown.view.show(UnitProgress(2, 0, 12, running, 90.0, 7))
    (event,) = shown.events
    assert (event.state, event.model) == ("live", "net")
    assert event.detail.splitlines() == [
        "2 of 12 units made, 7 submitted, 3 waiting, about 90 s left",
        "     6 s  digits/6",
        "     5 s  digits/5",
        "     4 s  digits/4",
        "     3 s  digits/3",
    ]


def test_without_an_estimate_none_is_shown() -> None:
    shown = Shown()
    shown.view.show(UnitProgress(0, 0, 1, [], None, None))
    assert shown.events[0].detail == "0 of 1 units made, 0 submitted, 1 waiting"


def test_units_that_are_left_to_the_build_do_not_wait() -> None:
    shown = Shown()
    shown.view.show(UnitProgress(1, 2, 5, [(B, 1.0)], None, 1))
    assert shown.events[0].detail.splitlines()[0] == "1 of 5 units made, 1 submitted, 1 waiting, 2 left to this build"


def test_a_cluster_without_workers_is_named_and_nothing_promised() -> None:
    shown = Shown()
    shown.view.show(UnitProgress(0, 0, 2, [(A, 1.0), (B, 1.0)], 20.0, 0))
    assert shown.events[0].detail.splitlines()[0] == "0 of 2 units made, 2 submitted, 0 waiting, no worker is there"


def test_where_lines_are_shown_nothing_is_quiet_for_long() -> None:
    shown = Shown()
    for _ in range(100):
        shown.time += 1.0
        if shown.time == 50.0:
            shown.view.made(A, "worker", 3.0)
        shown.view.show(UnitProgress(0, 0, 1, [(B, shown.time)], None, 1))
    going = [event for event in shown.events if event.state == "going"]
    assert [event.seconds for event in going] == [30.0, 80.0]


def test_what_happens_to_a_unit_is_a_line() -> None:
    shown = Shown()
    shown.view.made(A, "host:7", 3.0)
    shown.view.again(B, "its worker was lost: killed")
    shown.view.given_up(A, "4 workers ended")
    shown.view.said("the executor was lost: closed")
    shown.view.close()
    assert shown.events == [
        Event("unit", "end", "digits/a", seconds=3.0, detail="on host:7"),
        Event("units", "note", "digits/b", detail="made again: its worker was lost: killed"),
        Event("units", "note", "digits/a", detail="made by this build: 4 workers ended"),
        Event("units", "note", "net", detail="the executor was lost: closed"),
        Event("units", "live", "net"),
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99.0, "99 s"), (600.0, "10 min"), (7200.0, "2.0 h")])
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
