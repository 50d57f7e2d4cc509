"""`hatch-lower report`: lowered models as an HTML page, or their graphs for other viewers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from hatch_lower.cli.arguments import FILE, FOLDER, target_of
from hatch_lower.cli.check import check_all, check_row_json, choose
from hatch_lower.cli.diff import change_line, titles
from hatch_lower.cli.output import show, show_text, write_output_file
from hatch_lower.cli.page.data import Extras, report_data
from hatch_lower.cli.page.operations import Facts, dot_text, model_explorer_json, named_graphs
from hatch_lower.cli.page.page import page_text
from hatch_lower.cli.page.profiles import read_profile
from hatch_lower.cli.page.times import read_times
from hatch_lower.driver.contents import WheelModels, find_contents, loadable_places
from hatch_lower.errors import ProgramError, nearest, size_text

FILES = {"html": "report.html", "model-explorer": "report.json", "dot": "report.dot"}


@click.command()
@click.argument("name", metavar="NAME|PATH")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="The file to write; `-` is standard output. Default: report.html, .json or .dot.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*FILES]),
    default="html",
    help="A page, or graphs: JSON for Google's Model Explorer, DOT for Graphviz. Default: html.",
)
@click.option(
    "--only",
    default="*",
    metavar="MODEL/RECIPE/METHOD",
    help="The graphs to write, for formats other than html; `*` stands for any text: `digits/*/forward`.",
)
@click.option("--against", metavar="NAME|PATH", help="Show the changes since this wheel, folder or distribution.")
@click.option(
    "--profile", "profiles", type=FILE, multiple=True, help="Show the times in a file of `profile --json`. Repeatable."
)
@click.option("--times", type=FILE, help="Show the times of recipes in a project's file `lowering-times.json`.")
@click.option("--sources", type=FOLDER, help="A folder with the sources.")
@click.option(
    "--check/--no-check",
    "runs",
    default=False,
    help="Run the packaged check inputs, and show the errors against eager. Default: the program is not run.",
)
def report(
    name: str,
    output: Path | None,
    kind: str,
    only: str,
    against: str | None,
    profiles: tuple[Path, ...],
    times: Path | None,
    sources: Path | None,
    runs: bool,
) -> None:
    """Write an HTML page about lowered models.

    The page has graphs, sources, sizes, constants and SBOM in a single file that loads nothing from elsewhere.
    NAME|PATH is an installed model or distribution, or a wheel or folder: `./digits` is a path, `digits` a name.
    """
    given = {"--against": against, "--profile": profiles, "--times": times, "--sources": sources, "--check": runs}
    if kind != "html" and (unused := [option for option, value in given.items() if value]):
        words = " and ".join(f"`{option}`" for option in unused)
        raise click.UsageError(f"{words} belong{'s' * (len(unused) == 1)} to `--format html`.")
    if kind == "html" and only != "*":
        raise click.UsageError("`--only` belongs to `--format dot` and `--format model-explorer`.")
    target = target_of(name)
    folders = find_contents(target)
    if kind == "html":
        extras = Extras(
            sources=sources,
            profiles=[read_profile(path, methods_of(folders)) for path in profiles],
            checks=check_rows(target, name) if runs else None,
            times=None if times is None else read_times(times, methods_of(folders)),
            changes=None if against is None else changes_between(target_of(against), target),
        )
        text = page_text(report_data(target, folders, extras))
    else:
        text = graphs_text(kind, target if isinstance(target, str) else target.resolve().name, folders, only)
    path = output or Path(FILES[kind])
    if str(path) == "-":
        show_text(text)
    else:
        show([f"{path}: {size_text(write_output_file(path, text, 'page' if kind == 'html' else 'graph'))}"])


def graphs_text(kind: str, label: str, folders: Sequence[WheelModels], only: str) -> str:
    graphs = list(named_graphs(folders))
    chosen = [graph for graph in graphs if fnmatchcase(graph.name, only)]
    if not chosen:
        raise ProgramError("there is no such graph", where=label, found=nearest(only, [graph.name for graph in graphs]))
    if kind == "dot":
        return dot_text(chosen)
    return json.dumps(model_explorer_json(label, chosen), ensure_ascii=False) + "\n"


def methods_of(folders: Sequence[WheelModels]) -> Mapping[str, Mapping[str, object]]:
    methods = {}
    for contents in folders:
        for model in contents.models:
            recipes = contents.manifest.models[model].recipes
            methods[model] = {method: None for recipe in recipes.values() for method in recipe.methods}
    return methods


def check_rows(target: str | Path, name: str) -> list[Facts]:
    with loadable_places(target) as places:
        return [check_row_json(row) for row in check_all(choose(places, name, None, None), None, None, name)]


def changes_between(first: str | Path, second: str | Path) -> Facts:
    from hatch_lower.driver.diff.models import compare_models, read_side

    sides = [read_side(first), read_side(second)]
    names = [target if isinstance(target, str) else target.resolve().name for target in (first, second)]
    rows = [
        {
            "place": titles(change.place)[:-1],
            "text": f"{titles(change.place)[-1]}: {change_line(change.place[-1], change.first, change.second)}",
            "lines": list(change.lines),
        }
        for change in compare_models(*sides)
    ]
    return {"first": names[0], "second": names[1], "rows": rows}
