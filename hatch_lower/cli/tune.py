"""`hatch-lower tune`: the best recipe of each model on this machine, by measurement."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from hatch_lower.cli.arguments import root_option
from hatch_lower.cli.bench import BROKEN, DAY, UNMEASURED, announce, progress
from hatch_lower.cli.output import show, show_error
from hatch_lower.cli.replaced import refuse_read_only
from hatch_lower.config.tables import Precision
from hatch_lower.errors import ConfigError, LowerError
from hatch_lower.format.evidence import EVIDENCE_FILE
from hatch_lower.frozen import Frozen
from hatch_lower.hatch.outside import open_project

if TYPE_CHECKING:
    from hatch_lower.cli.measure.command import Tell
    from hatch_lower.cli.measure.tune.bench import TunedProject
    from hatch_lower.cli.measure.tune.candidates import Aim
    from hatch_lower.cli.measure.tune.check import CheckedModel
    from hatch_lower.cli.measure.tune.choose import TunedModel, Wanted
    from hatch_lower.cli.measure.tune.write import WrittenFiles
    from hatch_lower.format.evidence import Evidence
    from hatch_lower.hatch.project import Project

UNITS = {"": 1, "s": 1, "m": 60, "h": 60 * 60}
LIMIT = 1.1
AIMS: tuple[Aim, ...] = ("latency", "throughput", "size", "memory")


if TYPE_CHECKING:
    SecondsType = click.ParamType[float]
else:
    SecondsType = click.ParamType  # no generic class at run time


class Duration(SecondsType):
    """A time (`90s`, `10m`, `1h`), in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
        if not 0 < seconds <= DAY:
            self.fail(f"{value!r} is no time from 1s to 24h, such as `90s`, `10m` or `1h`.", param, ctx)
        return seconds


@click.command()
@click.argument("model", required=False)
@click.option("--for", "aim", type=click.Choice(AIMS), help="The aim. Default: latency.")
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="Time for timing each model.")
@click.option("--backend", "backends", multiple=True, help="A backend to try. Repeatable. Default: installed engines.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(get_args(Precision)),
    help="A precision to try. Repeatable. Default: float32, and those of the project's recipes.",
)
@click.option("--write", is_flag=True, help="Write the choice into pyproject.toml, and the measurements beside it.")
@click.option("--check", "is_check", is_flag=True, help="Compare the written choice with the measured candidates.")
@click.option(
    "--limit", type=click.FloatRange(min=1), default=LIMIT, show_default=True, help="Ratio that `--check` allows."
)
@root_option
@click.pass_context
def tune(
    context: click.Context,
    model: str | None,
    aim: Aim | None,
    budget: float,
    backends: tuple[str, ...],
    precisions: tuple[Precision, ...],
    write: bool,
    is_check: bool,
    limit: float,
    root: Path,
) -> None:
    """Measure recipes for a model, and choose the best.

    The candidates are the project's recipes, the portable recipe, and each installed engine with its options, in each
    precision. Each candidate is lowered and compared with eager as in a build, then timed beside the others at the
    sizes in the table `bench`, until the order of the best is certain or the budget is used up.

    `--write` puts the chosen recipe in the place of the recipe `default`, and the measurements into
    `lowering-times.json`. No build measures anything.

    `--check` ends with status 1 if a candidate is better than the written choice by more than the limit, and with
    status 2 if the written choice cannot be measured. Candidates without a measurement are listed.
    """
    refuse_beside_check(context)
    if not limit >= 1:
        raise click.UsageError("`--limit` is no number.")
    if limit != LIMIT and not is_check:
        raise click.UsageError("`--limit` belongs to `--check`.")
    from hatch_lower.cli.measure.tune.choose import find_wanted_models
    from hatch_lower.cli.measure.tune.write import read_files

    failed = False
    try:
        project = open_project(root)
        names = find_wanted_models(project.settings, model)
        files = read_files(project.settings.root, project.table)
        if is_check:
            failed = show_checks(project, files.evidence, names, budget, limit)
        else:
            show_choices(project, files, names, Options(aim or AIMS[0], budget, backends, precisions), write=write)
    except LowerError as error:
        show_error(error)
        context.exit(UNMEASURED)
    context.exit(BROKEN if failed else 0)


def refuse_beside_check(context: click.Context) -> None:
    """Refuse options that `--check` cannot have: of writing, and of candidates, which the measurements name."""
    given = context.params
    if not given["is_check"]:
        return
    if given["write"]:
        raise click.UsageError("`--check` only compares and `--write` writes a new choice: leave out one of the two.")
    options = {"--for": "aim", "--backend": "backends", "--precision": "precisions"}
    if named := [option for option, name in options.items() if given[name]]:
        text = " and ".join(f"`{option}`" for option in named)
        raise click.UsageError(f"`--check` takes aim and candidates from `{EVIDENCE_FILE}`: leave out {text}.")


class Options(Frozen):
    aim: Aim
    budget: float  # seconds
    backends: tuple[str, ...]
    precisions: tuple[Precision, ...]


def show_choices(project: Project, files: WrittenFiles, names: Sequence[str], options: Options, *, write: bool) -> None:
    """Choose the recipes of models, and print the choices; write the choices if every model has a choice."""
    from hatch_lower.cli.measure.tune.candidates import refuse_no_engine
    from hatch_lower.cli.tune_text import tuned_lines

    # a damaged file, a missing library and a read-only folder are refused before minutes have passed
    evidence = files.evidence
    if write:
        import tomlkit  # noqa: F401

        refuse_read_only(files.path, files.evidence_path)
    refuse_no_engine(project.settings, options.backends)
    with opened_project(project) as (opened, tell):
        announce(announced_line(names, options.budget))
        tuned = [tuned_model(opened, wanted_for(project, name, evidence, options), tell) for name in names]
    for each in tuned:
        show(tuned_lines(each))
    if write:
        show(written_lines(files, project, tuned))


def show_checks(project: Project, evidence: Evidence, names: Sequence[str], budget: float, limit: float) -> bool:
    """Print the verdicts on written choices; return whether a candidate is better than a choice."""
    from hatch_lower.cli.measure.tune.check import verdict_lines

    with opened_project(project) as (opened, tell):
        announce(announced_line(names, budget))
        checked = [checked_model(opened, evidence, name, budget, limit, tell) for name in names]
    for each in checked:
        show(verdict_lines(each))
    return any(each.better for each in checked)


def announced_line(names: Sequence[str], budget: float) -> str:
    return f"lowering and timing recipes of {', '.join(names)}: the timing takes {budget:g} s at most for each model"


@contextmanager
def opened_project(project: Project) -> Iterator[tuple[TunedProject, Tell]]:
    """Yield the project with its cache and its import paths, and the function that shows progress."""
    from hatch_lower.cli.measure.temporary import work_folder
    from hatch_lower.cli.measure.tune.bench import TunedProject
    from hatch_lower.driver.context import open_cache, write_site
    from hatch_lower.driver.signals import ending_on_signals

    check_libraries()
    settings = project.settings
    with ending_on_signals(), progress() as tell, work_folder() as work:
        paths = write_site(settings, project.view, work)
        store = open_cache(settings, lambda line: show([f"hatch-lower: {line}"], err=True))
        yield TunedProject(settings, project.view, store, tuple(map(str, paths))), tell


def check_libraries() -> None:
    from hatch_lower.cli.measure.figures import libraries

    try:
        libraries()
    except ConfigError as error:
        raise ConfigError(error.what, found=error.found, hint="install `hatch-lower[bench]`") from error


def wanted_for(project: Project, model: str, evidence: Evidence, options: Options) -> Wanted:
    from hatch_lower.cli.measure.tune.bench import threads_for
    from hatch_lower.cli.measure.tune.choose import Wanted, current_recipe
    from hatch_lower.runtime.selection import machine_level

    settings, level = project.settings, machine_level()
    return Wanted(
        settings,
        model,
        options.aim,
        options.budget,
        level,
        threads_for(settings, model, options.aim),
        options.backends,
        options.precisions,
        current_recipe(settings, model, evidence, level),
    )


def tuned_model(project: TunedProject, wanted: Wanted, tell: Tell) -> TunedModel:
    from hatch_lower.cli.measure.tune.bench import ProjectBench
    from hatch_lower.cli.measure.tune.choose import tune_recipe

    (model,) = (each for each in wanted.settings.models if each.name == wanted.model)
    return tune_recipe(wanted, ProjectBench(project, model, wanted.threads, wanted.budget), tell, time.monotonic)


def checked_model(
    project: TunedProject, evidence: Evidence, name: str, budget: float, limit: float, tell: Tell
) -> CheckedModel:
    from hatch_lower.cli.measure.tune.bench import ProjectBench
    from hatch_lower.cli.measure.tune.check import check_choice, checked_choice
    from hatch_lower.cli.measure.tune.choose import Wanted
    from hatch_lower.runtime.selection import machine_level

    level = machine_level()
    wanted = Wanted(project.settings, name, AIMS[0], budget, level, threads=1)
    choice = checked_choice(wanted, evidence)
    threads = max((each.threads for each in evidence.of_model(name, level)), default=1)
    wanted = replace(wanted, aim=choice.aim, threads=threads)
    (model,) = (each for each in project.settings.models if each.name == name)
    bench = ProjectBench(project, model, threads, budget)
    return check_choice(wanted, evidence, limit, bench, tell, time.monotonic)


def written_lines(files: WrittenFiles, project: Project, tuned: Sequence[TunedModel]) -> Iterator[str]:
    """Write the choices; yield a line for each changed file, and the requirements that the project lacks."""
    from hatch_lower.backends.early import early_requirements
    from hatch_lower.cli.measure.tune.write import write_choices
    from hatch_lower.config.requirements import requirements_to_add

    settings = project.settings
    written = write_choices(files, settings, tuned)
    root = os.path.realpath(settings.root)
    changed = (path.relative_to(root) if path.is_relative_to(root) else path for path in written.changed)
    yield from (f"changed {path}" for path in changed)
    if not written.changed:
        yield "no file changes"
    for model, best, first in written.misplaced:
        yield (
            f"note: `load` tries `{first}` before `{best}` for {model}: models share the order of the recipes' tables;"
            f" leave `{first}` out of the model's `recipes` for another order"
        )
    chosen = {each.choice.recipe: early_requirements(each.chosen.recipe) for each in tuned}
    if settings.dependencies is not None:
        try:
            requirements_to_add(settings.runtime_requirements, chosen, settings.dependencies)
        except ConfigError as error:
            yield "the next build needs other dependencies:"
            yield from (f"  {line}" for line in (error.found or error.what).split("\n"))
