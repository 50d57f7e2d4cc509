"""The race of candidates: all are timed shortly, slower candidates leave, the others share the rest of the budget.

The race sees names and seconds only. A heat is a pair of processes, in which candidates are called in turns; ratios are
taken within heats, so that other work of the machine affects both sides of a ratio. Eager, whose import may take longer
than all calls, is beside the candidates in their first heats only.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hatch_lower.cli.measure.command import Tell
from hatch_lower.cli.measure.figures import FEWEST, Interval, interval_of
from hatch_lower.errors import ConfigError, LowerError
from hatch_lower.frozen import Frozen

EAGER = ""  # the name of eager in a heat: no recipe has an empty name
TIE = 1.02  # a smaller ratio is no reason for a choice
CLOSE = 1.03  # nor is a smaller ratio that may be a tie: repetitions are to choose the same candidate
# the project's choice so far gives way to a candidate that is faster beyond doubt, or by more than this factor, or by
# more than the second factor with too few heats for an interval
KEPT, KEPT_ONCE = 1.1, 1.65
NARROW = 1.01  # an interval with this ratio of its ends has an estimate that counts
# A candidate that is slower by this factor in its first heat leaves. On two busy cores the ratio to eager of equal
# programs differed by a factor of 1.65 between two first heats.
SLOW_ONCE = 2.5
WORTH_OPTIONS = 2.0  # of candidates that are slower by this factor in their first heat, options are not tried
# number of heats to the smallest ratio to the leader with which a candidate leaves, if every heat has a larger ratio
SLOW_TOGETHER: Mapping[int, float] = {2: 1.35, 4: 1.15}
TOGETHER = 4  # candidates in a process: each holds the model once

Heat = Mapping[str, tuple[float, ...]]  # candidate, or `EAGER`, to the seconds of each call


class Timer(Protocol):
    def heat(self, names: Sequence[str], *, with_eager: bool) -> Heat:
        """Return the seconds of each call of candidates in a pair of processes; without eager if eager fails."""


@dataclass(slots=True)
class Race:
    """All heats, and the candidates that still compete."""

    heats: list[Heat] = field(default_factory=list)
    contenders: list[str] = field(default_factory=list)
    leader: str = ""
    is_certain: bool = False  # whether the order of the contenders was decided within the budget
    failed: dict[str, str] = field(default_factory=dict)  # candidate to the reason
    spent: float = 0.0  # seconds of all heats

    def ratio(self, name: str, other: str) -> Interval:
        """Return the ratio of two candidates' calls, over the heats of both."""
        return interval_of([mean_call(heat[name]) / mean_call(heat[other]) for heat in self.shared(name, other)])

    def shared(self, *names: str) -> list[Heat]:
        return [heat for heat in self.heats if all(name in heat for name in names)]

    def estimate(self, name: str) -> Interval:
        """Return the ratio to the leader.

        The ratio is that of common heats, else an uncertain ratio by way of another candidate, or of eager.
        """
        if name == self.leader:
            return exactly(1.0)
        if self.shared(name, self.leader):
            return self.ratio(name, self.leader)
        for other in self.contenders:
            if self.shared(name, other) and self.shared(other, self.leader):
                return uncertain(self.ratio(name, other).value * self.ratio(other, self.leader).value)
        return uncertain(self.first_time(name) / self.first_time(self.leader))

    def is_rough(self, name: str) -> bool:
        """Return whether a candidate left after its first heat."""
        return len(self.shared(name)) == 1

    def first_heat(self, name: str) -> Heat:
        return self.shared(name)[0]

    @property
    def has_eager(self) -> bool:
        """Whether eager was timed beside every candidate; eager is missing beside a recipe for a GPU."""
        names = {name for heat in self.heats for name in heat} - {EAGER}
        return all(EAGER in self.first_heat(name) for name in names)

    def first_time(self, name: str) -> float:
        """Return the time in the first heat, relative to eager if eager was timed beside every candidate."""
        heat = self.first_heat(name)
        return mean_call(heat[name]) / (mean_call(heat[EAGER]) if self.has_eager else 1.0)


def exactly(ratio: float) -> Interval:
    return Interval(ratio, ratio, ratio)


def uncertain(ratio: float) -> Interval:
    return Interval(ratio, 0.0, math.inf)


def mean_call(seconds: Sequence[float]) -> float:
    return statistics.geometric_mean(seconds)


Settled = Callable[[Interval], bool]  # whether the ratio of a candidate to the leader needs no more heats


def is_settled(found: Interval) -> bool:
    """Return whether a candidate is certainly slower than the leader, or not slower by more than a tie."""
    return found.low > TIE or found.high <= TIE or (found.low > 0 and found.high / found.low <= NARROW)


class Stopwatch(Frozen):
    """A race with its timer and its budget in seconds."""

    timer: Timer
    budget: float
    tell: Tell
    clock: Callable[[], float] = time.monotonic
    race: Race = field(default_factory=Race)

    @property
    def is_over(self) -> bool:
        return self.race.spent >= self.budget

    def heat(self, names: Sequence[str], *, with_eager: bool = False) -> Heat:
        begin = self.clock()
        try:
            return self.timer.heat(names, with_eager=with_eager)
        finally:
            self.race.spent += self.clock() - begin

    def time_once(self, names: Sequence[str]) -> None:
        """Time each candidate beside eager once; raise `ConfigError` if the budget is too small for all candidates."""
        done, before = 0, self.race.spent
        for group in groups(names, TOGETHER):
            if done and self.is_over:
                raise small_budget_error(self.budget, before, self.race.spent, done, len(names))
            self.tell(f"timing {', '.join(group)}: {done + len(group)} of {len(names)}")
            self.time_group(group)
            done += len(group)

    def time_group(self, group: Sequence[str]) -> None:
        """Time candidates beside eager: together, or each alone if that fails or if eager is missing beside one."""
        try:
            heat = self.heat(group, with_eager=True)
        except LowerError as error:  # a crash, or a hanging call, concerns a single candidate
            if len(group) == 1:
                self.race.failed[group[0]] = ": ".join(filter(None, [error.what, error.found]))
                return
        else:
            if EAGER in heat or len(group) == 1:
                self.race.heats.append(heat)
                return
        for name in group:
            self.time_group([name])

    def contend(self, names: Sequence[str], fixed: str = "", is_settled: Settled = is_settled) -> None:
        """Time candidates together until the best are known, or until the budget is used up.

        With a `fixed` leader, until the ratio of every other candidate to the leader is settled.
        """
        race = self.race
        race.leader = fixed or min(names, key=race.first_time)
        race.contenders = list(names)
        for turn in itertools.count(1):
            others = [name for name in race.contenders if name != race.leader]
            rest = [name for name in others if not settled(race, name, is_settled)]
            race.is_certain = not rest
            if not rest or self.is_over:
                break
            for group in groups(rest, TOGETHER - 1):
                self.tell(f"turn {turn}: {', '.join([race.leader, *group])}")
                race.heats.append(self.heat([race.leader, *group]))
            drop_slower(race)
            race.leader = fixed or min(race.contenders, key=lambda name: (race.estimate(name).value, name))


def fast_once(race: Race, names: Sequence[str], most: float = SLOW_ONCE) -> list[str]:
    """Return the candidates that are at most `most` times slower than the fastest in their first heats."""
    timed = [name for name in names if name not in race.failed]
    least = min((race.first_time(name) for name in timed), default=0.0)
    return [name for name in timed if race.first_time(name) <= most * least]


def small_budget_error(budget: float, before: float, spent: float, done: int, every: int) -> ConfigError:
    """Return the error for a budget that is spent after some candidates; `before`: seconds of earlier candidates."""
    needed = before + (spent - before) / done * every
    return ConfigError(
        "the budget is too small",
        where=f"`--budget` of {budget:g} s",
        found=f"timed once in {spent:.0f} s: {done} of {every} candidates",
        hint=f"give at least `--budget {math.ceil(needed)}s`, or fewer candidates",
    )


def unfit_budget_error(budget: float, least: float, every: int) -> ConfigError:
    """Return the error for a budget without time for a heat, of which `least` are the seconds at least."""
    heats = max(1, math.ceil(every / TOGETHER))
    return ConfigError(
        "the budget is too small",
        where=f"`--budget` of {budget:g} s",
        found=f"the calls of eager alone, beside at most {TOGETHER} candidates, take at least {least:.1f} s",
        hint=f"give at least `--budget {math.ceil(least * heats)}s`, and time for the calls of the candidates",
    )


def settled(race: Race, name: str, is_settled: Settled) -> bool:
    return bool(race.shared(name, race.leader)) and is_settled(race.ratio(name, race.leader))


def groups(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[at : at + size] for at in range(0, len(names), size)]


def drop_slower(race: Race) -> None:
    """Remove candidates that are slower than the leader beyond doubt."""
    race.contenders = [name for name in race.contenders if name == race.leader or not is_slower(race, name)]


def is_slower(race: Race, name: str) -> bool:
    shared = race.shared(name, race.leader)
    if not shared:
        return False
    ratios = [mean_call(heat[name]) / mean_call(heat[race.leader]) for heat in shared]
    if any(len(ratios) >= count and min(ratios) > least for count, least in SLOW_TOGETHER.items()):
        return True
    return len(ratios) >= FEWEST and race.ratio(name, race.leader).low > TIE


class Preference(Frozen):
    """The facts that decide between candidates of equal speed; each is the same in every repetition."""

    is_current: bool  # the project's choice so far
    is_exact: bool  # float32
    options: int  # number of options of its backends
    installed_bytes: int

    def key(self, name: str) -> tuple[object, ...]:
        return (not self.is_current, not self.is_exact, self.options, self.installed_bytes, name)


def pick(ratios: Mapping[str, Interval], preferences: Mapping[str, Preference]) -> str:
    """Return the preferred of the candidates that tie with the best, or may tie, by their ratios to the best."""
    equal = [name for name, ratio in ratios.items() if may_tie(ratio, is_current=preferences[name].is_current)]
    return min(equal, key=lambda name: preferences[name].key(name))


def may_tie(ratio: Interval, *, is_current: bool) -> bool:
    if ratio.low > TIE:
        return False
    kept = KEPT_ONCE if ratio.low == 0 else KEPT
    return ratio.value <= (kept if is_current else CLOSE)
