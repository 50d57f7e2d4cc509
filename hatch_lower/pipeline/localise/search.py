"""The search for a wrong operation in a partition, by what parts of it compute; it knows no graph and no backend.

Operations are numbers in topological order. A probe lowers some of them together, on eager's own values for all that
they take from outside, and says which of the asked values are wrong. What a probe says is evidence of that program
only, so every answer names operations that a probe has shown to be wrong: one alone, or several together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum

from hatch_lower.frozen import Frozen

# Values that one probe looks at, at most. Fewer where the fault vanishes, as each keeps a backend from fusing what is
# before it with what is behind it, or where the backend refuses the program.
TAPS = (64, 8, 1)

# Lowers operations together and returns which of the asked ones have a wrong value; `None` if the backend refuses them.
Probe = Callable[[frozenset[int], Sequence[int]], frozenset[int] | None]


class ExhaustedError(Exception):
    """No further probe is allowed: as many as there may be were made, or the time is over."""


class Kind(Enum):
    ALONE = "alone"  # it is wrong by itself
    TOGETHER = "together"  # they are wrong when they are lowered together, and none that was tried is by itself
    AMONG = "among"  # it is one of them, or some of them together: nothing smaller could be tried
    UNSEEN = "unseen"  # sub-programs do not show it


class Found(Frozen):
    kind: Kind
    operations: tuple[int, ...]


class Order(Frozen):
    sources: tuple[tuple[int, ...], ...]  # of each, those whose values it takes; all smaller than itself
    comparable: frozenset[int]  # those whose values can be looked at
    views: frozenset[int]  # those that compute nothing; they are looked at when nothing else is left to look at
    # bytes of each value, and of all that one probe may look at
    sizes: tuple[int, ...]
    room: int

    def reach(self, operation: int, stops: Collection[int] = (), within: Collection[int] | None = None) -> list[int]:
        """Return an operation and what it is computed from, but not through `stops`; in order."""
        found = {operation}
        pending = [operation]
        while pending:
            for source in self.sources[pending.pop()]:
                if source not in found and source not in stops and (within is None or source in within):
                    found.add(source)
                    pending.append(source)
        return sorted(found)

    def taps(self, candidates: Sequence[int], most: int) -> tuple[int, ...]:
        """Return some of the candidates, evenly spread, whose values are no more than there is room for."""
        usable = [operation for operation in candidates if operation in self.comparable]
        usable = [operation for operation in usable if operation not in self.views] or usable
        for count in range(min(most, len(usable)), 0, -1):
            step = len(usable) / (count + 1)
            chosen = sorted({usable[min(int(place * step), len(usable) - 1)] for place in range(1, count + 1)})
            if count == 1 or sum(self.sizes[operation] for operation in chosen) <= self.room:
                return tuple(chosen)
        return ()


def find_wrong(order: Order, wrong: int, probe: Probe) -> Found:
    """Return what is wrong, given an operation whose value is wrong when the whole partition is lowered."""
    # First by taps: sub-programs with further outputs narrow what the wrong value can come from. Where the fault
    # vanishes with taps, or when what is left is lowered alone, it needs operations together: then smaller and smaller
    # sub-programs are tried as they are.
    narrowing = Narrowing(order, probe, wrong)
    with suppress(ExhaustedError):
        if not narrowing.by_taps():
            narrowing.by_size()
    return narrowing.found()


def find_refused(order: Order, probe: Probe, cut: Probe, fixed: Collection[int]) -> Found | None:
    """Return the fewest operations that a backend refuses; `None` if that is unknown, or if it refuses everything.

    Both probes call all outputs of a refused program wrong. `probe` lowers operations with those of `fixed` that they
    need, as weights have to be constants; `cut` lowers none but the operations.
    """
    narrowing = Narrowing(order, probe, len(order.sources) - 1)
    try:
        narrowing.by_size()
        found = narrowing.found()
        if found.kind not in (Kind.ALONE, Kind.TOGETHER):
            return None
        needed = {each for operation in found.operations for each in order.reach(operation, within={*fixed, operation})}
        if len(needed) > len(found.operations):
            narrowing = Narrowing(order, cut, max(needed))
            narrowing.by_size(tuple(sorted(needed)))
            found = narrowing.found()
        rest = [operation for operation in range(len(order.sources)) if operation not in found.operations]
        # a backend that refuses everything has another fault than these operations
        return found if not rest or narrowing.is_taken or narrowing.takes(rest) else None
    except ExhaustedError:
        return None


class Narrowing:
    def __init__(self, order: Order, probe: Probe, wrong: int) -> None:
        self._order = order
        self._probe = probe
        self._first = wrong
        self._wrong = wrong  # the earliest value that was seen to be wrong
        self._right: set[int] = set()
        self._context = tuple(range(len(order.sources)))  # what was lowered when it was seen to be
        self._shown: tuple[int, ...] = ()  # the smallest set that was wrong as it is, without taps
        self._vanished = False  # whether a smaller or other program did not show it
        self._refused = False  # whether a backend refused a program without taps
        self.is_taken = False  # whether a program was right
        self._is_unseen = False  # whether all of it was lowered again, and was right

    def by_taps(self) -> bool:
        """Narrow by looking at values in between; return whether one operation is wrong alone."""
        fewer = iter(TAPS)
        most = next(fewer)
        while True:
            region = self._order.reach(self._wrong, self._right)
            taps = self._order.taps(region[:-1], most)
            if not taps:
                return self._shows(region) and len(region) == 1
            if bad := self._probe(frozenset(region), (*taps, self._wrong)):
                self._right.update(tap for tap in taps if tap not in bad)
                self._wrong, self._context = min(bad), tuple(region)
                continue
            self._vanished |= bad is not None
            most = next((count for count in fewer if count < len(taps)), 0)
            if not most:
                return False

    def by_size(self, shown: tuple[int, ...] = ()) -> None:
        """Narrow by leaving operations out: from the beginning, from the end, then from between."""
        # `shown` are operations that are known to be wrong as they are
        self._shown = self._shown or shown
        if not self._shown:
            wider = [
                self._order.reach(self._wrong, within=set(self._context)),
                self._context,
                self._order.reach(self._first),
                range(len(self._order.sources)),
            ]
            if not any(self._shows(operations) for operations in dict.fromkeys(map(tuple, wider))):
                self._is_unseen = not self._refused
                return
        self._cut(lambda whole, middle: whole[middle:])
        self._cut(lambda whole, middle: whole[: len(whole) - middle])
        parts = [self._shown[1:-1]]
        while parts:
            part = parts.pop(0)
            left = [operation for operation in self._shown if operation not in part]
            if part and not self._shows(left) and len(part) > 1:
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]

    def _cut(self, without: Callable[[tuple[int, ...], int], tuple[int, ...]]) -> None:
        whole, low, high = self._shown, 0, len(self._shown)  # `low` operations can be left out; `high` cannot
        while high - low > 1:
            middle = (low + high) // 2
            if self._shows(without(whole, middle)):
                low = middle
            else:
                high = middle

    def _shows(self, operations: Sequence[int]) -> bool:
        """Lower operations as they are; keep them if something that they compute is wrong then."""
        used = {source for operation in operations for source in self._order.sources[operation]}
        ends = [operation for operation in operations if operation not in used and operation in self._order.comparable]
        bad = self._probe(frozenset(operations), ends) if ends else None
        if bad:
            self._shown = tuple(operations)
        self._vanished |= bad is not None and not bad
        self._refused |= bad is None
        self.is_taken |= bad is not None and not bad
        return bool(bad)

    def takes(self, operations: Sequence[int]) -> bool:
        """Return whether a program of some operations is right; what was found is kept."""
        shown = self._shown
        self._shows(operations)
        self._shown = shown
        return self.is_taken

    def found(self) -> Found:
        if self._shown:
            return Found(Kind.ALONE if len(self._shown) == 1 else Kind.TOGETHER, self._shown)
        if self._is_unseen:
            return Found(Kind.UNSEEN, ())
        # of what was lowered when it was last seen, that between values that are right and the one that is wrong
        between = self._order.reach(self._wrong, self._right)
        return Found(Kind.AMONG, self._context if self._vanished else tuple(between))
