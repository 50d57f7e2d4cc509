"""`hatch-lower check`: packaged models run their check inputs on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import json_option, root_option, target_of
from hatch_lower.cli.output import count, show_report
from hatch_lower.driver.contents import Place, loadable_places, said_of
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.hatch.terminal import table_lines
from hatch_lower.runtime.files import PackagedFolder

if TYPE_CHECKING:
    from hatch_lower.runtime.check import CheckRow
    from hatch_lower.runtime.numbers import Tolerance


def read_number(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        msg = f"`{text}` is not a number of at least 0"
        raise click.BadParameter(msg)
    return number


NOTHING_COMPARED = 3  # exit status


@click.command()
@click.argument("name", metavar="NAME|PATH")
@click.option("--model", help="The model to check. Default: all models.")
@click.option("--recipe", help="The recipe to check. Default: all recipes that can run here.")
@click.option("--rtol", callback=read_number, help="Relative tolerance, 1e-4 by default.")
@click.option("--atol", callback=read_number, help="Absolute tolerance, 1e-5 by default.")
@click.option("--device", help="`cpu`, `cuda` or `cuda:1`. Default: each recipe on its own device.")
@click.option("--matrix", "is_matrix", is_flag=True, help="Check a wheel with each minor version of its engines.")
@click.option("--engine", "engines", multiple=True, help="With `--matrix`, a distribution to vary. Repeatable.")
@click.option("--write", is_flag=True, help="With `--matrix`, narrow the requirements in pyproject.toml.")
@root_option
@json_option
@click.pass_context
def check(
    context: click.Context,
    name: str,
    model: str | None,
    recipe: str | None,
    rtol: float | None,
    atol: float | None,
    device: str | None,
    is_matrix: bool,
    engines: tuple[str, ...],
    write: bool,
    root: Path,
    as_json: bool,
) -> None:
    """Compare a model's outputs here with the eager model's.

    The packaged inputs are run. Ends with status 1 if an output differs, a file is damaged or missing, or weights
    outside the wheel are absent (`hatch-lower fetch` obtains them), and with status 3 if no method could be compared.

    `--matrix` installs a wheel with the oldest and the newest version of each engine (ONNX Runtime, OpenVINO,
    ExecuTorch) that the wheel allows, and with each minor version between, in a fresh environment each. `--write`
    narrows the requirement in the pyproject.toml of `--root` to the versions that passed.
    """
    if not write and context.get_parameter_source("root") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("`--root` belongs to `--write`.")
    from hatch_lower.runtime.devices import read_device

    tolerance, device = asked_tolerance(rtol, atol), read_device(device)
    if is_matrix:
        from hatch_lower.cli.matrix.command import MatrixOptions, show_matrix

        options = MatrixOptions(model, recipe, engines, tolerance, device, root if write else None, as_json)
        passes = show_matrix(target_of(name), options)
        context.exit(NOTHING_COMPARED if passes is None else 0 if passes else 1)
    if engines or write:
        raise click.UsageError("`--engine` and `--write` belong to `--matrix`.")
    with loadable_places(target_of(name)) as places:
        chosen = choose(places, name, model, recipe)
        rows = check_all(chosen, recipe, tolerance, name, device)
    show_report([check_row_json(row) for row in rows], as_json, lambda _: row_lines(rows))
    compared = any(row.status == "ok" for row in rows)
    context.exit(1 if any(row.is_wrong for row in rows) else 0 if compared else NOTHING_COMPARED)


def asked_tolerance(rtol: float | None, atol: float | None) -> Tolerance | None:
    if rtol is None and atol is None:
        return None
    from hatch_lower.runtime.numbers import Tolerance

    usual = Tolerance()
    return Tolerance(usual.rtol if rtol is None else rtol, usual.atol if atol is None else atol)


def choose(
    places: list[Place], name: str, model: str | None, recipe: str | None
) -> list[tuple[str, PackagedFolder, str]]:
    """Return place, folder and name of each model to check."""
    every = [(place, folder, known) for place, folder, models in places for known in models]
    chosen = [row for row in every if model is None or row[2] == model]
    if not chosen:
        found = nearest(model or "", [known for _, _, known in every])
        raise ProgramError("there is no such model", where=name, found=found, hint="select a model with `--model`")
    if recipe is None:
        return chosen
    entries: list[ModelEntry] = [folder.manifest.models[known] for _, folder, known in chosen]
    if not any(recipe in entry.recipes for entry in entries):
        recipes = sorted({name for entry in entries for name in entry.recipes})
        hint = "select a recipe with `--recipe`"
        raise ProgramError("there is no such recipe", where=name, found=nearest(recipe, recipes), hint=hint)
    return [row for row, entry in zip(chosen, entries, strict=True) if recipe in entry.recipes]


def check_all(
    chosen: list[tuple[str, PackagedFolder, str]],
    recipe: str | None,
    tolerance: Tolerance | None,
    name: str,
    device: str | None = None,
) -> list[CheckRow]:
    from hatch_lower.runtime.check import check_packaged_model

    return [
        replace(row, detail=said_of(row.detail, folder.path, place, name))
        for place, folder, model in chosen
        for row in check_packaged_model(folder, model, recipe, tolerance, device)
    ]


def check_row_json(row: CheckRow) -> dict[str, object]:
    return {
        **with_infinity_text(asdict(row)),
        "outputs": {path: with_infinity_text(asdict(each)) for path, each in row.outputs.items()},
    }


def with_infinity_text(values: Mapping[str, object]) -> dict[str, object]:
    return {key: "inf" if value == math.inf else value for key, value in values.items()}


def not_compared_lines(rows: Sequence[CheckRow]) -> Iterator[str]:
    """Yield a line for each recipe that the build has not compared with eager."""
    recipes: dict[tuple[str, str], list[CheckRow]] = {}
    for row in rows:
        if row.not_compared:
            recipes.setdefault((row.model, row.recipe), []).append(row)
    for (model, recipe), own in recipes.items():
        here = "this check compares" if any(row.largest_error is not None for row in own) else "nor does this check"
        yield f"the build has not compared {model}, {recipe} with eager ({own[0].not_compared}); {here}"


def row_lines(rows: Sequence[CheckRow]) -> Iterator[str]:
    table = [("model", "recipe", "method", "device", "result", "largest difference", "why skipped")]
    for row in rows:
        largest = "" if row.largest_error is None else f"{row.largest_error:.3g}"
        skipped = row.detail if row.status == "skipped" else ""
        place = row.device if row.device != "cpu" else ""  # a table for the CPU alone has no column of devices
        table.append((row.model, row.recipe, row.method, place, row.status, largest, skipped))
    yield from table_lines(table)
    for row in rows:
        if row.is_wrong:
            name = ", ".join(part for part in (row.model, row.recipe, row.method) if part)
            yield ""
            yield from f"{name}: {row.detail}".split("\n")
    yield ""
    yield from not_compared_lines(rows)
    compared = [row for row in rows if row.largest_error is not None]
    wrong = sum(row.is_wrong for row in rows)
    yield f"{count(len(compared), 'method')} compared, {count(wrong, 'fault')}"
    if not compared and not wrong:
        yield "not a success: no recipe ran, or the wheel has no check data (`check-megabytes`)"
