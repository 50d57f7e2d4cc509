"""The race of `hatch-lower tune`, with scripted times: slower candidates leave, equal candidates get equal choices."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from hatch_lower.cli.measure import figures
from hatch_lower.cli.measure.figures import FEWEST, Interval
from hatch_lower.cli.measure.tune.race import (
    CLOSE,
    EAGER,
    Heat,
    Preference,
    Race,
    Stopwatch,
    exactly,
    fast_once,
    is_settled,
    pick,
)
from hatch_lower.errors import ConfigError, ProcessError

pytest.importorskip("scipy")


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESAMPLES", 1000)


class ScriptedTimer:
    """Candidates with known seconds of a call, on a machine of varying speed; a heat takes ten seconds of the clock."""

    def __init__(self, seconds: Mapping[str, float], *, noise: float = 0.0, seed: int = 0, eager: bool = True) -> None:
        self.seconds = seconds
        self.noise = noise
        self.random = random.Random(seed)
        self.eager = eager
        self.asked: list[list[str]] = []
        self.now = 0.0

    def heat(self, names: Sequence[str], *, with_eager: bool) -> Heat:
        self.asked.append(list(names))
        self.now += 10.0
        if "crash" in names:
            raise ProcessError("the measuring process has crashed", found="signal 11")
        busy = 1 + self.random.random()  # other work of the machine, the same for all sides of a heat
        found = {name: (busy * self.seconds[name] * self.random.lognormvariate(0, self.noise),) for name in names}
        return {**found, EAGER: (busy,)} if with_eager and self.eager else found


def raced(timer: ScriptedTimer, budget: float = 600.0) -> Race:
    watch = Stopwatch(timer, budget, lambda line: None, lambda: timer.now)
    watch.time_once(list(timer.seconds))
    watch.contend(fast_once(watch.race, list(timer.seconds)))
    return watch.race


def test_much_slower_candidates_are_timed_once_beside_eager() -> None:
    timer = ScriptedTimer({"a": 1.0, "b": 1.1, "c": 2.6, "d": 4.0, "e": 1.3})
    race = raced(timer)
    assert timer.asked[:2] == [["a", "b", "c", "d"], ["e"]]
    assert not any({"c", "d"} & set(names) for names in timer.asked[2:])
    assert [name for name in "abcde" if race.is_rough(name)] == ["c", "d"]
    assert all((EAGER in heat) == (at < 2) for at, heat in enumerate(race.heats))
    assert race.leader == "a"


def test_a_slower_contender_leaves_before_the_interval_is_closed() -> None:
    timer = ScriptedTimer({"a": 1.0, "b": 1.4, "c": 1.05})
    race = raced(timer)
    assert sum("b" in names for names in timer.asked) == 2
    assert len(race.shared("a", "c")) == FEWEST
    assert (race.contenders, race.is_certain) == (["a"], True)


def test_contenders_of_equal_speed_end_the_race_together() -> None:
    race = raced(ScriptedTimer({"a": 1.0, "b": 1.01}))
    assert (race.contenders, race.is_certain) == (["a", "b"], True)


def test_a_race_ends_with_its_budget() -> None:
    timer = ScriptedTimer({"a": 1.0, "b": 1.02}, noise=0.05)
    race = raced(timer, 85.0)
    assert not race.is_certain
    assert race.contenders == ["a", "b"]
    assert timer.now == 90.0


def test_a_candidate_that_is_faster_beside_the_leader_becomes_the_leader() -> None:
    race = Race([{"a": (1.0,), EAGER: (1.0,)}, {"b": (1.2,), EAGER: (1.0,)}], ["a", "b"], "a")
    assert race.estimate("b").value == pytest.approx(1.2)
    race.heats.append({"a": (1.0,), "b": (0.9,)})
    assert race.estimate("b").value == pytest.approx(0.9)
    assert raced(ScriptedTimer({"a": 1.0, "b": 0.97}, noise=0.01)).leader == "b"


def test_candidates_of_different_groups_are_compared_by_way_of_a_third() -> None:
    race = Race([{"a": (1.0,), "b": (2.0,)}, {"b": (1.0,), "c": (3.0,)}], ["a", "b", "c"], "a")
    assert race.estimate("c").value == pytest.approx(6.0)


def test_contenders_beyond_a_process_race_in_groups_with_the_leader() -> None:
    timer = ScriptedTimer({name: 1.0 + at / 1000 for at, name in enumerate("abcdef")})
    race = raced(timer)
    together = [names for names in timer.asked if len(names) > 1]
    assert all(len(names) <= 4 for names in together)
    assert {name for names in together for name in names} == set("abcdef")
    assert race.contenders == list("abcdef")


def test_a_small_budget_is_refused_with_the_needed_budget() -> None:
    timer = ScriptedTimer(dict.fromkeys("abcdefghijkl", 1.0))
    with pytest.raises(ConfigError, match="the budget is too small") as error:
        raced(timer, 15.0)
    assert error.value.found == "timed once in 20 s: 8 of 12 candidates"
    assert "`--budget 30s`" in error.value.hint


def test_the_needed_budget_has_the_first_candidates_once() -> None:
    timer = ScriptedTimer(dict.fromkeys("abcdefghijkl", 1.0))
    watch = Stopwatch(timer, 15.0, lambda line: None, lambda: timer.now)
    watch.time_once("abcd")
    with pytest.raises(ConfigError, match="the budget is too small") as error:
        watch.time_once("efghijkl")
    assert "`--budget 30s`" in error.value.hint


def test_a_candidate_that_crashes_is_left_out_with_its_reason() -> None:
    timer = ScriptedTimer({"crash": 1.0, "b": 1.0})
    race = raced(timer)
    assert timer.asked == [["crash", "b"], ["crash"], ["b"]]
    assert race.failed == {"crash": "the measuring process has crashed: signal 11"}
    assert race.contenders == ["b"]


def test_candidates_are_timed_alone_if_eager_is_missing_beside_one() -> None:
    class WithGpu(ScriptedTimer):
        def heat(self, names: Sequence[str], *, with_eager: bool) -> Heat:
            return super().heat(names, with_eager=with_eager and "gpu" not in names)

    timer = WithGpu({"gpu": 0.1, "b": 1.0})
    race = raced(timer)
    assert timer.asked == [["gpu", "b"], ["gpu"], ["b"]]
    assert [sorted(heat) for heat in race.heats] == [["gpu"], [EAGER, "b"]]


def test_without_eager_first_heats_compare_seconds() -> None:
    race = raced(ScriptedTimer({"a": 3.0, "b": 1.0}, eager=False))
    assert (race.leader, race.contenders) == ("b", ["b"])


def test_seconds_and_ratios_to_eager_are_not_compared() -> None:
    race = Race([{"a": (0.01,), EAGER: (0.02,)}, {"b": (0.02,)}])
    assert race.first_time("a") == pytest.approx(0.01)
    assert fast_once(race, ["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("low", "high", "settled"),
    [(1.0, 1.02, True), (1.03, 1.2, True), (0.9, 1.1, False), (1.018, 1.024, True), (0.0, float("inf"), False)],
)
def test_a_ratio_is_settled_outside_of_a_tie_within_a_tie_or_if_narrow(low: float, high: float, settled: bool) -> None:
    assert is_settled(Interval(1.0, low, high)) is settled


def test_equal_candidates_are_chosen_by_facts_that_do_not_vary() -> None:
    equal = {"a": exactly(1.0), "b": exactly(1.015), "c": exactly(1.01)}
    preferences = {
        "a": Preference(False, True, 1, 10),
        "b": Preference(False, True, 0, 30),
        "c": Preference(False, True, 0, 20),
    }
    assert pick(equal, preferences) == "c"
    assert pick(equal, {**preferences, "b": Preference(True, False, 3, 90)}) == "b"
    assert pick({**equal, "c": exactly(1.03)}, preferences) == "b"
    assert pick({**equal, "b": exactly(1.3), "c": exactly(1.3)}, preferences) == "a"


def test_a_candidate_that_may_be_equal_is_equal_within_a_limit() -> None:
    preferences = {"a": Preference(False, True, 1, 10), "b": Preference(False, True, 0, 30)}
    best = exactly(1.0)
    assert pick({"a": best, "b": Interval(1.028, 1.01, 1.05)}, preferences) == "b"
    assert pick({"a": best, "b": Interval(1.028, 1.021, 1.05)}, preferences) == "a"
    assert pick({"a": best, "b": Interval(1.04, 1.01, 1.07)}, preferences) == "a"


@pytest.mark.parametrize(
    ("current", "stays"),
    [
        (Interval(1.09, 1.01, 1.2), True),  # may tie
        (Interval(1.09, 1.03, 1.2), False),  # is slower beyond doubt
        (Interval(1.2, 1.01, 1.4), False),
        (Interval(1.28, 0.0, math.inf), True),  # of a single heat
        (Interval(1.7, 0.0, math.inf), False),
    ],
)
def test_the_choice_so_far_gives_way_to_a_clear_gain_only(current: Interval, stays: bool) -> None:
    preferences = {"a": Preference(False, True, 0, 100), "b": Preference(True, True, 1, 200)}
    assert pick({"a": exactly(1.0), "b": current}, preferences) == ("b" if stays else "a")


@pytest.mark.parametrize("seconds", [1.0, 1.01, 1.04], ids=lambda each: f"{each}")
@pytest.mark.parametrize("budget", [300.0, 1200.0])
def test_repetitions_on_a_busy_machine_choose_the_same_recipe(seconds: float, budget: float) -> None:
    every = {"portable": 1.4, "aoti": 1.26, "onnxruntime": 1.0, "openvino": seconds, "executorch": 1.06}
    sizes = {name: Preference(False, True, 0, at) for at, name in enumerate(sorted(every, reverse=True))}
    chosen = []
    for seed in range(10):
        race = raced(ScriptedTimer(every, noise=0.02, seed=seed), budget)
        chosen.append(pick({name: race.estimate(name) for name in race.contenders}, sizes))
    assert chosen.count("onnxruntime" if seconds > CLOSE else "openvino") >= 9
