"""Differences between two exported graphs, in words, the most important first.

Canonical forms are compared, so renamed values and moved lines make no difference.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hatch_lower.driver.diff.align import align
from hatch_lower.driver.diff.operators import Comparison
from hatch_lower.driver.diff.words import change_text, range_text, value_change, value_text
from hatch_lower.frozen import Frozen

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
    compared = Comparison(before.graph, after.graph, before.sources, after.sources, after.arguments or before.arguments)
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
    old = [[kind, follow(value, moved)] for kind, value, _ in before.outputs]
    new = [[kind, value] for kind, value, _ in after.outputs]
    if len(old) != len(new):
        yield f"outputs {change_text(str(len(old)), str(len(new)))}"
    elif old != new and sorted(map(json.dumps, old)) == sorted(map(json.dumps, new)):
        yield "outputs in another order"
    elif old != new and alone:
        for at, (left, right) in enumerate(zip(old, new, strict=True)):
            if left != right:
                yield f"output {at} is {'written to an input' if left[1] == right[1] else 'another value'}"


def follow(value: object, moved: Mapping[int, int]) -> object:
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
    return by_name(before, after)


def pair_constants(before: Sequence[Placeholder], after: Sequence[Placeholder]) -> Matches:
    """Return pairs of corresponding constants: by name, then by equal kind, dtype and shape, in order."""
    pairs = by_name(before, after)
    seen = {id(placeholder) for pair in pairs for placeholder in pair}
    old, new = ([constant for constant in side if id(constant) not in seen] for side in (before, after))
    looks = ([json.dumps(constant.row[:3]) for constant in side] for side in (old, new))
    same = align(*looks) or []
    return pairs + [(old[left], new[right]) for left, right in same]


def by_name(before: Sequence[Placeholder], after: Sequence[Placeholder]) -> Matches:
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
                yield f"{placeholder.title} {verb}: {value_text(placeholder.value)}"


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
