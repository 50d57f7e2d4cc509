"""The project as the hook `lower` sees it, read outside of a build, for the command line."""

from __future__ import annotations

import importlib.util
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.errors import ConfigError

if TYPE_CHECKING:
    from hatch_lower.hatch.project import Project


class UnusedHookError(ConfigError):
    """The project does not use hatch-lower."""


def check_present(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            "there is no project",
            where=str(path.parent),
            found="no file `pyproject.toml`",
            hint="run this in the project's folder, or name it with `--root`",
        )
    if importlib.util.find_spec("hatchling") is None:
        raise ConfigError(
            "hatchling is not installed here",
            where=str(path),
            hint="install hatchling, or run this in the environment in which the project is built",
        )


def read_pyproject(path: Path) -> dict[str, Any]:
    check_present(path)
    from hatchling.metadata.core import load_toml

    try:
        return load_toml(str(path))
    except ValueError as error:
        raise ConfigError("the project's file cannot be read", where=str(path), found=str(error)) from error


def open_project(root: Path) -> Project:
    """Return the project in the folder `root`, as the hook would see the project in a build."""
    root = Path(os.path.abspath(root))
    check_present(root / "pyproject.toml")
    from hatchling.builders.wheel import WheelBuilder
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    from hatch_lower.hatch.project import HOOK, read_project

    file = str(root / "pyproject.toml")
    try:
        plugins = PluginManager()
        metadata = ProjectMetadata(str(root), plugins)
        builder = WheelBuilder(str(root), plugins, metadata=metadata)
        metadata.validate_fields()
        hooks = builder.get_build_hooks(builder.config.directory)
        build_data = builder.get_default_build_data()
        builder.set_build_data_defaults(build_data)
    except Exception as error:  # hatchling raises many kinds of exceptions
        raise unreadable_error(error, file) from error
    if HOOK not in hooks:
        raise UnusedHookError(
            "the project does not use hatch-lower", where=file, found="no table `[tool.hatch.build.hooks.lower]`"
        )
    build_data["build_hooks"] = tuple(hooks)  # hooks do not run: files of hooks are in the state of the last build
    try:
        return read_project(hooks[HOOK], build_data)
    except (TypeError, ValueError) as error:  # hatchling checks fields such as `exclude` when they are first used
        if not is_of_hatchling(error):
            raise
        raise unreadable_error(error, file) from error


def is_of_hatchling(error: Exception) -> bool:
    modules = (frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.partition(".")[0] == "hatchling" for module in modules)


def unreadable_error(error: Exception, file: str) -> ConfigError:
    """Return the error for a project that hatchling refuses; hatchling's errors for wrong fields name the field."""
    from hatchling.plugin.exceptions import UnknownPluginError

    wrong_field = isinstance(error, (TypeError, ValueError)) and not isinstance(error, UnknownPluginError)
    return ConfigError(
        "hatchling cannot read the project",
        where=file,
        found=f"{type(error).__name__}: {error}",
        hint="correct the field that the error names"
        if wrong_field
        else "install the packages that `[build-system] requires` names; the error of `hatch build` says more",
    )


def find_project(root: Path) -> Project | None:
    """Return the project in a folder, or `None` for a folder without a project that uses hatch-lower."""
    if not (root / "pyproject.toml").is_file():
        return None
    try:
        return open_project(root)
    except UnusedHookError:
        return None
