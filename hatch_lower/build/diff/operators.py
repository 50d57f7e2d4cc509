"""What differs between the operators of two graphs.

An edit of one operator moves the positions of all later ones; so operators are aligned first, without their edges, and
edges only speak where no operator does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower.build.diff.align import align, gaps
from hatch_lower.build.diff.words import change_text, literal_text, operator_text, value_change

GRAPH = "graph"
"""What stands for a nested graph when operators are aligned: it is compared by itself."""
ABSENT = "default"
Pairs = list[tuple[int, int]]


class Comparison:
    """Two graphs with their operators aligned; `pairs` are those that are equal but for edges."""

    def __init__(
        self,
        before: Sequence[Any],
        after: Sequence[Any],
        old_sources: Sequence[str],
        sources: Sequence[str],
        arguments: Mapping[str, Sequence[str]],
    ) -> None:
        self._rows, self._sources = (before, after), (old_sources, sources)
        self._arguments = arguments
        self._ours = tuple([at for at, row in enumerate(rows) if is_operator(row)] for rows in self._rows)
        old, new = self._ours
        found = align([token(before[at]) for at in old], [token(after[at]) for at in new])
        self._aligned = found
        self.pairs: Pairs = [(old[left], new[right]) for left, right in found or ()]

    def operator_lines(self) -> tuple[list[str], list[str]]:
        """Return a line for each operator that was changed, added or removed, and apart those for torch's own checks.

        Operators left over between aligned ones count as changed if they are the same operator, as replaced if there
        are as many on both sides.
        """
        if self._aligned is None:
            return [self._summary()], []
        old, new = self._ours
        lines: list[tuple[str, str]] = []
        for left, right in self.pairs:
            lines += (("", line) for line in self._nested(left, right))
        for first, second in gaps(self._aligned, len(old), len(new)):
            removed, added = [old[at] for at in first], [new[at] for at in second]
            lines += self._gap_lines(removed, added)
        checks = [line for name, line in lines if name.startswith("aten._assert")]
        return [line for name, line in lines if not name.startswith("aten._assert")], checks

    def _gap_lines(self, removed: list[int], added: list[int]) -> Iterator[tuple[str, str]]:
        before, after = self._rows
        same = align([name_of(before[at]) for at in removed], [name_of(after[at]) for at in added]) or []
        for left, right in same:
            row = after[added[right]]
            parts = ", ".join(self._argument_changes(before[removed[left]], row))
            yield name_of(row), f"{name_of(row)} {parts}{self._place(1, added[right])}"
        for first, second in gaps(same, len(removed), len(added)):
            if len(first) == len(second):
                for left, right in zip(first, second, strict=True):
                    name = name_of(after[added[right]])
                    line = change_text(name_of(before[removed[left]]), name)
                    yield name, f"{line}{self._place(1, added[right])}"
                continue
            for left in first:
                name = name_of(before[removed[left]])
                yield name, f"{name} removed{self._place(0, removed[left])}"
            for right in second:
                name = name_of(after[added[right]])
                yield name, f"{name} added{self._place(1, added[right])}"

    def _argument_changes(self, before: Any, after: Any) -> Iterator[str]:
        if before[0] == "attribute":
            yield "with other contents"
            return
        old, new = self._named(before), self._named(after)
        for name in {**old, **new}:
            left, right = (literal_text(each[name]) if name in each else ABSENT for each in (old, new))
            if without_edges(old.get(name, ABSENT)) != without_edges(new.get(name, ABSENT)):
                yield f"{name} {change_text(left, right)}"

    def _named(self, row: Any) -> dict[str, Any]:
        """Return an operator's arguments by name, or by position where the name is not known."""
        names = self._arguments.get(row[1], ())
        given = enumerate(row[2][1])
        return {**{names[at] if at < len(names) else f"argument {at}": each for at, each in given}, **row[3]}

    def _nested(self, left: int, right: int) -> Iterator[str]:
        before, after = self._rows[0][left], self._rows[1][right]
        if before[0] != "attribute" or before == after:
            return
        nested = Comparison(before[1][1], after[1][1], (), (), self._arguments)
        operators, checks = nested.operator_lines()
        lines = operators or checks or list(nested.edge_lines(nested.placeholder_pairs())) or list(nested.value_lines())
        yield from (f"in a nested graph: {line}" for line in lines)

    def placeholder_pairs(self) -> Pairs:
        places = ([at for at, row in enumerate(rows) if row[0] == "placeholder"] for rows in self._rows)
        return list(zip(*places))  # noqa: B905 - a graph may take one value more

    def edge_lines(self, placeholders: Pairs) -> Iterator[str]:
        """Yield a line for each operator that takes other values than before."""
        moved = dict([*self.pairs, *placeholders])
        for left, right in self.pairs:
            before, after = self._rows[0][left], self._rows[1][right]
            if before[0] == "attribute":
                continue
            old, new = self._named(before), self._named(after)
            others = [name for name in old if [moved.get(at) for at in edges(old[name])] != edges(new[name])]
            if others:
                yield f"{name_of(after)} takes another value as {', '.join(others)}{self._place(1, right)}"

    def value_lines(self) -> Iterator[str]:
        """Yield a line for each operator whose result has another type, shape or layout."""
        for left, right in self.pairs:
            before, after = self._rows[0][left], self._rows[1][right]
            if before[0] != "attribute" and before[4] != after[4]:
                yield f"{name_of(after)} gives {value_change(before[4], after[4])}{self._place(1, right)}"

    def _summary(self) -> str:
        old, new = (
            Counter(name_of(rows[at]) for at in ours) for rows, ours in zip(self._rows, self._ours, strict=True)
        )
        names = sorted({*old, *new}, key=lambda name: (-abs(old[name] - new[name]), name))
        changed = [f"{name} {old[name]:,} → {new[name]:,}" for name in names[:4] if old[name] != new[name]]
        counts = change_text(*(f"{len(ours):,}" for ours in self._ours))
        return f"another graph: operators {counts}{', ' if changed else ''}{', '.join(changed)}"

    def _place(self, side: int, position: int) -> str:
        sources = self._sources[side]
        source = sources[position] if position < len(sources) else ""
        return f" ({'' if side else 'was '}{source})" if source else ""


def is_operator(row: Any) -> bool:
    return row[0] not in ("placeholder", "output")


def name_of(row: Any) -> str:
    if row[0] == "attribute":
        return "a nested graph" if row[1][0] == GRAPH else "a constant in the code"
    return operator_text(row[1])


def token(row: Any) -> str:
    """Return what makes two operators equal when they are aligned: everything but edges, results and nested graphs."""
    if row[0] == "attribute":
        return GRAPH if row[1][0] == GRAPH else json.dumps(row)
    return json.dumps([row[1], without_edges(row[2]), without_edges(row[3])], sort_keys=True)


def without_edges(value: Any) -> Any:
    """Return an argument without the positions of nodes and the example's sizes in it."""
    if isinstance(value, dict):
        return {key: without_edges(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    if value and value[0] == "node":
        return ["node"]
    return value[:2] if value and value[0] == "symbolic" else [without_edges(each) for each in value]


def edges(value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    if value and value[0] == "node":
        return [value[1]]
    return [found for each in value for found in edges(each)]
