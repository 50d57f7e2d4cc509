"""Aligning two sequences: the shortest edit script of Myers, which is fast where little has changed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MOST_EDITS = 1000  # beyond this the sequences count as different: time and memory grow with its square

# A stretch of the first sequence that a stretch of the second one replaces; either may be empty
Gap = tuple[range, range]


def align(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return the pairs of positions at which two sequences are equal, in order; `None` beyond `MOST_EDITS` others."""
    begin, end = 0, 0
    shorter = min(len(before), len(after))
    while begin < shorter and before[begin] == after[begin]:
        begin += 1
    while end < shorter - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    inner = middle_pairs(before[begin : len(before) - end], after[begin : len(after) - end])
    if inner is None:
        return None
    head = [(at, at) for at in range(begin)]
    tail = [(len(before) - at, len(after) - at) for at in range(end, 0, -1)]
    return [*head, *((begin + left, begin + right) for left, right in inner), *tail]


def middle_pairs(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return the pairs of a shortest edit script, found by growing the number of edits from 0."""
    rows, columns = len(before), len(after)
    limit = min(rows + columns, MOST_EDITS)
    # the furthest position in `before` on each diagonal with so many edits; earlier ones are kept, to walk back
    reached = array("q", [0]) * (2 * limit + 3)
    kept = []
    for edits in range(limit + 1):
        kept.append(reached[limit - edits : limit + edits + 3])
        for diagonal in range(-edits, edits + 1, 2):
            at = diagonal + limit + 1
            down = diagonal == -edits or (diagonal != edits and reached[at - 1] < reached[at + 1])
            row = reached[at + 1] if down else reached[at - 1] + 1
            column = row - diagonal
            while row < rows and column < columns and before[row] == after[column]:
                row, column = row + 1, column + 1
            reached[at] = row
            if row >= rows and column >= columns:
                return walk_back(kept, rows, columns)
    return None


def walk_back(kept: Sequence[Sequence[int]], rows: int, columns: int) -> list[tuple[int, int]]:
    pairs = []
    row, column = rows, columns
    for edits in range(len(kept) - 1, -1, -1):
        reached, diagonal = kept[edits], row - column
        at = diagonal + edits + 1
        down = diagonal == -edits or (diagonal != edits and reached[at - 1] < reached[at + 1])
        begin_row = reached[at + 1] if down else reached[at - 1] + 1
        begin_column = begin_row - diagonal
        while row > begin_row and column > begin_column:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        row, column = (begin_row, begin_column - 1) if down else (begin_row - 1, begin_column)
    return pairs[::-1]


def gaps(pairs: Sequence[tuple[int, int]], rows: int, columns: int) -> list[Gap]:
    stretches = []
    row, column = 0, 0
    for left, right in [*pairs, (rows, columns)]:
        if left > row or right > column:
            stretches.append((range(row, left), range(column, right)))
        row, column = left + 1, right + 1
    return stretches
