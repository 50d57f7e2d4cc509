"""The scheduler on simulated workers: what is made when, and whatever fails."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import (
    Make,
    RecordingWatcher,
    SimulatedDesk,
    SimulatedEngine,
    makespan,
    making,
    mixed_units,
    scheduler_of,
    shortest_makespan,
)

from hatch_lower.driver.spread.pool import LostConnectionError, UnitWork
from hatch_lower.errors import CaptureError, ExecutorError

EQUAL = [UnitWork(str(number), f"unit {number}", seconds=10.0) for number in range(32)]


def answering(**answers: list[str | BaseException]) -> Make:
    """Return what workers do: the answers to each unit in turn, `made` after them, each after a second."""

    def make(worker: str, key: str) -> tuple[float, bytes | BaseException]:
        left = answers.get(key)
        answer = left.pop(0) if left else "made"
        return 1.0, answer if isinstance(answer, BaseException) else answer.encode()

    return make


def units(*names: str) -> list[UnitWork]:
    return [UnitWork(name, name) for name in names]


def test_equal_units_keep_all_workers_busy() -> None:
    assert makespan(EQUAL, 1) / makespan(EQUAL, 8) >= 7


@pytest.mark.parametrize("seed", range(5))
def test_mixed_units_take_little_longer_than_they_must(seed: int) -> None:
    works = mixed_units(1000, seed)
    assert makespan(works, 100) <= 1.15 * shortest_makespan(works, 100)


def test_ten_thousand_units_take_little_longer_than_they_must() -> None:
    works = mixed_units(10_000, 0)
    assert makespan(works, 100) <= 1.15 * shortest_makespan(works, 100)


def test_the_longest_unit_is_begun_first() -> None:
    begun: list[str] = []

    def make(worker: str, key: str) -> tuple[float, bytes]:
        begun.append(key)
        return 1.0, b"made"

    works = [UnitWork(str(seconds), "", float(seconds)) for seconds in (1, 9, 3)] + [UnitWork("unknown", "")]
    scheduler_of(SimulatedEngine(1, make), SimulatedDesk()).run(works)
    assert begun == ["9", "unknown", "3", "1"]


def test_an_engine_that_does_not_say_how_many_workers_it_has_gets_all_that_can_be_made() -> None:
    engine = SimulatedEngine(2, making(EQUAL), known=False)
    scheduler_of(engine, SimulatedDesk()).run(EQUAL)
    assert engine.most_submitted == 32


def test_as_many_again_as_there_are_workers_wait_at_the_engine_at_most() -> None:
    engine = SimulatedEngine(4, making(EQUAL))
    scheduler_of(engine, SimulatedDesk()).run(EQUAL)
    assert engine.most_submitted == 8


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    workers=st.integers(1, 6),
    moments=st.lists(st.floats(0, 400), max_size=20),
    trouble=st.floats(0, 0.2),
)
@settings(max_examples=60, deadline=None)
def test_each_unit_is_made_once_whatever_fails(
    seed: int, count: int, workers: int, moments: list[float], trouble: float
) -> None:
    works = mixed_units(count, seed)
    desk = SimulatedDesk()
    chance = random.Random(seed)
    seconds = {work.key: work.seconds or 1.0 for work in works}

    def make(worker: str, key: str) -> tuple[float, bytes | BaseException]:
        if chance.random() < trouble:
            answer = chance.choice([b"damaged", b"refused", LostConnectionError("closed")])
            return seconds[key] * chance.random(), answer
        return seconds[key], b"made"

    engine = SimulatedEngine(workers, make)
    for moment in moments:
        engine.at(moment, lambda: engine.kill_one(chance.choice))
    try:
        given_up = scheduler_of(engine, desk).run(works)
    except ExecutorError:  # every worker has refused
        assert trouble
        return
    assert len(desk.made) == len(set(desk.made))
    assert {*desk.made, *given_up} == {work.key for work in works}


def test_twenty_killed_workers_cost_no_unit() -> None:
    engine = SimulatedEngine(8, making(EQUAL))
    chance = random.Random(3)
    for number in range(20):
        engine.at(1.0 + 2.0 * number, lambda: engine.kill_one(chance.choice))
    desk = SimulatedDesk()
    assert scheduler_of(engine, desk).run(EQUAL) == {}
    assert sorted(desk.made, key=int) == [work.key for work in EQUAL]
    assert engine.closed == [False]


def test_a_unit_that_ends_its_workers_is_given_up() -> None:
    works = units("bad", "good")
    watcher = RecordingWatcher()
    engine = SimulatedEngine(9, making([UnitWork(work.key, work.name, 5.0) for work in works]))
    for number in range(4):
        engine.at(1.0 + number, lambda: [engine.kill(worker) for worker in engine.running("bad")])
    desk = SimulatedDesk()
    assert scheduler_of(engine, desk, watcher).run(works) == {"bad": "its worker was lost: killed"}
    assert desk.made == ["good"]
    assert watcher.lines.count("bad again: its worker was lost: killed") == 3


def test_a_wrong_answer_is_reported_and_made_again_by_another_worker() -> None:
    watcher = RecordingWatcher()
    engine = SimulatedEngine(2, lambda worker, key: (1.0, b"flipped" if worker == "worker-0" else b"made"))
    desk, works = SimulatedDesk(), units("one")
    assert scheduler_of(engine, desk, watcher).run(works) == {}
    assert watcher.lines == ["one again: worker-0 answered wrongly: flipped", "one made on worker-1 in 1 s"]


def test_the_only_worker_may_try_again_what_it_answered_wrongly() -> None:
    desk, works = SimulatedDesk(), units("one")
    assert scheduler_of(SimulatedEngine(1, answering(one=["flipped", "flipped"])), desk).run(works) == {}
    assert scheduler_of(SimulatedEngine(1, answering(one=["flipped"] * 4)), desk).run(works) == {
        "one": "worker-0 answered wrongly: flipped"
    }


def test_a_worker_that_refuses_a_unit_gets_none_of_its_group() -> None:
    asked: list[tuple[str, str]] = []

    def make(worker: str, key: str) -> tuple[float, bytes]:
        asked.append((worker, key))
        return 1.0, b"refused" if worker == "worker-0" and key != "other" else b"made"

    works = [*(UnitWork(str(number), str(number), group="aoti") for number in range(6)), UnitWork("other", "other")]
    assert scheduler_of(SimulatedEngine(2, make), SimulatedDesk()).run(works) == {}
    assert [key for worker, key in asked if worker == "worker-0" and key != "other"] in (["0"], ["0", "2"])


def test_a_unit_that_every_worker_refuses_ends_the_build_and_says_what_each_lacks() -> None:
    engine = SimulatedEngine(2, lambda worker, key: (1.0, b"refused"))
    with pytest.raises(ExecutorError) as caught:
        scheduler_of(engine, SimulatedDesk()).run(units("one"))
    assert str(caught.value) == (
        "no worker can make a unit of this build\n"
        "  where: `one`\n"
        "  found: worker-0: has no g++, where g++ 13 is wanted\n"
        "    worker-1: has no g++, where g++ 13 is wanted\n"
        '  to do: install the same on the workers as here, or build with `executor = "local"`'
    )
    assert engine.closed == [True]


def test_a_worker_that_starts_again_gets_what_all_others_refuse() -> None:
    engine = SimulatedEngine(2, lambda worker, key: (1.0, b"made" if worker.endswith("new") else b"refused"))
    engine.at(4.0, lambda: engine.kill("worker-0"))
    desk, works = SimulatedDesk(), units("one")
    assert scheduler_of(engine, desk).run(works) == {}
    assert desk.made == ["one"]


def test_a_unit_that_fails_ends_the_build_and_what_runs() -> None:
    begun: list[str] = []

    def make(worker: str, key: str) -> tuple[float, bytes]:
        begun.append(key)
        return (1.0, b"failed") if key == "bad" else (9.0, b"made")

    engine = SimulatedEngine(2, make)
    with pytest.raises(CaptureError, match="the model is wrong"):
        scheduler_of(engine, SimulatedDesk()).run(units("bad", "long"))
    assert sorted(begun) == ["bad", "long"]
    assert engine.closed == [True]


def test_ctrl_c_cancels_what_runs() -> None:
    engine = SimulatedEngine(2, making(EQUAL))

    def interrupt() -> None:
        raise KeyboardInterrupt

    engine.at(15.0, interrupt)
    with pytest.raises(KeyboardInterrupt):
        scheduler_of(engine, SimulatedDesk()).run(EQUAL)
    assert engine.closed == [True]


def test_an_engine_that_is_lost_is_connected_to_again() -> None:
    engine = SimulatedEngine(2, making(EQUAL))
    engine.at(15.0, engine.disconnect)
    watcher = RecordingWatcher()
    desk = SimulatedDesk()
    assert scheduler_of(engine, desk, watcher).run(EQUAL) == {}
    assert len(desk.made) == 32
    assert (engine.opened, engine.closed) == (2, [False, False])
    assert "the executor was lost: connection closed" in watcher.lines


def test_a_worker_is_waited_for_anew_after_the_engine_was_lost() -> None:
    seconds = {"refused": 1.0, "long": 8.0, "longer": 20.0}

    def make(worker: str, key: str) -> tuple[float, bytes]:
        return seconds[key], b"refused" if key == "refused" and not worker.endswith("new") else b"made"

    engine = SimulatedEngine(2, make)
    engine.at(12.0, engine.disconnect)  # no worker takes the unit since the ninth second
    engine.at(15.0, lambda: engine.kill("worker-1"))
    desk, works = SimulatedDesk(), [UnitWork(key, key, group=key[:1]) for key in seconds]
    assert scheduler_of(engine, desk).run(works) == {}
    assert sorted(desk.made) == sorted(seconds)


def test_an_engine_that_stays_away_leaves_the_rest_to_the_local_build() -> None:
    engine = SimulatedEngine(2, lambda worker, key: (1.0, LostConnectionError("gone")))
    given_up = scheduler_of(engine, SimulatedDesk()).run(EQUAL)
    assert set(given_up.values()) == {"the executor was lost: gone"}
    assert (len(given_up), engine.opened) == (32, 3)


def test_workers_that_cannot_run_units_end_the_build() -> None:
    engine = SimulatedEngine(2, lambda worker, key: (1.0, ModuleNotFoundError("No module named 'hatch_lower'")))
    with pytest.raises(ExecutorError) as caught:
        scheduler_of(engine, SimulatedDesk()).run(units("one"))
    assert str(caught.value) == (
        "the executor's workers cannot run units\n"
        "  where: `one`\n"
        "  found: ModuleNotFoundError: No module named 'hatch_lower'\n"
        "  to do: install hatch-lower on the workers, in the version that is installed here"
    )


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (WordlessError(), "WordlessError: its text cannot be read"),
        (ValueError("x" * 10**6), f"ValueError: {'x' * 400}…"),
    ],
)
def test_what_a_worker_raised_is_said_whatever_its_text_is(raised: Exception, text: str) -> None:
    watcher = RecordingWatcher()
    engine = SimulatedEngine(1, answering(a=[raised]))
    scheduler_of(engine, SimulatedDesk(), watcher).run(units("a"))
    assert f"a again: the worker raised {text}" in watcher.lines


def test_the_rest_is_estimated_from_what_is_left_and_the_longest_chain() -> None:
    watcher = RecordingWatcher()
    scheduler_of(SimulatedEngine(8, making(EQUAL)), SimulatedDesk(), watcher).run(EQUAL)
    first, last = watcher.shown[0], watcher.shown[-1]
    assert (first.made, first.total, len(first.running), first.rest) == (0, 32, 16, 20.0)
    assert last.rest is not None
    assert last.rest < 1.0
