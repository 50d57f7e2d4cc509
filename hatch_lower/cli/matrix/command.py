"""`hatch-lower check --matrix`: a wheel with each version of its engines, and the narrowed requirement."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.cli.bench import progress
from hatch_lower.cli.matrix.engines import (
    Engine,
    TriedRecipe,
    WheelRequirements,
    choose_trials,
    find_engines,
    read_tried_wheel,
)
from hatch_lower.cli.matrix.environment import (
    CheckedRecipe,
    Environment,
    InstallError,
    Request,
    Workshop,
    make_workshop,
)
from hatch_lower.cli.matrix.places import IndexPlaces, read_places, shown
from hatch_lower.cli.matrix.releases import find_releases
from hatch_lower.cli.matrix.rows import MadeEnvironment, Open, TriedEngine, engine_distributions, try_engine
from hatch_lower.cli.matrix.text import matrix_json, matrix_lines
from hatch_lower.cli.matrix.write import ProjectFile, read_project_file, write_narrowed
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.cli.output import show, show_report
from hatch_lower.driver.contents import loadable_places
from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.runtime.numbers import Tolerance


class MatrixOptions(Frozen):
    model: str | None = None
    recipe: str | None = None
    engines: tuple[str, ...] = ()
    tolerance: Tolerance | None = None  # by default the check's own
    device: str | None = None
    root: Path | None = None  # of the project to write; `None`: nothing is written
    as_json: bool = False


def show_matrix(wheel: Path | str, options: MatrixOptions) -> bool | None:
    """Check a wheel with each version of its engines, print the table, and return whether no version fails.

    `None` if no method was compared.
    """
    if isinstance(wheel, str) or not wheel.is_file():
        raise ConfigError(
            "`--matrix` installs a wheel, and this is no wheel",
            where=str(wheel),
            hint="name the file that `hatch build` made, or its folder with a slash or a dot: `dist/`, `./dist`",
        )
    read = read_tried_wheel(wheel, options.model, options.recipe)
    engines = find_engines(read, options.engines, str(wheel))
    # a requirement that cannot be written is refused before minutes have passed
    file = None if options.root is None else project_file(options.root, read.distribution, engines)
    refuse_missing_weights(wheel, {each.model for each in read.recipes})
    places = read_places(os.environ)
    with progress() as tell, work_folder() as folder:
        workshop = make_workshop(folder, wheel, places)
        tried = try_engines(engines, places, environment_opener(workshop, read, options), tell)
    show_report(matrix_json(wheel.name, tried), options.as_json, lambda _: matrix_lines(tried))
    if file is not None:
        show(narrowed_lines(file, tried), err=options.as_json)
    verdicts = [passes for each in tried for passes in each.versions().values()]
    return False if False in verdicts else True if True in verdicts else None


def refuse_missing_weights(wheel: Path, models: Collection[str]) -> None:
    """Raise the error for weights outside the wheel that are not here: no version of an engine is at fault."""
    from hatch_lower.runtime.load import open_constants, outside_faults

    with loadable_places(wheel) as places:
        opened = [open_constants(folder, name) for _, folder, names in places for name in names if name in models]
        if fault := next(chain.from_iterable(map(outside_faults, opened)), None):
            raise fault


def project_file(root: Path, distribution: str, engines: Sequence[Engine]) -> ProjectFile:
    import tomlkit  # noqa: F401

    return read_project_file(root, distribution, engines)


def try_engines(
    engines: Sequence[Engine], places: IndexPlaces, opened: Open, tell: Callable[[str], None]
) -> list[TriedEngine]:
    names = [shown(place) for place in (*places.indexes, *places.links)]
    # every list of versions is read before the first environment is made
    trials = [choose_trials(engine, find_releases(engine.name, places), names) for engine in engines]
    return [try_engine(engine, own, opened, tell) for engine, own in zip(engines, trials, strict=True)]


class OpenedEnvironment(Frozen):
    environment: Environment
    wheel: WheelRequirements
    engine: Engine
    options: MatrixOptions

    def check(self, tried: TriedRecipe) -> CheckedRecipe:
        asked = self.options.tolerance
        tolerance = None if asked is None else (asked.rtol, asked.atol)
        names = tuple(engine_distributions(self.engine))
        return self.environment.check(Request(self.wheel.distribution, tried, tolerance, self.options.device, names))


def environment_opener(workshop: Workshop, wheel: WheelRequirements, options: MatrixOptions) -> Open:
    @contextmanager
    def opened(engine: Engine, version: str) -> Iterator[MadeEnvironment]:
        try:
            with workshop.environment(engine, version) as environment:
                yield OpenedEnvironment(environment, wheel, engine, options)
        except InstallError:
            find_releases(engine.name, workshop.places)  # an index that is down now is no fault of the version
            raise

    return opened


def narrowed_lines(file: ProjectFile, tried: Sequence[TriedEngine]) -> Iterator[str]:
    changes = write_narrowed(file, tried)
    yield ""
    for change in changes:
        yield f"changed `project.{'.'.join(change.place)}` in {file.path.name}: {change.before} → {change.after}"
    if not changes:
        yield f"no change of {file.path.name}: it allows only versions that passed"
