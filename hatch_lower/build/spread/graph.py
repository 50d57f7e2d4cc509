"""Units and what each waits for: which one is next is a question of the longest chain that waits for it.

```text
  ┌──── to be tried again ────┐   several times: given up
  ▼                           │
ready ───── submitted ────► running ── made ──► made
  ▲                           │
  └── all are made ── waiting ◄── needs other units
```
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Work:
    """What is known of a unit. There may be thousands."""

    key: str  # units with equal keys are one
    name: str
    seconds: float | None = None  # that it will take; `None` if nobody knows
    group: str = ""  # a worker that refuses one unit of a group refuses all


@dataclass(slots=True, eq=False)
class State:
    work: Work
    seconds: float
    chain: float  # seconds from its beginning to the end of the longest chain of units that wait for it
    stage: Literal["waiting", "ready", "running", "made", "given up"] = "ready"
    needs: list[State] = field(default_factory=list)  # units that it waits for
    missing: int = 0  # how many of them are not made
    dependents: list[State] = field(default_factory=list)
    attempt: int = 0  # what earlier attempts bring counts no more
    began: float = 0.0
    lost: int = 0
    wrong: int = 0
    refused_again: int = 0
    avoid: frozenset[str] = frozenset()  # workers that have lost it, or answered wrongly

    @property
    def over(self) -> bool:
        return self.stage in ("made", "given up")


class UnitGraph:
    """Units by key. Time and memory are linear in units and dependencies."""

    def __init__(self, works: Iterable[Work]) -> None:
        self.states: dict[str, State] = {}
        self.made = 0
        self.over = 0
        self.left = 0.0  # seconds of the units that are not over, as estimated
        self.estimates = 0
        self._estimated = 0.0
        self._ready: list[tuple[float, int, State]] = []  # a heap; a unit whose chain grew is in it twice
        self._order = itertools.count()
        self._add(works)

    def need(self, state: State, works: Sequence[Work]) -> bool:
        """Let a unit wait for others, known ones and new ones; return whether it can: not if they wait for it."""
        self._add(works)
        others = [self.states[key] for key in dict.fromkeys(work.key for work in works)]
        if any(other.stage == "given up" for other in others):
            return False
        waited = [other for other in others if not other.over]
        if not self._lengthen([(other, state.chain + other.seconds) for other in waited], state):
            return False
        state.stage = "waiting"
        state.needs = waited
        for other in waited:
            other.dependents.append(state)
        state.missing = len(waited)
        if not waited:
            self.make_ready(state)
        return True

    def make_ready(self, state: State) -> None:
        state.stage = "ready"
        self._push(state)

    def next_ready(self) -> State | None:
        """Return the unit that is ready and has the longest chain; it is no longer among those that are ready."""
        while self._ready:
            chain, _, state = heapq.heappop(self._ready)
            if state.stage == "ready" and -chain == state.chain:
                return state
        return None

    def longest_ready(self) -> float:
        return -self._ready[0][0] if self._ready else 0.0

    def end(self, state: State, stage: Literal["made", "given up"]) -> list[State]:
        """Note that a unit is over; return the units that waited for it."""
        dependents, state.dependents = state.dependents, []
        state.stage = stage
        self.over += 1
        self.left -= state.seconds
        if stage == "made":
            self.made += 1
            for other in dependents:
                other.missing -= 1
                if not other.missing and other.stage == "waiting":
                    self.make_ready(other)
        return dependents

    def _add(self, works: Iterable[Work]) -> None:
        new = {work.key: work for work in works if work.key not in self.states}
        known = [work.seconds for work in new.values() if work.seconds is not None]
        self.estimates += len(known)
        self._estimated += sum(known)
        # what nobody knows is taken to be as long as the others are on average
        usual = self._estimated / self.estimates if self.estimates else 1.0
        for work in new.values():
            seconds = usual if work.seconds is None else work.seconds
            self.states[work.key] = state = State(work, seconds, seconds)
            self.left += seconds
            self._push(state)

    def _lengthen(self, chains: list[tuple[State, float]], waiting: State) -> bool:
        """Make chains longer, and those of what is waited for; return whether `waiting` is not among it."""
        while chains:
            state, chain = chains.pop()
            if state is waiting:
                return False
            if chain > state.chain:
                state.chain = chain
                if state.stage == "ready":
                    self._push(state)
                chains += [(other, chain + other.seconds) for other in state.needs if not other.over]
        return True

    def _push(self, state: State) -> None:
        heapq.heappush(self._ready, (-state.chain, next(self._order), state))
