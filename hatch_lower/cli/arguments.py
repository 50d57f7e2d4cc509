"""Arguments and options that several commands share: models, recipes, projects, and the caches of the next build."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.cache.store import Store, open_store
from hatch_lower.cli.output import show
from hatch_lower.cli.wheels import find_wheels, newest
from hatch_lower.driver.contents import WheelModels
from hatch_lower.errors import CacheError, ProgramError, nearest
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.hatch.outside import find_project, open_project

if TYPE_CHECKING:
    from hatch_lower.cache.remote.policy import RemotePolicy
    from hatch_lower.config.settings import Settings
    from hatch_lower.driver.context import BuildContext
    from hatch_lower.events import Reporter
    from hatch_lower.hatch.project import Project


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
model_option = click.option("--model", help="The model, if there are several.")
recipe_option = click.option("--recipe", help="The recipe. Default: the first in load order.")
root_option = click.option(
    "--root", type=click.Path(path_type=Path), default=Path(), help="The project. Default: this folder."
)
trust_config_option = click.option(
    "--trust-config", type=FILE, help="The trust configuration of a Sigstore instance. Default: the public instance."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")


def target_of(text: str) -> str | Path:
    """Return a path, or the name of an installed model or distribution.

    A folder with wheels and without lowered models, such as `dist/`, stands for its newest wheel.
    """
    # the contents of the current folder do not decide: anybody may have written them
    has_separator = os.sep in text or (os.altsep is not None and os.altsep in text)
    if has_separator or text in (os.curdir, os.pardir) or text.endswith(".whl"):
        return wheel_at(Path(text))
    return text


def wheel_at(path: Path) -> Path:
    if not path.is_dir() or (path / "pyproject.toml").exists():
        return path
    wheels = find_wheels(path)
    if not wheels:
        return path
    wheel = newest(wheels)
    if len(wheels) > 1:
        show([f"hatch-lower: {wheel} is the newest of {len(wheels)} wheels"], err=True)
    return wheel


def wheel_file(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
    """Return the wheel at a path; raise `ProgramError` for a folder without wheels."""
    wheel = wheel_at(path)
    if wheel.is_dir():
        raise ProgramError(
            "the command takes a wheel, or a folder with wheels",
            where=str(wheel),
            found=kind_of_folder(wheel),
            hint="run `hatch build -t wheel`, and name the wheel or its folder, such as `dist/`",
        )
    return wheel


wheel_argument = click.argument(
    "wheel", metavar="WHEEL", type=click.Path(exists=True, path_type=Path), callback=wheel_file
)


def kind_of_folder(folder: Path) -> str:
    return "the folder of a project" if (folder / "pyproject.toml").exists() else "a folder without wheels"


def project_here(root: Path | None) -> Project | None:
    """Return the project at `root`; without a root, the project in this folder if it uses hatch-lower."""
    return find_project(Path()) if root is None else open_project(root)


def choose_model(folders: list[WheelModels], model: str | None) -> tuple[WheelModels, str, ModelEntry]:
    every = [(contents, name) for contents in folders for name in contents.models]
    chosen = [row for row in every if model is None or row[1] == model]
    if len(chosen) != 1:
        raise ProgramError(
            "there is no such model" if model and not chosen else "there are several models",
            where=", ".join(folder.place for folder in folders),
            found=nearest(model or "", [name for _, name in every]),
            hint="select a model with `--model`",
        )
    contents, name = chosen[0]
    return contents, name, contents.manifest.models[name]


def choose_recipe(model: str, entry: ModelEntry, recipe: str | None) -> str:
    if recipe is not None and recipe not in entry.recipes:
        raise ProgramError("there is no such recipe", where=f"model `{model}`", found=nearest(recipe, entry.recipes))
    return recipe or entry.order[0]


def open_here() -> Store:
    return open_store(os.environ, lambda line: show([f"hatch-lower: {line}"], err=True))


def shared_cache(settings: Settings) -> RemotePolicy | None:
    from hatch_lower.cache.remote.policy import read_policy

    return read_policy(os.environ, settings.cache.remote, settings.cache.public_keys, lambda line: None)


def is_sent(settings: Settings) -> bool:
    policy = shared_cache(settings)
    return policy is not None and policy.push


@contextmanager
def temporary_context(project: Project, store: Store, reporter: Reporter) -> Iterator[BuildContext]:
    """Yield the context of a build in a temporary folder, which is removed also at a signal."""
    from hatch_lower.driver.context import build_context
    from hatch_lower.driver.signals import ending_on_signals

    with ending_on_signals(), tempfile.TemporaryDirectory(prefix="hatch-lower-") as work:
        yield build_context(project.settings, project.view, Path(os.path.realpath(work)), store, reporter)


@contextmanager
def opened_context(root: Path) -> Iterator[BuildContext]:
    """Yield the context of a build of the project; refuse a cache that is off."""
    from hatch_lower.cache.directory import history_path
    from hatch_lower.cache.locks import held_folder
    from hatch_lower.driver.context import CacheNotes, build_context, open_cache
    from hatch_lower.events import SaidOnce
    from hatch_lower.hatch.plugin import WORK_PREFIX
    from hatch_lower.hatch.terminal import reporter_for

    project = open_project(root)
    settings = project.settings
    notes = CacheNotes(settings.name)
    store = open_cache(settings, notes)
    log = history_path(store.directory, settings.root).with_suffix(".log") if store.writes else None
    verbosity = verbosity_of("HATCH_VERBOSE") - verbosity_of("HATCH_QUIET")

    def write_line(line: str) -> None:
        if verbosity >= 0:
            show([line], err=True)

    reporter = SaidOnce(reporter_for(write_line, verbosity, log))
    notes.report_to(reporter)
    if store.mode == "off":
        raise CacheError(
            "units are made for a cache, and it is off",
            where="environment variable `HATCH_LOWER_CACHE`",
            hint="unset it, and name a cache that all machines share in `HATCH_LOWER_REMOTE_CACHE`",
        )
    with held_folder(WORK_PREFIX) as work, closing(reporter):
        yield build_context(settings, project.view, work, store, reporter)


def verbosity_of(variable: str) -> int:
    # Hatch reads its verbosity in the same way
    try:
        return int(os.environ.get(variable, "0"))
    except ValueError:
        return 0
