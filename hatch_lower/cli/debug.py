"""The debug map of a method: operator, module and source line of each instruction and delegate instruction."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from hatch_lower.cli.arguments import choose_model, choose_recipe
from hatch_lower.cli.output import Report
from hatch_lower.driver.contents import WheelModels
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.debug_map import MethodDebug, Origin
from hatch_lower.hatch.terminal import table_lines


def method_report(
    folders: Sequence[WheelModels], model: str | None, recipe: str | None, method: str, texts: Sequence[str]
) -> Report:
    """Return the instructions of a method that match all the texts."""
    contents, model_name, entry = choose_model(list(folders), model)
    recipe_name = choose_recipe(model_name, entry, recipe)
    methods = contents.debug(entry.recipes[recipe_name]).methods
    if method not in methods:
        raise ProgramError(f"the model `{model_name}` has no such method", found=nearest(method, methods))
    rows = debug_report(methods[method])
    for text in texts:
        rows = list(matching(rows, text))
    if not rows:
        raise ProgramError("no instruction matches", where=f"method `{method}`", hint="leave out a `--match`")
    return {"model": model_name, "recipe": recipe_name, "method": method, "instructions": rows}


def matching(rows: Sequence[Report], text: str) -> Iterator[Report]:
    """Yield the rows whose backend is `text`, and of the other rows the origins that match, if any."""

    def is_match(origin: dict[str, str]) -> bool:
        source = origin["source"]
        places = (source, source.rpartition(":")[0])
        return text in origin["op"] or any(f"/{place}".endswith(f"/{text}") for place in places)

    for row in rows:
        if text == row.get("backend"):
            yield row
            continue
        kept = {**row, "origins": list(filter(is_match, row["origins"]))}
        if "map" in row:
            parts = [{**part, "origins": list(filter(is_match, part["origins"]))} for part in row["map"]]
            kept["map"] = [part for part in parts if part["origins"]]
        if kept["origins"] or kept.get("map"):
            yield kept


def debug_report(debug: MethodDebug) -> list[Report]:
    """Return the instructions in the order of the plan; a delegate call also has the delegate's own `map`."""
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
    """Yield a table of operators, modules and sources, with a separate line for each delegate and its ids."""
    cells: list[tuple[str, str, str, str]] = []
    headings: dict[int, list[str]] = {}
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
    """Yield labels and origins; successive entries with equal origins are merged."""
    for listed, group in itertools.groupby(entries, key=lambda entry: entry[1]):
        labels = [label for label, _ in group]
        yield ", ".join(labels) if len(labels) < 4 else f"{labels[0]} … {labels[-1]} ({len(labels)})", listed


def origin_cells(label: str, listed: Sequence[dict[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each run of equal origins; only the first row has the label."""
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
