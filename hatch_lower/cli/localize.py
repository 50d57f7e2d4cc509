"""`hatch-lower localize`: the first operation of a method whose result differs from eager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import (
    FILE,
    choose_model,
    choose_recipe,
    json_option,
    model_option,
    open_here,
    project_here,
    recipe_option,
    target_of,
    temporary_context,
)
from hatch_lower.cli.output import Report, show, show_report
from hatch_lower.driver.contents import WheelModels, find_contents
from hatch_lower.errors import ProgramError
from hatch_lower.hatch.outside import open_project

if TYPE_CHECKING:
    from hatch_lower.hatch.project import Project
    from hatch_lower.pipeline.localize.finding import Findings, Localization

SCHEMA = 1
SECONDS = 120.0


@click.command()
@click.argument("name", metavar="NAME|WHEEL")
@click.argument("method", required=False)
@model_option
@recipe_option
@click.option(
    "--inputs",
    type=FILE,
    metavar="FILE",
    help="A safetensors file of inputs, under keys such as `forward/0/image`: method, case and input. Default: the"
    " inputs of a build's comparison.",
)
@click.option(
    "--write-reproduction",
    "reproduction",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a project that reproduces the fault into this new folder: operations, inputs, a test.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=SECONDS, show_default=True, help="Time limit.")
@json_option
@click.pass_context
def localize(
    context: click.Context,
    name: str,
    method: str | None,
    model: str | None,
    recipe: str | None,
    inputs: Path | None,
    reproduction: Path | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Find the first wrong operation, and its line.

    The model is exported and lowered again as in a build. Then at most twelve parts are lowered and compared with torch
    on the same values. Ends with status 1 if an operation is wrong.
    """
    from hatch_lower.pipeline.localize.finding import Localization

    root, model_name, contents = find_localized_project(name, model)
    wanted = Localization(
        seconds,
        recipe or "",
        method or "",
        None if inputs is None else inputs.absolute(),
        None if reproduction is None else reproduction.absolute(),
    )
    found = findings_of(root, model_name, wanted)
    report = {
        "schema": SCHEMA,
        "model": model_name,
        "same_program": None if contents is None else has_same_delegates(contents, model_name, recipe, found),
        "findings": [asdict(finding) for finding in found.findings],
    }
    show_report(report, as_json, lambda known: finding_report_lines(known, found))
    context.exit(1 if any(finding.is_wrong for finding in found.findings) else 0)


def findings_of(root: Project, model: str, wanted: Localization) -> Findings:
    from hatch_lower.driver.units import localize_in_child as look
    from hatch_lower.events import LineReporter

    reporter = LineReporter(lambda line: show([line], err=True))
    with temporary_context(root, open_here(), reporter) as context:
        return look(context, model, wanted)


def find_localized_project(name: str, model: str | None) -> tuple[Project, str, WheelModels | None]:
    """Return the project, the name of its model, and the contents of the wheel or installed package, if named."""
    target = target_of(name)
    here = project_here(None)
    if isinstance(target, str) and here is not None and target in {each.name for each in here.settings.models}:
        if model not in (None, target):
            raise click.UsageError(f"`{target}` and `--model {model}` both name a model: give only one of them.")
        return here, target, None
    contents, model_name, _ = choose_model(find_contents(target), model)
    if here is not None and model_name in {each.name for each in here.settings.models}:
        return here, model_name, contents
    from hatch_lower.cli.measure.project import editable_project

    folder = editable_project(contents.manifest.distribution)
    if folder is None:
        raise ProgramError(
            "the model's project is unknown",
            where=contents.place,
            found="a wheel or an installed package, which has no graph to lower again",
            hint="run this in the project's folder",
        )
    return open_project(folder), model_name, contents


def has_same_delegates(contents: WheelModels, model: str, recipe: str | None, found: Findings) -> bool:
    """Return whether the named wheel or installed package has the delegates of the project."""
    entry = contents.manifest.models[model]
    plan = contents.plan(entry.recipes[choose_recipe(model, entry, recipe)])
    return {delegate.file for delegate in plan.delegates} == set(found.delegates)


def finding_report_lines(report: Report, found: Findings) -> Iterator[str]:
    from hatch_lower.pipeline.localize.finding import finding_lines

    for finding in found.findings:
        yield f"{finding.model}.{finding.method}, recipe {finding.recipe}"
        yield from (f"  {line}" for line in finding_lines(finding))
        yield f"  {finding.lowerings} parts lowered, {finding.seconds:.0f} s"
    if report["same_program"] is False:
        yield ""
        yield "the named wheel or package has other delegates: the findings are about the project in its present state"
