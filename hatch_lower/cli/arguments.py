"""Arguments that several commands share: what names a model or a project, and the models and recipes in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hatch_lower.build.contents import Contents
from hatch_lower.cache.store import Store, open_store
from hatch_lower.cli.output import show
from hatch_lower.cli.wheels import newest, wheels_in
from hatch_lower.errors import ProgramError, nearest
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.hatch.outside import find_project, open_project

if TYPE_CHECKING:
    from hatch_lower.hatch.project import Project

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
path_option = click.option(
    "--path", "is_path", is_flag=True, help="Take the argument for a path though it has no separator."
)
model_option = click.option("--model", help="The model, where there are several.")
recipe_option = click.option("--recipe", help="The recipe. Default: the first in load order.")
root_option = click.option(
    "--root", type=click.Path(path_type=Path), default=Path(), help="The project. Default: this folder."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")


def target_of(text: str, is_path: bool) -> str | Path:
    """Return the path, or the name of an installed model or distribution, that a command's argument means.

    A folder that holds wheels and no lowered models, such as `dist/`, means its newest wheel.
    """
    # what lies in the current folder does not decide: it may be anybody's
    has_separator = os.sep in text or (os.altsep is not None and os.altsep in text)
    if is_path or has_separator or text in (os.curdir, os.pardir) or text.endswith(".whl"):
        return wheel_at(Path(text))
    return text


def wheel_at(path: Path) -> Path:
    if not path.is_dir() or (path / "pyproject.toml").exists():
        return path
    wheels = wheels_in(path)
    if not wheels:
        return path
    wheel = newest(wheels)
    if len(wheels) > 1:
        show([f"hatch-lower: {wheel} is the newest of {len(wheels)} wheels"], err=True)
    return wheel


def project_here(root: Path | None) -> Project | None:
    """Return the project at `root`; or the one in this folder, if there is one that uses hatch-lower."""
    return find_project(Path()) if root is None else open_project(root)


def choose_model(folders: list[Contents], model: str | None) -> tuple[Contents, str, ModelEntry]:
    every = [(contents, name) for contents in folders for name in contents.models]
    chosen = [row for row in every if model is None or row[1] == model]
    if len(chosen) != 1:
        raise ProgramError(
            "there is no such model" if model and not chosen else "there is more than one model",
            where=", ".join(folder.place for folder in folders),
            found=nearest(model or "", [name for _, name in every]),
            hint="name one with `--model`",
        )
    contents, name = chosen[0]
    return contents, name, contents.manifest.models[name]


def choose_recipe(model: str, entry: ModelEntry, recipe: str | None) -> str:
    if recipe is not None and recipe not in entry.recipes:
        raise ProgramError("there is no such recipe", where=f"model `{model}`", found=nearest(recipe, entry.recipes))
    return recipe or entry.order[0]


def open_here() -> Store:
    # why the cache is not used goes to stderr
    return open_store(os.environ, lambda line: show([f"hatch-lower: {line}"], err=True))
