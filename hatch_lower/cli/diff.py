"""`hatch-lower diff`: the differences of two lowered distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import json_option, target_of
from hatch_lower.cli.output import show_error, show_report
from hatch_lower.errors import LowerError, size_text

if TYPE_CHECKING:
    from hatch_lower.driver.diff.difference import DocumentChange

NOUNS = {"models": "model", "recipes": "recipe", "methods": "method", "tensors": "tensor", "files": "file"}
NOUNS |= {"tools": "tool", "requirements": "requirement", "components": "component", "operations": "operation"}
INDENT = "  "


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_option
@click.pass_context
def diff(context: click.Context, first: str, second: str, as_json: bool) -> None:
    """Show the differences of two wheels or packages.

    A and B are each an installed model or distribution, or a wheel or folder: `./digits` is a path, `digits` a name.
    Ends with status 0 if the models are equal, 1 if they differ, 2 if a side cannot be read.
    """
    from hatch_lower.driver.diff.models import compare_models, read_side

    try:
        sides = [read_side(target_of(name)) for name in (first, second)]
        changes = compare_models(*sides)
    except LowerError as error:
        show_error(error)
        context.exit(2)
    report = {
        "first": sides[0].title,
        "second": sides[1].title,
        "equal": not changes,
        "changes": [asdict(change) for change in changes],
    }
    show_report(report, as_json, lambda _: model_change_lines(sides[0].title, sides[1].title, changes))
    context.exit(1 if changes else 0)


def model_change_lines(first: str, second: str, changes: Sequence[DocumentChange]) -> Iterator[str]:
    yield f"- {first}"
    yield f"+ {second}"
    if not changes:
        yield "the lowered models are equal"
    shown: list[str] = []
    for change in changes:
        *headings, last = titles(change.place)
        for depth, heading in enumerate(headings):
            if headings[: depth + 1] != shown[: depth + 1]:
                yield f"{INDENT * depth}{heading}"
        shown = headings
        indent = INDENT * len(headings)
        yield f"{indent}{last}: {change_line(last, change.first, change.second)}"
        yield from (f"{indent}{INDENT}{line}" for line in change.lines)


def titles(place: Sequence[str]) -> list[str]:
    """Return the headings above a change, and its title: `model digits`, `recipe default`, `size`."""
    if len(place) > 1 and place[0] in NOUNS:
        return [f"{NOUNS[place[0]]} {place[1]}", *titles(place[2:])]
    return [" ".join(place)] if place else []


def change_line(name: str, first: object, second: object) -> str:
    left, right = (short_value(name, value) for value in (first, second))
    if first is None or second is None:
        return ": ".join(filter(None, ["added" if first is None else "removed", right if first is None else left]))
    return f"{left} → {right}" if left != right else f"{left}, other contents"


def short_value(name: str, value: object) -> str:
    """Return a value in short: a tensor's dtype and shape, a file's size; empty for a whole model."""
    match value:
        case {"dtype": dtype, "shape": shape}:
            return f"{dtype}{shape}"
        case {"sha256": _, "size": size}:
            return size_text(size)
        case int() if name == "size":
            return size_text(value)
        case float() if name == "share":
            return f"{100 * value:.4g} %"
        case dict():
            return ""
        case list():
            return ", ".join(map(str, value)) or "none"
    return str(value)
