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

EAGER = ""  # the name of eager in a heat: no recipe has it
TIE = 1.02  # a smaller ratio is no reason for a choice
NARROW = 1.01  # an interval with this ratio of its ends has an estimate that counts
SLOW_ALONE = 1.5  # a candidate that is slower by this factor in its first heat leaves
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
    failed: dict[str, str] = field(default_factory=dict)  # candidate to the reason why it cannot be timed

    def ratio(self, name: str, other: str) -> Interval:
        """Return the ratio of two candidates' calls, over the heats of both."""
        return interval_of([joined(heat[name]) / joined(heat[other]) for heat in self.shared(name, other)])

    def shared(self, *names: str) -> list[Heat]:
        return [heat for heat in self.heats if all(name in heat for name in names)]

    def estimate(self, name: str) -> float:
        """Return the ratio to the leader: within common heats, else of the first heats, by eager if there is eager."""
        if name == self.leader:
            return 1.0
        if self.shared(name, self.leader):
            return self.ratio(name, self.leader).value
        return self.alone(name) / self.alone(self.leader)

    def alone(self, name: str) -> float:
        heat = self.shared(name)[0]
        return joined(heat[name]) / (joined(heat[EAGER]) if EAGER in heat else 1.0)


def joined(seconds: Sequence[float]) -> float:
    return statistics.geometric_mean(seconds)


Settled = Callable[[Interval], bool]  # whether the ratio of a candidate to the leader needs no more heats


def is_settled(found: Interval) -> bool:
    """Return whether a candidate is certainly slower than the leader, or not slower by more than a tie."""
    return found.low > TIE or found.high <= TIE or (found.low > 0 and found.high / found.low <= NARROW)


def run_race(
    names: Sequence[str], timer: Timer, budget: float, tell: Tell, clock: Callable[[], float] = time.monotonic
) -> Race:
    """Time candidates until the best are known, or until `budget` seconds have passed."""
    begin = clock()
    race = Race()
    time_alone(race, names, timer, budget, tell, clock)
    first = [name for name in names if name not in race.failed]
    if not first:
        return race
    race.leader = min(first, key=race.alone)
    race.contenders = [name for name in first if race.alone(name) <= SLOW_ALONE * race.alone(race.leader)]
    for turn in itertools.count(1):
        rest = [name for name in race.contenders if name != race.leader and not settled(race, name)]
        race.is_certain = not rest
        if not rest or clock() - begin > budget:
            return race
        for group in groups(rest):
            tell(f"turn {turn}: {', '.join([race.leader, *group])}")
            race.heats.append(timer.heat([race.leader, *group], with_eager=False))
        drop_slower(race)
        race.leader = min(race.contenders, key=lambda name: (race.estimate(name), name))
    raise AssertionError  # the loop has no other end


def time_alone(
    race: Race, names: Sequence[str], timer: Timer, budget: float, tell: Tell, clock: Callable[[], float]
) -> None:
    """Time each candidate beside eager alone; raise `ConfigError` if the budget is too small for all candidates."""
    begin = clock()
    for done, name in enumerate(names):
        if done and clock() - begin > budget:
            needed = math.ceil((clock() - begin) / done * len(names))
            raise ConfigError(
                "the budget is too small",
                where=f"`--budget` of {budget:g} s",
                found=f"{done} of {len(names)} candidates were timed once in {clock() - begin:.0f} s",
                hint=f"give at least `--budget {needed}s`, or fewer candidates",
            )
        tell(f"timing {name}, {done + 1} of {len(names)}")
        try:
            race.heats.append(timer.heat([name], with_eager=True))
        except LowerError as error:  # a crash, or a hanging call, concerns this candidate only
            race.failed[name] = ": ".join(filter(None, [error.what, error.found]))


def settled(race: Race, name: str) -> bool:
    return bool(race.shared(name, race.leader)) and is_settled(race.ratio(name, race.leader))


def groups(names: Sequence[str]) -> list[Sequence[str]]:
    """Divide candidates into groups that one process holds beside the leader."""
    size = TOGETHER - 1
    return [names[at : at + size] for at in range(0, len(names), size)]


def drop_slower(race: Race) -> None:
    """Remove candidates that are slower than the leader beyond doubt."""
    race.contenders = [name for name in race.contenders if name == race.leader or not is_slower(race, name)]


def is_slower(race: Race, name: str) -> bool:
    shared = race.shared(name, race.leader)
    if not shared:
        return False
    ratios = [joined(heat[name]) / joined(heat[race.leader]) for heat in shared]
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
    """Return the best candidate: of the candidates within a tie of the smallest estimate, the preferred one."""
    least = min(estimates.values())
    equal = [name for name, value in estimates.items() if value <= TIE * least]
    return min(equal, key=lambda name: preferences[name].key(name))
