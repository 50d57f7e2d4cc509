"""The lowered models of a run of pytest: methods by name, a loaded recipe at a time, and limits."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.cli.measure.errors import measure_errors
from hatch_lower.cli.measure.exact import exact_figures
from hatch_lower.cli.measure.figures import ChildFigures, Figures, FigureSubject
from hatch_lower.cli.measure.gate import limit_names, plan_of
from hatch_lower.cli.measure.json_report import exact_of
from hatch_lower.cli.measure.limits import (
    LIMITS,
    Limit,
    breach_text,
    check_names,
    dimensions_of,
    exact_row,
    limits_for,
    ways,
)
from hatch_lower.cli.measure.project import PROJECT_FILE, built_project
from hatch_lower.cli.measure.side import BenchSide, comparable, side_of_places
from hatch_lower.cli.measure.temporary import shared_folder
from hatch_lower.cli.measure.timed import SHORTEST
from hatch_lower.cli.wheels import find_wheels, newest
from hatch_lower.config.settings import HOOK_PATH
from hatch_lower.config.tables import BenchTable
from hatch_lower.driver.contents import find_contents, unpack_models
from hatch_lower.errors import ConfigError, LowerError, error_from_json, nearest
from hatch_lower.frozen import Frozen
from hatch_lower.hatch.outside import find_project, open_project
from hatch_lower.runtime.files import open_folder
from hatch_lower.runtime.loaded import arrays_of

if TYPE_CHECKING:
    from hatch_lower.cli.measure.opened import Opened
    from hatch_lower.hatch.project import Project
    from hatch_lower.runtime.loaded import LoadedModel

MARKER = "lowered_limits"
# limits that need no other side
JUDGED = {name: judged.metrics[0] for name, judged in LIMITS.items() if judged.kind in ("greatest", "least")}


class MethodCase(Frozen):
    """A method with sizes of its dynamic dimensions and a number of threads."""

    subject: FigureSubject
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """`digits/default/forward`, or with sizes or threads `digits/default/forward[batch=32, threads=2]`."""
        return str(replace(self.subject, threads=0) if self.subject.threads == 1 else self.subject)

    @property
    def group(self) -> str:
        """The group of comparable calls: the same call of every recipe."""
        return MethodCase(replace(self.subject, recipe=""), self.sizes).name

    @property
    def test_id(self) -> str:
        return self.name.replace("/", "-").replace("[", "-").replace(", ", "-").removesuffix("]")


class ExampleInputs(Frozen):
    """Inputs of a call of a method: the packaged check inputs, or inputs of other sizes."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    changes: bool  # whether a call changes its inputs or the model's state, so that each timed call needs new inputs
    # resets the model's state and returns new inputs, for `benchmark.pedantic(…, setup=…)`
    renew: Callable[[], tuple[tuple[object, ...], dict[str, object]]]


class Loaded(Frozen):
    opened: Opened
    model: LoadedModel

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method, which on a GPU waits for its results, so that a clock around the call measures the work."""
        function, wait = self.model.methods[name], arrays_of(self.model).clock()
        return function if self.model.device == "cpu" else functools.partial(call_and_wait, function, wait)

    def inputs(self, case: MethodCase) -> ExampleInputs:
        from hatch_lower.cli.measure.opened import input_values
        from hatch_lower.runtime.check import make_call_arguments

        name = case.subject.method
        method = self.opened.methods[name]
        leaves = input_values(name, method, self.opened.tensors, case.sizes)

        def renew() -> tuple[tuple[object, ...], dict[str, object]]:
            self.model.reset()
            args, kwargs = make_call_arguments(method, leaves, arrays_of(self.model))
            return tuple(args), kwargs

        return ExampleInputs(*renew(), self.opened.changes(name), renew)


def call_and_wait(function: Callable[..., Any], wait: Callable[[], int], *args: object, **kwargs: object) -> Any:
    results = function(*args, **kwargs)
    wait()
    return results


class ModelsUnderTest:
    """The methods of a wheel; the project's limits name these methods only."""

    def __init__(self, side: BenchSide, project: Project | None) -> None:
        table, path = (BenchTable(), HOOK_PATH) if project is None else (project.settings.bench, project.table)
        self._side = side
        self._table = table
        self._imports = {} if project is None else {each.name: each.imports for each in project.settings.recipes}
        self._last: tuple[tuple[str, str, int], Loaded] | None = None
        methods, _ = comparable(side, side)
        plans = {subject: plan_of(side, subject) for subject in methods}
        check_names(table, limit_names(side), path)
        cases = [
            MethodCase(subject.called(sizes, threads), sizes)
            for subject, plan in plans.items()
            for sizes, threads in ways(table, subject, [symbol.name for symbol in dimensions_of(plan)])
        ]
        self.cases = {case.name: case for case in cases}

    def find(self, name: str) -> MethodCase:
        if name not in self.cases:
            raise ConfigError("there is no such lowered method", where=name, found=nearest(name, self.cases))
        return self.cases[name]

    def refusal(self, case: MethodCase) -> str | None:
        from hatch_lower.cli.measure.opened import recipe_refusal

        folder = self._side.folders[case.subject.model].path
        return recipe_refusal(folder, case.subject.model, case.subject.recipe)

    @contextmanager
    def loaded(self, case: MethodCase) -> Iterator[Loaded]:
        """Load a method's recipe with its packaged state, and set the number of threads of the calls."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(case.subject.threads)  # before the load, when engines read the number
        try:
            found = self._load(case.subject)
            found.model.reset()
            yield found
        finally:
            torch.set_num_threads(before)

    def _load(self, subject: FigureSubject) -> Loaded:
        from hatch_lower.cli.measure.opened import load_opened, open_model

        key = subject.model, subject.recipe, subject.threads
        if self._last is None or self._last[0] != key:
            self._last = None  # a single recipe in memory
            folder = self._side.folders[subject.model].path
            opened = open_model(str(folder), subject.model, subject.recipe)
            imports = self._imports.get(subject.recipe, ())
            request = {"model": subject.model, "recipe": subject.recipe, "imports": imports}
            self._last = key, Loaded(opened, load_opened(opened, request))
        return self._last[1]

    def broken_limits(self, case: MethodCase, marked: Mapping[str, float]) -> list[str]:
        """Return a sentence for each broken limit of a method; a marker's limits override the table's."""
        limits = {limit.name: limit for limit in limits_for(self._table, case.subject) if limit.name in JUDGED}
        limits |= {
            name: Limit(name, JUDGED[name], LIMITS[name].kind, value, f"{MARKER}.{name}")
            for name, value in marked.items()
        }
        method, *_ = parts = case.subject.parts()
        found = {part: dict(self._figures.get(part, {})) for part in parts}
        if any(limit.metric == "error" and limit.setting != "default" for limit in limits.values()):
            found[method] |= self._errors.figures.get(method, {})
        rows = [
            exact_row(subject, limit.metric, figures[limit.metric], None, [limit])
            for limit in limits.values()
            for subject, figures in found.items()
            if limit.metric in figures
        ]
        return [breach_text(row, breach) for row in rows for breach in row.breaches]

    def facts(self, case: MethodCase) -> dict[str, float]:
        return exact_of(self._figures, case.subject)

    @functools.cached_property
    def _figures(self) -> Figures:
        return exact_figures(self._side)

    @functools.cached_property
    def _errors(self) -> ChildFigures:
        return measure_errors(self._side.folders, self._side.title, max(self._table.budget, SHORTEST), self._imports)


def open_models(root: Path, is_asked: bool, wheel: Path | None, run: str, stack: ExitStack) -> ModelsUnderTest:
    """Build a project, or take a wheel, and open its models until the stack closes.

    Without an explicit project (`is_asked`), a wheel needs no project. Processes with the same `run` share a build.
    """
    project = required_project(root) if is_asked or wheel is None else find_project(root)
    if wheel is not None and wheel.is_dir() and (wheels := find_wheels(wheel)):
        wheel = newest(wheels)

    def fill(folder: Path) -> None:
        try:
            unpack_models(built_wheel(root, folder) if wheel is None else wheel, new_folder(folder / "models"))
        except LowerError as error:
            (folder / "error.json").write_text(json.dumps(error.to_json()))  # other processes read the error

    folder = stack.enter_context(shared_folder(run, fill))
    if (folder / "error.json").exists():
        raise error_from_json(json.loads((folder / "error.json").read_text()))
    taken = next((folder / "wheel").iterdir()) if wheel is None else wheel
    contents = find_contents(taken)
    folders = [open_folder(folder / "models" / str(position)) for position in range(len(contents))]
    places = [(each.place, opened, each.models) for each, opened in zip(contents, folders, strict=True)]
    return ModelsUnderTest(side_of_places(taken.name, contents, places), project)


def required_project(root: Path) -> Project:
    if not (root / PROJECT_FILE).is_file():
        raise ConfigError(
            "there is no project to test",
            where=str(root),
            found=f"no file `{PROJECT_FILE}`",
            hint="name the project's folder with `--hatch-lower-root`, or a wheel with `--hatch-lower-wheel`",
        )
    return open_project(root)


def built_wheel(root: Path, folder: Path) -> Path:
    with built_project(root, os.environ, lambda line: None) as side:
        assert side.wheel is not None
        return Path(shutil.copy2(side.wheel, new_folder(folder / "wheel")))


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def check_limits(unnamed: Sequence[object], given: Mapping[str, object], where: str) -> dict[str, float]:
    """Return a marker's limits by their names in the table."""
    if unnamed:
        raise ConfigError("limits have names: `max_kernels=10`", where=where, found=", ".join(map(repr, unnamed)))
    known = {name.replace("-", "_"): name for name in JUDGED}
    for name, value in given.items():
        if name not in known:
            elsewhere = name.replace("_", "-") in LIMITS
            found = "only `hatch-lower bench` can judge it" if elsewhere else nearest(name, known)
            raise ConfigError(f"`{name}` is no limit of a test", where=where, found=found)
        most = 1.0 if name == "min_delegated" else float("inf")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            bounds = "from 0 to 1" if most == 1 else "of at least 0"
            raise ConfigError(f"`{name}` must be a number {bounds}", where=where, found=repr(value))
    return {known[name]: value for name, value in given.items() if isinstance(value, int | float)}
