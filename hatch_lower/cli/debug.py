"""`hatch-lower debug`: from instructions and delegate instruction ids to ops, module paths and source lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import click

from hatch_lower.build.contents import find_contents
from hatch_lower.cli.arguments import (
    choose_model,
    choose_recipe,
    json_option,
    model_option,
    path_option,
    recipe_option,
    target_of,
)
from hatch_lower.cli.output import Report, page, show_json
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.debug_map import MethodDebug, Origin
from hatch_lower.hatch.terminal import table_lines


@click.command()
@click.argument("name", metavar="NAME|PATH")
@click.argument("method")
@path_option
@model_option
@recipe_option
@click.option("--op", help="Only what comes from an operator with this in its name: `conv`, `aten.add.Tensor`.")
@click.option("--line", help="Only what comes from this file or line: `model.py`, `digits/model.py:31`.")
@click.option("--delegate", help="Only the delegates of this backend, or that of this instruction: `aoti`, `3`.")
@json_option
def debug(
    name: str,
    method: str,
    is_path: bool,
    model: str | None,
    recipe: str | None,
    op: str | None,
    line: str | None,
    delegate: str | None,
    as_json: bool,
) -> None:
    """Show which source lines a method's instructions come from."""
    contents, model_name, entry = choose_model(find_contents(target_of(name, is_path)), model)
    recipe_name = choose_recipe(model_name, entry, recipe)
    methods = contents.debug(entry.recipes[recipe_name]).methods
    if method not in methods:
        raise ProgramError(f"the model `{model_name}` has no such method", found=nearest(method, methods))
    rows = debug_report(methods[method])
    if op or line or delegate:
        rows = list(matching(rows, op or "", line or "", delegate or ""))
        if not rows:
            raise ProgramError(
                "no instruction matches", where=f"method `{method}`", hint="leave out `--op`, `--line` or `--delegate`"
            )
    if as_json:
        show_json({"model": model_name, "recipe": recipe_name, "method": method, "instructions": rows})
        return
    page([f"{model_name}.{method}, recipe {recipe_name}", "", *debug_lines(rows)])


def matching(rows: Sequence[Report], op: str, line: str, delegate: str) -> Iterator[Report]:
    """Yield the rows of a report of which something matches, with nothing else in them; an empty filter matches all."""

    def is_asked_for(origin: dict[str, str]) -> bool:
        source = origin["source"]
        places = (source, source.rpartition(":")[0])
        return op in origin["op"] and (not line or any(f"/{place}".endswith(f"/{line}") for place in places))

    for row in rows:
        if delegate and ("backend" not in row or delegate not in (row["backend"], row["instruction"])):
            continue
        kept = {**row, "origins": list(filter(is_asked_for, row["origins"]))}
        if "map" in row:
            parts = [{**part, "origins": list(filter(is_asked_for, part["origins"]))} for part in row["map"]]
            kept["map"] = [part for part in parts if part["origins"]]
        if kept["origins"] or kept.get("map") or not (op or line):
            yield kept


def debug_report(debug: MethodDebug) -> list[Report]:
    """Return the instructions in the order of the plan; one that calls a delegate has the delegate's own `map`."""
    rows: list[Report] = []
    for path in sorted({*debug.instructions, *debug.delegates}, key=natural_order):
        row: Report = {"instruction": path, "origins": origins(debug, debug.instructions.get(path, ()))}
        delegate = debug.delegates.get(path)
        if delegate is not None:
            ordered = sorted((delegate.map or {}).items(), key=computing_order)
            row["backend"] = delegate.backend
            row["map"] = [{"id": key, "origins": origins(debug, handles)} for key, handles in ordered]
        rows.append(row)
    return rows


def debug_lines(rows: Sequence[Report]) -> Iterator[str]:
    """Yield a report as a table of ops, modules and sources, with a line of its own for each delegate and its ids."""
    cells: list[tuple[str, str, str, str]] = []
    headings: dict[int, list[str]] = {}
    # those that follow each other and come from the same are told together
    for is_delegate, group in itertools.groupby(rows, key=lambda row: "backend" in row):
        if not is_delegate:
            for labels, listed in folded((row["instruction"], row["origins"]) for row in group):
                cells += origin_cells(labels, listed)
            continue
        for row in group:
            headings.setdefault(len(cells), []).append(f"{row['instruction']}  delegate of `{row['backend']}`")
            for labels, listed in folded((part["id"], part["origins"]) for part in row["map"]):
                headings.setdefault(len(cells), []).append(f"   {labels}")
                cells += origin_cells("", listed)
            if not row["map"]:
                cells += origin_cells("", row["origins"])
    header, *lines = table_lines([("instruction", "op", "module", "source"), *cells])
    yield header
    for position, line in enumerate(lines):
        yield from headings.get(position, ())
        yield line
    yield from headings.get(len(lines), ())


def folded(entries: Iterable[tuple[str, list[dict[str, str]]]]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield labels and origins; where the same origins follow each other, once with all of their labels."""
    for listed, group in itertools.groupby(entries, key=lambda entry: entry[1]):
        labels = [label for label, _ in group]
        yield ", ".join(labels) if len(labels) < 4 else f"{labels[0]} … {labels[-1]} ({len(labels)})", listed


def origin_cells(label: str, listed: Sequence[dict[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each origin, one for equal ones that follow each other; only the first has the label."""
    for origin, group in itertools.groupby(listed):
        count = len(list(group))
        yield label, origin["op"] + (f" ({count} times)" if count > 1 else ""), origin["module"], origin["source"]
        label = ""


def origins(debug: MethodDebug, handles: Sequence[int]) -> list[dict[str, str]]:
    known = [debug.handles.get(handle, Origin("unknown")) for handle in handles]
    return [{"op": origin.op, "module": origin.module, "source": origin.source} for origin in known]


def computing_order(entry: tuple[str, Sequence[int]]) -> tuple[int, list[tuple[int, str]]]:
    identifier, handles = entry
    return min(handles, default=0), natural_order(identifier)


def natural_order(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", text)]
