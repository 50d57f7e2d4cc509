"""Differences between the operators of two graphs.

An edit of an operator moves the positions of all later operators. So operators are aligned without their edges first,
and edges are compared only if all operators are equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hatch_lower.driver.diff.align import align, gaps
from hatch_lower.driver.diff.words import change_text, literal_text, operator_text, value_change

ABSENT = "default"
CHECK = "aten._assert"  # prefix of torch's own checks
Names = Mapping[str, Sequence[str]]  # operator to the names of its arguments


@dataclass(frozen=True, slots=True)
class Operator:
    """A node that computes, or that holds a constant or a nested graph."""

    position: int
    name: str
    source: str  # its source line, or empty
    token: str  # equal for aligned operators: without edges, results and nested graphs
    arguments: Mapping[str, object] = field(default_factory=dict)
    value: object = None  # its result: dtype, shape, strides, device
    content: Any = None  # `["graph", rows]` or `["tensor", digest]`

    def line(self, text: str, *, was: bool = False) -> str:
        return f"{text} ({'was ' if was else ''}{self.source})" if self.source else text


def operators_of(rows: Sequence[Any], sources: Sequence[str], names: Names) -> list[Operator]:
    operators = []
    for position, row in enumerate(rows):
        source = sources[position] if position < len(sources) else ""
        match row:
            case ["placeholder" | "output", *_]:
                continue
            case ["attribute", ["graph", _] as content]:
                # nested graphs are always aligned, and compared separately
                operators.append(Operator(position, "a nested graph", source, "graph", content=content))
            case ["attribute", content]:
                token = json.dumps(row)
                operators.append(Operator(position, "a constant in the code", source, token, content=content))
            case [_, target, listed, named, value]:
                known = names.get(target, ())
                given = {known[at] if at < len(known) else f"argument {at}": part for at, part in enumerate(listed[1])}
                token = json.dumps([target, without_edges(listed), without_edges(named)], sort_keys=True)
                operators.append(Operator(position, operator_text(target), source, token, {**given, **named}, value))
    return operators


class Comparison:
    """Two graphs with aligned operators; the operators of a pair may differ in edges only."""

    def __init__(
        self,
        before: Sequence[object],
        after: Sequence[Any],
        sources_before: Sequence[str] = (),
        sources_after: Sequence[str] = (),
        names: Names | None = None,
    ) -> None:
        self._rows, self._names = (before, after), names or {}
        self._before = operators_of(before, sources_before, self._names)
        self._after = operators_of(after, sources_after, self._names)
        tokens = ([operator.token for operator in side] for side in (self._before, self._after))
        self._aligned = align(*tokens)
        self._pairs = [(self._before[left], self._after[right]) for left, right in self._aligned or ()]

    def positions(self) -> list[tuple[int, int]]:
        return [(before.position, after.position) for before, after in self._pairs]

    def operator_lines(self) -> tuple[list[str], list[str]]:
        """Return a line for each changed, added or removed operator, and separately the lines for torch's checks."""
        # Unaligned operators count as changed if their names are equal, and as replaced if both sides have equally many
        if self._aligned is None:
            return [self._summary()], []
        lines = [("", line) for before, after in self._pairs for line in self._nested_lines(before, after)]
        for first, second in gaps(self._aligned, len(self._before), len(self._after)):
            lines += gap_lines(self._before[first.start : first.stop], self._after[second.start : second.stop])
        checks = [line for name, line in lines if name.startswith(CHECK)]
        return [line for name, line in lines if not name.startswith(CHECK)], checks

    def edge_lines(self, placeholders: Sequence[tuple[int, int]]) -> Iterator[str]:
        moved = dict([*self.positions(), *placeholders])
        for before, after in self._pairs:
            others = [
                name
                for name, value in before.arguments.items()
                if [moved.get(at) for at in edges(value)] != edges(after.arguments[name])
            ]
            if others:
                yield after.line(f"{after.name} takes another value as {', '.join(others)}")

    def value_lines(self) -> Iterator[str]:
        for before, after in self._pairs:
            if before.value != after.value:
                yield after.line(f"{after.name} gives {value_change(before.value, after.value)}")

    def _nested_lines(self, before: Operator, after: Operator) -> Iterator[str]:
        if before.content == after.content:
            return
        nested = Comparison(before.content[1], after.content[1], names=self._names)
        operators, checks = nested.operator_lines()
        lines = operators or checks or list(nested.edge_lines(nested.placeholders())) or list(nested.value_lines())
        yield from (f"in a nested graph: {line}" for line in lines)

    def placeholders(self) -> list[tuple[int, int]]:
        places = ([at for at, row in enumerate(rows) if row[0] == "placeholder"] for rows in self._rows)
        return list(zip(*places))  # noqa: B905 - a graph may have an additional input

    def _summary(self) -> str:
        old, new = (Counter(operator.name for operator in side) for side in (self._before, self._after))
        names = sorted({*old, *new}, key=lambda name: (-abs(old[name] - new[name]), name))
        changed = [f", {name} {old[name]:,} → {new[name]:,}" for name in names[:4] if old[name] != new[name]]
        return f"another graph: operators {len(self._before):,} → {len(self._after):,}{''.join(changed)}"


def gap_lines(removed: Sequence[Operator], added: Sequence[Operator]) -> Iterator[tuple[str, str]]:
    same = align([operator.name for operator in removed], [operator.name for operator in added]) or []
    for left, right in same:
        after = added[right]
        yield after.name, after.line(f"{after.name} {', '.join(argument_changes(removed[left], after))}")
    for first, second in gaps(same, len(removed), len(added)):
        before, behind = removed[first.start : first.stop], added[second.start : second.stop]
        if len(before) == len(behind):
            for old, new in zip(before, behind, strict=True):
                yield new.name, new.line(change_text(old.name, new.name))
        else:
            yield from ((old.name, old.line(f"{old.name} removed", was=True)) for old in before)
            yield from ((new.name, new.line(f"{new.name} added")) for new in behind)


def argument_changes(before: Operator, after: Operator) -> Iterator[str]:
    if before.content is not None:
        yield "with other contents"
    old, new = before.arguments, after.arguments
    for name in {**old, **new}:
        if without_edges(old.get(name, ABSENT)) != without_edges(new.get(name, ABSENT)):
            left, right = (literal_text(side[name]) if name in side else ABSENT for side in (old, new))
            yield f"{name} {change_text(left, right)}"


def without_edges(value: object) -> object:
    """Return an argument without positions of nodes and example sizes."""
    if isinstance(value, dict):
        return {key: without_edges(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if value and value[0] == "node":
        return ["node"]
    return value[:2] if value and value[0] == "symbolic" else [without_edges(part) for part in value]


def edges(value: object) -> list[int]:
    if not isinstance(value, list):
        return []
    if value and value[0] == "node":
        return [value[1]]
    return [position for part in value for position in edges(part)]
