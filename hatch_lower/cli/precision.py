"""`hatch-lower precision`: the layers that must stay in float32 for a recipe to keep the metric."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hatch_lower.cli.arguments import json_option, open_here, project_here
from hatch_lower.cli.output import show, show_report
from hatch_lower.cli.replaced import replace_files
from hatch_lower.config.precision_file import FLOAT_MODULES, PRECISION_FILE
from hatch_lower.errors import PackageError, ProgramError

if TYPE_CHECKING:
    from hatch_lower.hatch.project import Project
    from hatch_lower.pipeline.precision.finding import PrecisionFinding

SCHEMA = 1
SHOWN = 10  # layers


@click.command()
@click.argument("model", required=False)
@click.option("--recipe", help="The recipe. Default: the only recipe with a precision.")
@click.option("--write", is_flag=True, help=f"Write the layers into `{PRECISION_FILE}`, which builds read.")
@json_option
def precision(model: str | None, recipe: str | None, write: bool, as_json: bool) -> None:
    """Find the layers that must stay in float32.

    The model's metric decides: layers go back to float32, the layer with the largest effect on the outputs first, until
    the metric is at most `max-drop` lower than eager's. The build itself searches nothing.
    """
    from hatch_lower.pipeline.precision.finding import PrecisionSearch

    project = project_here(None)
    if project is None:
        raise ProgramError("there is no project here", where=str(Path.cwd()), hint="run this in the project's folder")
    names = [each.name for each in project.settings.models]
    if model is None and len(names) != 1:
        raise ProgramError("the project has several models", found=", ".join(names), hint="name one of them")
    found = finding_of(project, model or names[0], PrecisionSearch(recipe or ""))
    if write:
        write_kept(project.settings.root / PRECISION_FILE, found)
    show_report({"schema": SCHEMA, **asdict(found)}, as_json, lambda _: finding_text(found, written=write))


def finding_of(project: Project, model: str, wanted: Any) -> PrecisionFinding:
    from hatch_lower.driver.context import build_context
    from hatch_lower.driver.units import search_in_child
    from hatch_lower.events import LineReporter

    reporter = LineReporter(lambda line: show([line], err=True))
    with tempfile.TemporaryDirectory(prefix="hatch-lower-") as work:
        context = build_context(project.settings, project.view, Path(work), open_here(), reporter)
        return search_in_child(context, model, wanted)


def finding_text(found: PrecisionFinding, *, written: bool) -> Iterator[str]:
    yield f"{found.model}, recipe {found.recipe}, {found.precision}: metric {found.metric:.6g}, eager {found.eager:.6g}"
    if not found.kept:
        yield f"no layer must stay in float32: the drop is at most {found.limit:g}"
    else:
        yield f"{len(found.kept)} of {len(found.layers)} layers must stay in float32:"
        yield from (f"  {path}" for path in found.kept)
        yield "layers by effect, with the error that is left with this layer alone in float32:"
        yield from (f"  {layer.error:8.2%}  {layer.path}" for layer in found.layers[:SHOWN])
    yield f"written into {PRECISION_FILE}" if written else f"`--write` writes the list into {PRECISION_FILE}"


def write_kept(path: Path, found: PrecisionFinding) -> None:
    """Write the list of a recipe; other entries and comments of the file stay, and no half of a file is seen."""
    import tomlkit

    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    recipes = document.setdefault(found.model, tomlkit.table(is_super_table=True))
    recipes.pop(found.recipe, None)
    if found.kept:
        listed = tomlkit.array()
        listed.extend(found.kept)
        listed.multiline(len(found.kept) > 1)
        recipes[found.recipe] = {FLOAT_MODULES: listed}
    if not recipes:
        del document[found.model]
    try:
        replace_files({path: tomlkit.dumps(document).encode()})
    except OSError as error:
        raise PackageError("the list cannot be written", where=str(path), found=str(error.strerror)) from error
