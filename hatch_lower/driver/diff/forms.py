"""Differences between two exported graphs, in words, the most important first.

Canonical forms are compared, so renamed values and moved lines make no difference.

An edit of an operator moves the positions of all later operators. So operators are aligned without their edges first,
and edges are compared only if all operators are equal.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import Match, SequenceMatcher
from typing import Any

from hatch_lower.driver.diff.words import (
    change_text,
    literal_words,
    operator_text,
    range_text,
    value_change,
    value_words,
)
from hatch_lower.frozen import Frozen

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


ABSENT = "default"
CHECK = "aten._assert"  # prefix of torch's own checks
Names = Mapping[str, Sequence[str]]  # operator to the names of its arguments
Nodes = tuple[Sequence[Any], Sequence[str]]  # a row for each node, and its source line, or empty


@dataclass(frozen=True, slots=True)
class GraphOperator:
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


def operators_of(rows: Sequence[Any], sources: Sequence[str], names: Names) -> list[GraphOperator]:
    operators = []
    for position, row in enumerate(rows):
        source = sources[position] if position < len(sources) else ""
        match row:
            case ["placeholder" | "output", *_]:
                continue
            case ["attribute", ["graph", _] as content]:
                # nested graphs are always aligned, and compared separately
                operators.append(GraphOperator(position, "a nested graph", source, "graph", content=content))
            case ["attribute", content]:
                token = json.dumps(row)
                operators.append(GraphOperator(position, "a constant in the code", source, token, content=content))
            case [_, target, listed, named, value]:
                known = names.get(target, ())
                given = {known[at] if at < len(known) else f"argument {at}": part for at, part in enumerate(listed[1])}
                token = json.dumps([target, without_edges(listed), without_edges(named)], sort_keys=True)
                operators.append(
                    GraphOperator(position, operator_text(target), source, token, {**given, **named}, value)
                )
    return operators


class OperatorComparison:
    """Two graphs with aligned operators; the operators of a pair may differ in edges only."""

    def __init__(self, before: Nodes, after: Nodes, names: Names) -> None:
        self._rows, self._names = (before[0], after[0]), names
        self._before, self._after = (operators_of(*nodes, names) for nodes in (before, after))
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

    def _nested_lines(self, before: GraphOperator, after: GraphOperator) -> Iterator[str]:
        if before.content == after.content:
            return
        nested = OperatorComparison((before.content[1], ()), (after.content[1], ()), self._names)
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


def gap_lines(removed: Sequence[GraphOperator], added: Sequence[GraphOperator]) -> Iterator[tuple[str, str]]:
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


def argument_changes(before: GraphOperator, after: GraphOperator) -> Iterator[str]:
    if before.content is not None:
        yield "with other contents"
    old, new = before.arguments, after.arguments
    for name in {**old, **new}:
        if without_edges(old.get(name, ABSENT)) != without_edges(new.get(name, ABSENT)):
            left, right = (literal_words(side[name]) if name in side else ABSENT for side in (old, new))
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


LARGEST_FORM = 1 << 28  # bytes of JSON of a stored form; the largest known graphs have a tenth
CONSTANT_KINDS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")
# Columns of a constant's row, after kind, dtype, shape, strides, group of overlap, offset
MUTATED, PERSISTENT = 6, 7


class Form(Frozen):
    """An exported method's canonical form, with source lines and names for readers."""

    graph: Sequence[Any]  # rows of the nodes
    inputs: Sequence[Any]  # a row for each placeholder
    outputs: Sequence[Any]  # a row for each output
    symbols: Sequence[object]  # names and ranges
    sources: Sequence[str] = ()  # for each node `digits/model.py:31`, or empty
    names: Sequence[str] = ()  # of the placeholders, in the source: `image`, `net.linear.weight`
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)  # operator to the names of its arguments


def read_form(data: bytes) -> Form | None:
    try:
        stream = zlib.decompressobj()
        value = json.loads(stream.decompress(data, LARGEST_FORM))
        beside = {name: value[name] for name in ("sources", "names", "arguments") if name in value}
        return Form(**value["form"], **beside)
    except (zlib.error, ValueError, KeyError, TypeError):
        return None


def differences(before: Form, after: Form) -> list[str]:
    """Return a line for each difference, the most important first; equal lines once."""
    (old_inputs, old_constants), (inputs, constants) = read_placeholders(before), read_placeholders(after)
    same_inputs, same_constants = pair_inputs(old_inputs, inputs), pair_constants(old_constants, constants)
    places = [(left.position, right.position) for left, right in [*same_inputs, *same_constants]]
    names = after.arguments or before.arguments
    compared = OperatorComparison((before.graph, before.sources), (after.graph, after.sources), names)
    operators, checks = compared.operator_lines()
    lines = [*change_lines(old_inputs, inputs, same_inputs), *range_lines(before.symbols, after.symbols), *operators]
    lines += [*change_lines(old_constants, constants, same_constants), *checks]
    lines += output_lines(before, after, [*compared.positions(), *places], alone=not operators)
    lines = lines or list(compared.edge_lines(places)) or list(compared.value_lines())
    return [line if times == 1 else f"{line}, {times} times" for line, times in Counter(lines).items()]


def range_lines(before: Sequence[Any], after: Sequence[Any]) -> Iterator[str]:
    old = dict(before)
    for name, bounds in after:
        if name in old and old[name] != bounds:
            yield f"size {name}: {change_text(range_text(old[name]), range_text(bounds))}"
    if len(before) != len(after):
        yield f"dynamic sizes {change_text(str(len(before)), str(len(after)))}"


def output_lines(before: Form, after: Form, pairs: Sequence[tuple[int, int]], *, alone: bool) -> Iterator[str]:
    # `alone`: no operator differs, so another output is no consequence of another operator
    moved = dict(pairs)
    old = [[kind, follow_node(value, moved)] for kind, value, _ in before.outputs]
    new = [[kind, value] for kind, value, _ in after.outputs]
    if len(old) != len(new):
        yield f"outputs {change_text(str(len(old)), str(len(new)))}"
    elif old != new and sorted(map(json.dumps, old)) == sorted(map(json.dumps, new)):
        yield "outputs in another order"
    elif old != new and alone:
        for at, (left, right) in enumerate(zip(old, new, strict=True)):
            if left != right:
                yield f"output {at} is {'written to an input' if left[1] == right[1] else 'another value'}"


def follow_node(value: object, moved: Mapping[int, int]) -> object:
    return ["node", moved.get(value[1])] if isinstance(value, list) and value[0] == "node" else value


# inputs and constants


@dataclass(frozen=True, slots=True)
class Placeholder:
    position: int
    title: str  # `input x`, or `input 0` if the name is unknown
    name: str  # in the source; empty if unknown
    row: list[object]  # its kind, and a constant's layout in memory
    value: object  # dtype, shape, strides, device


Matches = list[tuple[Placeholder, Placeholder]]


def read_placeholders(form: Form) -> tuple[list[Placeholder], list[Placeholder]]:
    """Return the inputs and the constants."""
    rows = [(at, row) for at, row in enumerate(form.graph) if row[0] == "placeholder"]
    names = form.names if len(form.names) == len(rows) else [""] * len(rows)
    inputs: list[Placeholder] = []
    constants: list[Placeholder] = []
    for (at, row), name, spec in zip(rows, names, form.inputs, strict=True):
        kind, listed = ("input", inputs) if spec[0] == "USER_INPUT" else ("constant", constants)
        listed.append(Placeholder(at, f"{kind} {name or len(listed)}", name, spec, row[4]))
    return inputs, constants


def pair_inputs(before: Sequence[Placeholder], after: Sequence[Placeholder]) -> Matches:
    """Return pairs of corresponding inputs: by position, or by name if their number has changed."""
    if len(before) == len(after) or not all(placeholder.name for placeholder in (*before, *after)):
        return list(zip(before, after))  # noqa: B905 - the rest was added or removed
    return placeholders_by_name(before, after)


def pair_constants(before: Sequence[Placeholder], after: Sequence[Placeholder]) -> Matches:
    """Return pairs of corresponding constants: by name, then by equal kind, dtype and shape, in order."""
    pairs = placeholders_by_name(before, after)
    seen = {id(placeholder) for pair in pairs for placeholder in pair}
    old, new = ([constant for constant in side if id(constant) not in seen] for side in (before, after))
    looks = ([json.dumps(constant.row[:3]) for constant in side] for side in (old, new))
    same = align(*looks) or []
    return pairs + [(old[left], new[right]) for left, right in same]


def placeholders_by_name(before: Sequence[Placeholder], after: Sequence[Placeholder]) -> Matches:
    named = {placeholder.name: placeholder for placeholder in before if placeholder.name}
    return [(named[placeholder.name], placeholder) for placeholder in after if placeholder.name in named]


def change_lines(before: Sequence[Placeholder], after: Sequence[Placeholder], pairs: Matches) -> Iterator[str]:
    paired = {id(placeholder) for pair in pairs for placeholder in pair}
    for left, right in pairs:
        for text in pair_changes(left, right, moved=len(before) != len(after)):
            yield f"{right.title}: {text}"
    for verb, side in (("removed", before), ("added", after)):
        for placeholder in side:
            if id(placeholder) not in paired:
                yield f"{placeholder.title} {verb}: {value_words(placeholder.value)}"


def pair_changes(left: Placeholder, right: Placeholder, *, moved: bool) -> Iterator[str]:
    # `moved`: groups of overlapping constants have other numbers
    if left.value != right.value:
        yield value_change(left.value, right.value)
    old, new = left.row, right.row
    if old[0] != new[0]:
        yield change_text(*(str(row[0]).lower().replace("_", " ") for row in (old, new)))
    elif old[0] not in CONSTANT_KINDS:
        if old != new:
            yield "another value"
    elif old[MUTATED] != new[MUTATED]:
        yield "a call changes it now" if new[MUTATED] else "no call changes it any more"
    elif old[PERSISTENT] != new[PERSISTENT]:
        yield "in the state dict now" if new[PERSISTENT] else "no longer in the state dict"
    elif left.value == right.value and old != new and not moved:
        yield "lies otherwise in memory"
