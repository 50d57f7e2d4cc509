"""`hatch-lower plan`: the units that the next build needs, and their division among machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import is_sent, json_option, opened_context, root_option
from hatch_lower.cli.output import Report, count, show, show_report
from hatch_lower.hatch.terminal import table_lines

if TYPE_CHECKING:
    from hatch_lower.driver.units import Unit

SCHEMA = 1


@click.command()
@root_option
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    help="Divide what is not cached into at most N shards that take about as long each.",
)
@json_option
def plan(root: Path, shards: int | None, as_json: bool) -> None:
    """Show the units that the next build needs.

    A unit is a recipe of a model: `hatch-lower lower` makes a unit, on any machine. A model depends on its recipes:
    `hatch build` joins the recipes. The table shows whether a unit is cached, and the seconds of the last time.
    With `--shards` the JSON is a single line, the matrix of a workflow's jobs.
    """
    from hatch_lower.driver.explain import in_last_environment, read_history
    from hatch_lower.driver.units import divide_units, find_units, recipe_units

    with opened_context(root) as context:
        settings, directory = context.settings, context.store.directory
        context, environment = in_last_environment(context, read_history(directory, settings.root))
        units = find_units(context, shared=is_sent(settings))
    missing = [unit for unit in recipe_units(units) if not unit.cached]
    divided = divide_units(missing, shards or 1)
    if shards is not None and as_json:
        show([json.dumps(matrix_of(divided), separators=(",", ":"))])
        return
    report = {
        "schema": SCHEMA,
        "name": settings.name,
        "version": settings.version,
        "root": str(settings.root),
        "environment": environment,
        "units": [unit_report(unit) for unit in units],
    }
    show_report(report, as_json, plan_lines)
    if shards is not None:
        show(["", *(f"shard {job['shard']}: {job['only']}" for job in matrix_of(divided)["include"])])


def matrix_of(shards: Sequence[Sequence[Unit]]) -> Report:
    """Return the matrix of a workflow: the argument of `hatch-lower lower --only` for each job."""
    return {
        "include": [
            {"shard": f"{number}/{len(shards)}", "only": " ".join(unit.name for unit in shard)}
            for number, shard in enumerate(shards, 1)
        ]
    }


def unit_report(unit: Unit) -> Report:
    return {
        "name": unit.name,
        "model": unit.model,
        "recipe": unit.recipe or None,
        "key": unit.key,
        "cached": unit.cached,
        "seconds": unit.seconds,
        "depends": list(unit.depends),
    }


def plan_lines(report: Report) -> Iterator[str]:
    units = report["units"]
    yield f"{report['name']} {report['version']} in {report['root']}"
    if report["environment"] == "gone":
        yield "the environment of the last build is gone: packages are compared with those of this command"
    yield ""
    rows: list[Sequence[str]] = [("unit", "key", "", "seconds", "needs")]
    rows += [
        (
            unit["name"],
            unit["key"][:12],
            "cached" if unit["cached"] else "to join" if unit["depends"] else "to make",
            seconds_text(unit["seconds"]),
            ", ".join(unit["depends"]),
        )
        for unit in units
    ]
    yield from table_lines(rows, right=[3])
    missing = [unit for unit in units if unit["recipe"] is not None and not unit["cached"]]
    known = [unit["seconds"] for unit in missing if unit["seconds"] is not None]
    unknown = len(missing) - len(known)
    yield ""
    rest = f"; of {unknown} nothing is known" if unknown and known else ""
    yield f"{count(len(missing), 'unit')} to make{f', about {sum(known):.0f} s' if known else ''}{rest}"


def seconds_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"
