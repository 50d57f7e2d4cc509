"""Pairs of equal items in two sequences, found by `difflib`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import Match, SequenceMatcher

MOST_EDITS = 1000  # beyond this number of items without a counterpart the sequences count as different

# A stretch of the first sequence that a stretch of the second sequence replaces; either may be empty
Gap = tuple[range, range]


def align(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return pairs of positions of equal items, in order; `None` beyond `MOST_EDITS` items without a counterpart."""
    shared = (Counter(before) & Counter(after)).total()
    if len(before) + len(after) - 2 * shared > MOST_EDITS:
        return None
    begin = equal_items(before, after)  # difflib is slow where many items are equal: most graphs differ in few places
    end = equal_items(before[begin:][::-1], after[begin:][::-1])
    inner = before[begin : len(before) - end], after[begin : len(after) - end]
    blocks = SequenceMatcher(None, *inner, autojunk=False).get_matching_blocks()
    blocks = [Match(0, 0, begin), *(Match(begin + a, begin + b, size) for a, b, size in blocks)]
    blocks.append(Match(len(before) - end, len(after) - end, end))
    pairs = [(left + at, right + at) for left, right, size in blocks for at in range(size)]
    return pairs if len(before) + len(after) - 2 * len(pairs) <= MOST_EDITS else None


def equal_items(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of equal items at the beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(first), len(second)))


def gaps(pairs: Sequence[tuple[int, int]], rows: int, columns: int) -> list[Gap]:
    stretches = []
    row, column = 0, 0
    for left, right in [*pairs, (rows, columns)]:
        if left > row or right > column:
            stretches.append((range(row, left), range(column, right)))
        row, column = left + 1, right + 1
    return stretches
