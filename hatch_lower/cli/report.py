"""`hatch-lower report`: what is in lowered models, as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from hatch_lower.build.contents import Contents, find_contents
from hatch_lower.build.unpack import places_of
from hatch_lower.cli.arguments import FILE, FOLDER, OUTPUT, path_option, target_of
from hatch_lower.cli.check import check_all, choose, row_json
from hatch_lower.cli.diff import change_line, titles
from hatch_lower.cli.output import show, write_document
from hatch_lower.cli.page.data import Extras, report_data
from hatch_lower.cli.page.facts import Facts
from hatch_lower.cli.page.page import page_text
from hatch_lower.cli.page.profiles import read_profile
from hatch_lower.errors import size_text


@click.command()
@click.argument("name", metavar="NAME|PATH")
@path_option
@click.option(
    "-o", "--output", type=OUTPUT, default=Path("report.html"), help="The file to write. Default: report.html."
)
@click.option("--against", metavar="NAME|PATH", help="Show what has changed since this wheel, folder or distribution.")
@click.option(
    "--profile", "profiles", type=FILE, multiple=True, help="Show the times that `profile --json` wrote. Repeatable."
)
@click.option("--sources", type=FOLDER, help="A folder with the sources.")
@click.option(
    "--check/--no-check",
    "runs",
    default=False,
    help="Run the packaged check inputs, and show how far the outputs are from eager's. Default: nothing is run.",
)
def report(
    name: str,
    is_path: bool,
    output: Path,
    against: str | None,
    profiles: tuple[Path, ...],
    sources: Path | None,
    runs: bool,
) -> None:
    """Write an HTML page about lowered models.

    It has their graphs, sources, sizes, constants and SBOM in one HTML file, which loads nothing from elsewhere.
    NAME|PATH is an installed model or distribution, or a wheel or folder: `./digits` is a path, `digits` a name.
    """
    target = target_of(name, is_path)
    folders = find_contents(target)
    extras = Extras(
        sources=sources,
        profiles=[read_profile(path, methods_of(folders)) for path in profiles],
        checks=check_rows(target, name) if runs else None,
        changes=None if against is None else changes_between(target_of(against, is_path), target),
    )
    size = write_document(output, page_text(report_data(target, folders, extras)), "page")
    show([f"{output}: {size_text(size)}"])


def methods_of(folders: Sequence[Contents]) -> Mapping[str, Mapping[str, object]]:
    methods = {}
    for contents in folders:
        for model in contents.models:
            recipes = contents.manifest.models[model].recipes
            methods[model] = {method: None for recipe in recipes.values() for method in recipe.methods}
    return methods


def check_rows(target: str | Path, name: str) -> list[Facts]:
    with places_of(target) as places:
        from hatch_lower.runtime.numbers import Tolerance

        return [row_json(row) for row in check_all(choose(places, name, None, None), None, Tolerance(), name)]


def changes_between(first: str | Path, second: str | Path) -> Facts:
    from hatch_lower.build.diff.models import compare_models, read_side

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
