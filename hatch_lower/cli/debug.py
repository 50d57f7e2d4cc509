"""`hatch-lower debug`: from instructions and delegate instruction ids to ops, module paths and source lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from hatch_lower.cli.contents import choose_model, choose_recipe, find_contents, path_option, target_of
from hatch_lower.cli.output import page, show_json
from hatch_lower.cli.tables import table_lines
from hatch_lower.debug import MethodDebug, Origin
from hatch_lower.errors import ProgramError, nearest

__all__ = ["debug"]


@click.command()
@click.argument("name", metavar="NAME|PATH")
@click.argument("method")
@path_option
@click.option("--model", help="The model, where there are several.")
@click.option("--recipe", help="The recipe. Default: the first in load order.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def debug(name: str, method: str, is_path: bool, model: str | None, recipe: str | None, as_json: bool) -> None:
    """Show which source lines a method's instructions come from."""
    contents, model_name, entry = choose_model(find_contents(target_of(name, is_path)), model)
    recipe_name = choose_recipe(model_name, entry, recipe)
    methods = contents.debug(entry.recipes[recipe_name]).methods
    if method not in methods:
        raise ProgramError(f"the model `{model_name}` has no such method", found=nearest(method, methods))
    rows = debug_report(methods[method])
    if as_json:
        show_json({"model": model_name, "recipe": recipe_name, "method": method, "instructions": rows})
        return
    page([f"{model_name}.{method}, recipe {recipe_name}", "", *debug_lines(rows)])


def debug_report(debug: MethodDebug) -> list[dict[str, Any]]:
    """Return the instructions in the order of the plan; one that calls a delegate has the delegate's own `map`."""
    rows: list[dict[str, Any]] = []
    for path in sorted({*debug.instructions, *debug.delegates}, key=natural_order):
        row: dict[str, Any] = {"instruction": path, "origins": origins(debug, debug.instructions.get(path, ()))}
        delegate = debug.delegates.get(path)
        if delegate is not None:
            ordered = sorted((delegate.map or {}).items(), key=computing_order)
            row["backend"] = delegate.backend
            row["map"] = [{"id": key, "origins": origins(debug, handles)} for key, handles in ordered]
        rows.append(row)
    return rows


def debug_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a report as a table of ops, modules and sources, with a line of its own for each delegate and its ids."""
    cells: list[tuple[str, str, str, str]] = []
    headings: dict[int, list[str]] = {}
    for row in rows:
        if "backend" in row:
            headings.setdefault(len(cells), []).append(f"{row['instruction']}  delegate of `{row['backend']}`")
        for each in row.get("map", ()):
            headings.setdefault(len(cells), []).append(f"   {each['id']}")
            cells += origin_cells("", each["origins"])
        if not row.get("map"):
            cells += origin_cells("" if "backend" in row else row["instruction"], row["origins"])
    header, *lines = table_lines([("instruction", "op", "module", "source"), *cells])
    yield header
    for position, line in enumerate(lines):
        yield from headings.get(position, ())
        yield line
    yield from headings.get(len(lines), ())


def origin_cells(path: str, listed: Sequence[dict[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each origin; only the first names the instruction."""
    for position, each in enumerate(listed):
        yield path if position == 0 else "", each["op"], each["module"], each["source"]


def origins(debug: MethodDebug, handles: Sequence[int]) -> list[dict[str, str]]:
    """Return what stands behind handles."""
    found = [debug.handles.get(handle, Origin("unknown")) for handle in handles]
    return [{"op": each.op, "module": each.module, "source": each.source} for each in found]


def computing_order(entry: tuple[str, Sequence[int]]) -> tuple[int, list[tuple[int, str]]]:
    """Return a sort key for a delegate's ids: handles follow the graph, so this is nearly how the delegate computes."""
    identifier, handles = entry
    return min(handles, default=0), natural_order(identifier)


def natural_order(text: str) -> list[tuple[int, str]]:
    """Return a sort key under which `10` comes after `9`, also within `4.true.10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", text)]
