"""The race of candidates: all are timed shortly, slower candidates leave, the others share the rest of the budget.

The race sees names and seconds only. A heat is a pair of processes, in which candidates are called in turns; ratios are
taken within heats, so that other work of the machine affects both sides of a ratio.
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
NARROW = 1.01  # an interval with this ratio of its ends has an estimate that counts
# A candidate that is slower by this factor in its first heat leaves. On two busy cores the ratio to eager of equal
# programs differed by a factor of 1.65 between two first heats.
SLOW_ALONE = 2.5
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

    def estimate(self, name: str) -> float:
        """Return the ratio to the leader: within common heats, else by way of another candidate, or of eager."""
        if name == self.leader:
            return 1.0
        if self.shared(name, self.leader):
            return self.ratio(name, self.leader).value
        for other in self.contenders:
            if self.shared(name, other) and self.shared(other, self.leader):
                return self.ratio(name, other).value * self.ratio(other, self.leader).value
        return self.alone(name) / self.alone(self.leader)

    def is_rough(self, name: str) -> bool:
        """Return whether a candidate was never timed together with another."""
        return not any(name in heat and len(heat.keys() - {EAGER}) > 1 for heat in self.heats)

    @property
    def has_eager(self) -> bool:
        """Whether eager was timed beside every candidate; eager is missing beside a recipe for a GPU."""
        return all(EAGER in heat for heat in self.heats if len(heat.keys() - {EAGER}) == 1)

    def alone(self, name: str) -> float:
        """Return the time in the first heat, relative to eager if eager was timed beside every candidate."""
        heat = self.shared(name)[0]
        return mean_call(heat[name]) / (mean_call(heat[EAGER]) if self.has_eager else 1.0)


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
        return self.race.spent > self.budget

    def heat(self, names: Sequence[str], *, with_eager: bool = False) -> None:
        begin = self.clock()
        try:
            self.race.heats.append(self.timer.heat(names, with_eager=with_eager))
        finally:
            self.race.spent += self.clock() - begin

    def time_alone(self, names: Sequence[str]) -> None:
        """Time each candidate beside eager alone; raise `ConfigError` if the budget is too small for all candidates."""
        for done, name in enumerate(names):
            if done and self.is_over:
                raise small_budget_error(self.budget, self.race.spent, done, len(names))
            self.tell(f"timing {name}, {done + 1} of {len(names)}")
            try:
                self.heat([name], with_eager=True)
            except LowerError as error:  # a crash, or a hanging call, concerns this candidate only
                self.race.failed[name] = ": ".join(filter(None, [error.what, error.found]))

    def contend(self, names: Sequence[str], fixed: str = "", is_settled: Settled = is_settled) -> None:
        """Time candidates together until the best are known, or until the budget is used up.

        With a `fixed` leader, until the ratio of every other candidate to the leader is settled.
        """
        race = self.race
        race.leader = fixed or min(names, key=race.alone)
        race.contenders = list(names)
        for turn in itertools.count(1):
            others = [name for name in race.contenders if name != race.leader]
            rest = [name for name in others if not settled(race, name, is_settled)]
            race.is_certain = not rest
            if not rest or self.is_over:
                break
            for group in groups(rest):
                self.tell(f"turn {turn}: {', '.join([race.leader, *group])}")
                self.heat([race.leader, *group])
            drop_slower(race)
            race.leader = fixed or min(race.contenders, key=lambda name: (race.estimate(name), name))


def fast_alone(race: Race, names: Sequence[str], most: float = SLOW_ALONE) -> list[str]:
    """Return the candidates that are at most `most` times slower than the fastest in their first heats."""
    timed = [name for name in names if name not in race.failed]
    least = min((race.alone(name) for name in timed), default=0.0)
    return [name for name in timed if race.alone(name) <= most * least]


def small_budget_error(budget: float, spent: float, done: int, every: int) -> ConfigError:
    return ConfigError(
        "the budget is too small",
        where=f"`--budget` of {budget:g} s",
        found=f"timed once in {spent:.0f} s: {done} of {every} candidates",
        hint=f"give at least `--budget {math.ceil(spent / done * every)}s`, or fewer candidates",
    )


def settled(race: Race, name: str, is_settled: Settled) -> bool:
    return bool(race.shared(name, race.leader)) and is_settled(race.ratio(name, race.leader))


def groups(names: Sequence[str]) -> list[Sequence[str]]:
    """Divide candidates into groups that a process holds beside the leader."""
    size = TOGETHER - 1
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


def pick(estimates: Mapping[str, float], preferences: Mapping[str, Preference]) -> str:
    """Return the best candidate: the preferred of the candidates within a tie of the smallest estimate."""
    least = min(estimates.values())
    equal = [name for name, value in estimates.items() if value <= TIE * least]
    return min(equal, key=lambda name: preferences[name].key(name))
