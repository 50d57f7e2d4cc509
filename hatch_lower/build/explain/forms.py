"""What differs between two exported graphs, in words, the most telling first.

Compared are canonical forms, so renamed values and moved lines are no difference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower.build.explain.form import Form
from hatch_lower.build.explain.operators import Comparison, Pairs
from hatch_lower.build.explain.placeholders import compare_placeholders
from hatch_lower.build.explain.words import change_text, range_text


def differences(before: Form, after: Form) -> list[str]:
    """Return a line for each difference, the most telling first; equal lines once.

    The lines name source lines of `after`, but for what is only in `before`.
    """
    placed = compare_placeholders(before, after)
    sizes = list(range_lines(before.symbols, after.symbols))
    compared = Comparison(before.graph, after.graph, before.sources, after.sources, after.arguments or before.arguments)
    operators, checks = compared.operator_lines()
    lines = [*placed.inputs, *sizes, *operators, *placed.constants, *checks]
    lines += output_lines(before, after, [*compared.pairs, *placed.pairs], alone=not operators)
    lines = lines or list(compared.edge_lines(placed.pairs)) or list(compared.value_lines())
    return [line if times == 1 else f"{line}, {times} times" for line, times in Counter(lines).items()]


def range_lines(before: Sequence[Any], after: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each size with another range."""
    old = dict(before)
    for name, bounds in after:
        if name in old and old[name] != bounds:
            yield f"size {name}: {change_text(range_text(old[name]), range_text(bounds))}"
    if len(before) != len(after):
        yield f"dynamic sizes {change_text(str(len(before)), str(len(after)))}"


def output_lines(before: Form, after: Form, pairs: Pairs, *, alone: bool) -> Iterator[str]:
    """Yield what differs between the outputs.

    Args:
        before: the earlier form.
        after: the later form.
        pairs: of nodes that are the same.
        alone: whether no operator differs, so that another value is no consequence.
    """
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


def follow(value: Any, moved: Mapping[int, int]) -> Any:
    """Return an output with its node's position in the later graph."""
    return ["node", moved.get(value[1])] if isinstance(value, list) and value[0] == "node" else value
