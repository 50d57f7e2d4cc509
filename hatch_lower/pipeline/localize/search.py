"""The search for a wrong operation in a partition, by the results of its parts, independent of graphs and backends.

Operations are numbers in topological order. A probe lowers some operations together, with eager's own values as inputs
from outside, and reports which of the requested values are wrong. A probe is evidence for its own program only. So
every result names operations that a probe has shown to be wrong: a single operation, or several together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum

from hatch_lower.frozen import Frozen

# Limits of the values that a probe compares. A smaller limit follows if the fault vanishes, as each compared value
# keeps a backend from fusing the operations before and after, or if the backend refuses the program.
TAPS = (64, 8, 1)

# Lowers operations together and returns the requested operations whose values are wrong; `None` if the backend refuses.
Probe = Callable[[frozenset[int], Sequence[int]], frozenset[int] | None]


class ExhaustedError(Exception):
    """No further probe is allowed: the limit of lowerings is reached, or the time is over."""


class FoundKind(Enum):
    ALONE = "alone"  # a single operation is wrong
    TOGETHER = "together"  # the operations are wrong when lowered together; each operation tried alone is right
    AMONG = "among"  # some of the operations are wrong: no smaller set could be tried
    UNSEEN = "unseen"  # sub-programs do not show the fault


class FoundOperations(Frozen):
    kind: FoundKind
    operations: tuple[int, ...]


class Order(Frozen):
    sources: tuple[tuple[int, ...], ...]  # operation to the earlier operations whose values it takes
    comparable: frozenset[int]  # operations whose values can be compared
    views: frozenset[int]  # operations without computation, compared only if no other operation is left
    # bytes of each operation's values, and the limit of bytes that a probe compares
    sizes: tuple[int, ...]
    room: int

    def reach(self, operation: int, stops: Collection[int] = (), within: Collection[int] | None = None) -> list[int]:
        """Return an operation and its transitive sources, without `stops` and their sources; in order."""
        found = {operation}
        pending = [operation]
        while pending:
            for source in self.sources[pending.pop()]:
                if source not in found and source not in stops and (within is None or source in within):
                    found.add(source)
                    pending.append(source)
        return sorted(found)

    def taps(self, candidates: Sequence[int], most: int) -> tuple[int, ...]:
        """Return evenly spread candidates whose values fit into the limit of bytes."""
        usable = [operation for operation in candidates if operation in self.comparable]
        usable = [operation for operation in usable if operation not in self.views] or usable
        for count in range(min(most, len(usable)), 0, -1):
            step = len(usable) / (count + 1)
            chosen = sorted({usable[min(int(place * step), len(usable) - 1)] for place in range(1, count + 1)})
            if count == 1 or sum(self.sizes[operation] for operation in chosen) <= self.room:
                return tuple(chosen)
        return ()


def find_wrong(order: Order, wrong: int, probe: Probe) -> FoundOperations:
    """Return the wrong operations, given an operation whose value is wrong when the whole partition is lowered."""
    # First by taps: sub-programs with additional outputs narrow the possible sources of the wrong value. If the fault
    # vanishes with taps, or with the remaining operations alone, the fault needs several operations together: then
    # smaller and smaller sub-programs are tried without taps.
    narrowing = Narrowing(order, probe, wrong)
    with suppress(ExhaustedError):
        if not narrowing.by_taps():
            narrowing.by_size()
    return narrowing.found()


def find_refused(order: Order, probe: Probe, cut: Probe, fixed: Collection[int]) -> FoundOperations | None:
    """Return the fewest operations that a backend refuses; `None` if unknown, or if the backend refuses every program.

    Both probes report all outputs of a refused program as wrong. `probe` lowers operations together with the needed
    operations of `fixed`, as weights must be constants; `cut` lowers the given operations only.
    """
    narrowing = Narrowing(order, probe, len(order.sources) - 1)
    try:
        narrowing.by_size()
        found = narrowing.found()
        if found.kind not in (FoundKind.ALONE, FoundKind.TOGETHER):
            return None
        needed = {each for operation in found.operations for each in order.reach(operation, within={*fixed, operation})}
        if len(needed) > len(found.operations):
            narrowing = Narrowing(order, cut, max(needed))
            narrowing.by_size(tuple(sorted(needed)))
            found = narrowing.found()
        rest = [operation for operation in range(len(order.sources)) if operation not in found.operations]
        # if a backend refuses every program, the operations are not at fault
        return found if not rest or narrowing.is_taken or narrowing.takes(rest) else None
    except ExhaustedError:
        return None


class Narrowing:
    def __init__(self, order: Order, probe: Probe, wrong: int) -> None:
        self._order = order
        self._probe = probe
        self._first = wrong
        self._wrong = wrong  # the earliest value known to be wrong
        self._right: set[int] = set()
        self._context = tuple(range(len(order.sources)))  # operations of the program that showed `_wrong`
        self._shown: tuple[int, ...] = ()  # the smallest wrong set without taps
        self._vanished = False  # whether another program did not show the fault
        self._refused = False  # whether a backend refused a program without taps
        self.is_taken = False  # whether a program was right
        self._is_unseen = False  # whether the whole partition, lowered again, was right

    def by_taps(self) -> bool:
        """Narrow by comparing intermediate values; return whether a single operation is wrong alone."""
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
        """Narrow by leaving operations out: at the beginning, at the end, then in the middle."""
        # `shown` are operations known to be wrong without taps
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
        """Lower operations without taps; keep the set and return True if a result is wrong."""
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
        """Return whether a program of the given operations is right; the smallest wrong set so far stays."""
        shown = self._shown
        self._shows(operations)
        self._shown = shown
        return self.is_taken

    def found(self) -> FoundOperations:
        if self._shown:
            return FoundOperations(FoundKind.ALONE if len(self._shown) == 1 else FoundKind.TOGETHER, self._shown)
        if self._is_unseen:
            return FoundOperations(FoundKind.UNSEEN, ())
        # the operations between right values and the wrong value
        between = self._order.reach(self._wrong, self._right)
        return FoundOperations(FoundKind.AMONG, self._context if self._vanished else tuple(between))
