"""`hatch-lower explain`: actions of the last build with reasons, and the models that the next build will export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cli.arguments import json_option, open_here, root_option, temporary_context
from hatch_lower.cli.output import Report, count, show_report
from hatch_lower.errors import ConfigError, nearest
from hatch_lower.hatch.outside import open_project
from hatch_lower.hatch.terminal import table_lines

if TYPE_CHECKING:
    from hatch_lower.driver.explain import BuildHistory, ModelHistory
    from hatch_lower.driver.lookup import LookupResult
    from hatch_lower.hatch.project import Project

# Reported columns of the build summary
ROW = ("method", "recipe", "level", "nodes", "delegated", "partitions", "reused", "seconds", "not_compared")
LEVELS = {
    0: "lowered",
    1: "unchanged, not exported",
    2: "exported, already lowered",
    3: "exported, no partition had to be lowered",
}


@click.command()
@click.argument("model", required=False)
@root_option
@json_option
def explain(model: str | None, root: Path, as_json: bool) -> None:
    """Explain the last build, and predict the next build.

    Shows the reasons for each action, and the models that the next build will export. Installed packages are compared
    in the environment of the last build if the environment still exists.
    """
    project = open_project(root)
    names = [model.name for model in project.settings.models]
    if model is not None and model not in names:
        raise ConfigError("the project has no such model", where=f"`{model}`", found=nearest(model, names))
    report = explain_report(project, names if model is None else [model])
    show_report(report, as_json, explain_lines)


def explain_report(project: Project, models: Sequence[str]) -> Report:
    from hatch_lower.driver.build import look_up
    from hatch_lower.driver.explain import in_last_environment, read_history
    from hatch_lower.events import NullReporter

    settings = project.settings
    store = open_here()
    last = read_history(store.directory, settings.root)
    with temporary_context(project, store, NullReporter()) as here:
        context, environment = in_last_environment(here, last)
        known = look_up(context)
    histories = {} if last is None else last.models
    return {
        "name": settings.name,
        "version": settings.version,
        "root": str(settings.root),
        "cache": store.mode,
        "environment": environment,
        "last": None if last is None else last_report(last, models),
        "next": {name: next_report(known.get(name), histories.get(name)) for name in models},
    }


def last_report(last: BuildHistory, models: Sequence[str]) -> Report:
    known = [name for name in models if name in last.models]
    return {"version": last.version, "models": {name: explained_model(last.models[name]) for name in known}}


def explained_model(model: ModelHistory) -> Report:
    return {
        "level": model.level,
        "changes": list(model.changes),
        "unknown": list(model.unknown),
        "reasons": {name: list(lines) for name, lines in model.reasons.items()},
        "rows": [{name: getattr(row, name) for name in ROW} for row in model.rows],
        "verified": [asdict(each) for each in model.verified],
    }


def next_report(known: LookupResult | None, last: ModelHistory | None) -> Report:
    from hatch_lower.driver.diff.words import key_changes

    if known is None:  # the cache is off
        return {"unchanged": False, "changes": [], "settings": [], "unknown": []}
    unknown = [] if last is None else list(last.unknown)
    settings = key_changes(last.manifest, known.key) if last is not None and last.manifest else []
    return {
        "unchanged": known.report is not None,
        "changes": [change.text() for change in known.changes],
        "settings": [] if known.report is not None or known.changes else settings,
        "unknown": [] if known.report is not None or known.changes or settings else unknown,
    }


def explain_lines(report: Report) -> Iterator[str]:
    yield f"{report['name']} {report['version']} in {report['root']}"
    last = report["last"]
    yield ""
    if last is None:
        yield "last build: unknown"
    else:
        yield "last build"
        for name, model in last["models"].items():
            yield from last_build_lines(name, model)
    yield ""
    if report["cache"] == "off":
        yield "next build: everything, for the cache is off"
        return
    yield "next build"
    for name, model in report["next"].items():
        if report["environment"] == "gone" and not model["unchanged"]:
            yield f"  {name}: not known, for the environment of the last build is gone; {gone_hint(model)}"
        else:
            yield from next_lines(name, model, known=last is not None and name in last["models"])


def gone_hint(model: Report) -> str:
    seen = f"seen from the environment of this command: {'; '.join(model['changes'])}" if model["changes"] else ""
    return seen or "build, or run this command in the environment that builds"


def last_build_lines(name: str, model: Report) -> Iterator[str]:
    yield f"  {name}: {LEVELS[model['level']]}"
    common = common_reasons(model["reasons"])
    yield from block("all methods" if len(model["reasons"]) > 1 else "why", common)
    for method, lines in model["reasons"].items():
        yield from block(method, [line for line in lines if line not in common])
    yield from block("not known completely", model["unknown"])
    mixed = len({row["level"] for row in model["rows"]}) > 1
    rows: list[Sequence[str]] = [("method", "recipe", "partitions", "reused", "seconds", "")]
    rows += [
        (
            row["method"],
            row["recipe"],
            str(row["partitions"]),
            str(row["reused"]),
            f"{row['seconds']:.2f}",
            LEVELS[row["level"]] if mixed else "",
        )
        for row in model["rows"]
    ]
    yield from table_lines(rows, indent=4, right=[2, 3, 4])
    for each in model["verified"]:
        yield f"    {each['method']} for {each['recipe']} was compared on {each['compared']}"
    for row in model["rows"]:
        if row["not_compared"]:
            yield f"    {row['method']} for {row['recipe']} was not compared: {row['not_compared']}"


def common_reasons(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    first = next(iter(reasons.values()), [])
    return [line for line in first if all(line in reason for reason in reasons.values())]


def next_lines(name: str, model: Report, *, known: bool) -> Iterator[str]:
    reasons = [*model["settings"], *model["changes"], *model["unknown"]]
    if model["unchanged"]:
        yield f"  {name}: unchanged, will not be exported"
    elif reasons:
        yield f"  {name}: will be exported again, for {count(len(reasons), 'reason')}"
        yield from (f"    {line}" for line in reasons)
    else:
        yield f"  {name}: will be exported{', because the cache has no result' if known else ' for the first time'}"


def block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if len(lines) == 1:
        yield f"    {title}: {lines[0]}"
    elif lines:
        yield f"    {title}:"
        yield from (f"      {line}" for line in lines)
