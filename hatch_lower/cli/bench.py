"""`hatch-lower bench`: measure lowered models, compare with another version, and check limits."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hatch_lower.cli.arguments import OUTPUT, project_here, target_of
from hatch_lower.cli.output import show, show_error, write_output_file
from hatch_lower.config.checkpoint import absolute_export
from hatch_lower.errors import ConfigError, LowerError, PackageError, printable

if TYPE_CHECKING:
    from hatch_lower.cli.measure.command import Tell
    from hatch_lower.cli.measure.gate import Result, Task
    from hatch_lower.cli.measure.side import BenchSide
    from hatch_lower.hatch.project import Project

BROKEN, UNMEASURED = 1, 2  # exit statuses
DAY = 24 * 60 * 60


class Seconds(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):  # no comparison with a bound refuses NaN
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


@click.command()
@click.argument("target", metavar="A")
@click.option("--against", metavar="B", help="Compare with B: a wheel, model or folder, like A.")
@click.option("--against-rev", metavar="REV", help="Build the project at a git revision, and compare with the build.")
@click.option("--root", type=click.Path(path_type=Path), help="The project with the limits. Default: this folder.")
@click.option(
    "--budget",
    type=Seconds(0, DAY),
    metavar="SECONDS",
    help="Time for timing; 0: exact figures only. Default: the table's budget.",
)
@click.option("--builds", is_flag=True, help="Time a cold and a warm build of each side from its sources.")
@click.option("--strict", is_flag=True, help="Fail also if a limit is not decided.")
@click.option(
    "--json", "json_file", type=OUTPUT, metavar="FILE", help="Write the figures in the format of pytest-benchmark."
)
@click.option(
    "--markdown",
    "markdown_file",
    type=OUTPUT,
    metavar="FILE",
    help="Append a table and the differences, for a job's summary.",
)
@click.pass_context
def bench(
    context: click.Context,
    target: str,
    against: str | None,
    against_rev: str | None,
    root: Path | None,
    budget: float | None,
    builds: bool,
    strict: bool,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure models, alone or beside another version.

    A is a wheel, an installed model or distribution, a folder with lowered models, a folder with wheels such as
    `dist/` (the newest wheel counts), or a project's folder, which is built. Limits are in the table `bench`
    of the project. Ends with status 0 if all limits are kept, 1 if a limit is broken, 2 if a measurement fails.
    """
    if against is not None and against_rev is not None:
        raise click.UsageError("`--against` and `--against-rev` exclude each other.")
    from hatch_lower.cli.bench_text import bench_lines
    from hatch_lower.cli.measure import figures as statistics
    from hatch_lower.cli.measure.gate import Task, measure_sides
    from hatch_lower.cli.measure.project import built_revision
    from hatch_lower.driver.signals import ending_on_signals

    try:
        check_folders(json_file, markdown_file)
        if budget != 0 or builds:
            statistics.libraries()  # raises before minutes have passed
        with ending_on_signals(), ExitStack() as stack:
            tell = stack.enter_context(progress())
            project = project_here(root)
            task = Task(
                first=stack.enter_context(open_target(target_of(target), tell)),
                budget=budget,
                builds=builds,
                environment=os.environ,
            )
            if project is not None:
                task = with_project(task, project, stack)
            second: AbstractContextManager[BenchSide] | None = None
            if against is not None:
                second = open_target(target_of(against), tell)
            elif against_rev is not None:
                second = built_revision(required(project).settings.root, against_rev, os.environ, tell)
            if second is not None:
                task = replace(task, second=stack.enter_context(second))
            if against is not None:
                task = with_titles(task, target, against)
            result = measure_sides(task, tell, announce)
            texts = report_texts(task, result, root or Path(), json_file, markdown_file)
        titles = [side.title for side in task.sides.values()]
        show(bench_lines(titles, result))
        for path, text, append in texts:
            write_output_file(path, text, "report", append=append)
    except LowerError as error:
        show_error(error)
        context.exit(UNMEASURED)
    context.exit(BROKEN if result.is_broken or (strict and result.is_undecided) else 0)


def check_folders(*files: Path | None) -> None:
    """Refuse a report in a folder that does not exist or cannot be written to, before minutes have passed."""
    for path in files:
        if path is not None and not os.access(path.absolute().parent, os.W_OK):
            raise PackageError(
                "the report cannot be written",
                where=str(path),
                found="no writable folder",
                hint="make the folder first, or name another folder",
            )


def report_texts(
    task: Task, result: Result, root: Path, json_file: Path | None, markdown_file: Path | None
) -> list[tuple[Path, str, bool]]:
    """Return path and text of the files to write, and whether the text is appended."""
    from hatch_lower.cli.bench_text import markdown_text
    from hatch_lower.cli.measure.json_report import report_text

    texts = []
    if json_file is not None:
        figures = {name: result.figures_of(name) for name in task.sides}
        texts.append((json_file, report_text(task.sides, figures, result.measured, result.rows, root), False))
    if markdown_file is not None:
        titles = [side.title for side in task.sides.values()]
        texts.append((markdown_file, markdown_text(titles, result, diff_lines(task)), True))
    return texts


def required(project: Project | None) -> Project:
    if project is None:
        raise ConfigError(
            "`--against-rev` needs a project that uses hatch-lower",
            where=str(Path().resolve()),
            found="no project that uses hatch-lower",
            hint="run this in the project's folder, or name the folder with `--root`",
        )
    return project


def with_project(task: Task, project: Project, stack: ExitStack) -> Task:
    """Return the task with the project's limits and eager modules."""
    from hatch_lower.cli.measure.temporary import work_folder
    from hatch_lower.cli.measure.timed import Eager
    from hatch_lower.driver.context import write_site

    settings = project.settings
    paths = write_site(settings, project.view, stack.enter_context(work_folder()))
    return replace(
        task,
        table=settings.bench,
        table_path=project.table,
        eager={
            model.name: Eager(tuple(map(str, paths)), absolute_export(model.export, settings.root))
            for model in settings.models
        },
        imports={recipe.name: recipe.imports for recipe in settings.recipes},
    )


def with_titles(task: Task, first: str, second: str) -> Task:
    """Return the task with different titles for the sides: equal titles get the typed argument."""
    assert task.second is not None
    title = task.first.title
    if title != task.second.title or first == second:
        return task
    titles = [typed if Path(typed).name == title else f"{title} ({typed})" for typed in (first, second)]
    return replace(task, first=replace(task.first, title=titles[0]), second=replace(task.second, title=titles[1]))


def open_target(target: str | Path, tell: Tell) -> AbstractContextManager[BenchSide]:
    from hatch_lower.cli.measure.project import built_project, is_project
    from hatch_lower.cli.measure.side import open_side

    if isinstance(target, Path) and is_project(target):
        return built_project(target, os.environ, tell)
    return open_side(target)


def diff_lines(task: Task) -> list[str]:
    """Return the lines of `hatch-lower diff B A`."""
    from hatch_lower.cli.diff import model_change_lines
    from hatch_lower.driver.diff.models import compare_models, models_of_folders

    if task.second is None:
        return []
    first, second = (models_of_folders(side.title, side.contents) for side in (task.second, task.first))
    return list(model_change_lines(first.title, second.title, compare_models(first, second)))


def announce(line: str) -> None:
    """Print work that takes minutes to a log; a terminal shows each step (`progress`)."""
    if not sys.stderr.isatty():
        show([line], err=True)


@contextmanager
def progress() -> Iterator[Tell]:
    """Yield a function that shows the current step in a line of the terminal, if there is a terminal."""
    if not sys.stderr.isatty():
        yield lambda line: None
        return
    columns = shutil.get_terminal_size().columns

    def tell(line: str) -> None:
        sys.stderr.write("\r\x1b[2K" + f"  {printable(line)} …"[: max(columns - 1, 0)])
        sys.stderr.flush()

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
