"""`hatch-lower new-backend`: a distribution with a backend, its two halves and their tests, to begin with."""

from __future__ import annotations

import importlib.metadata
import keyword
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click

from hatch_lower import BACKEND_GROUP, DELEGATE_GROUP
from hatch_lower.cli.output import show
from hatch_lower.errors import ConfigError, ProcessError, refused_error

TEMPLATE = Path(__file__).with_name("template")
# What is an identifier of Python, and with `-` for `_` a distribution's name (PEP 508) in its normal form
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# File of the template to its place in the new folder
FILES: Mapping[str, str] = MappingProxyType(
    {
        "README.md.in": "README.md",
        "__init__.py.in": "{package}/__init__.py",
        "compile.py.in": "{package}/compile.py",
        "pyproject.toml.in": "pyproject.toml",
        "run.py.in": "{package}/run.py",
        "test_backend.py.in": "tests/test_{name}.py",
    }
)


@dataclass(frozen=True, slots=True)
class Names:
    """What a new backend is called."""

    name: str  # its id, by which recipes name it

    @property
    def package(self) -> str:
        return f"{self.name}_backend"

    @property
    def distribution(self) -> str:
        return self.package.replace("_", "-")

    @property
    def prefix(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))


@click.command("new-backend")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="The new folder. Default: one named after the distribution, here.",
)
def new_backend(name: str, directory: Path | None) -> None:
    """Write a distribution with a new backend of that id.

    It has a compile half, a run half, and the tests of hatch-lower's kit, and can be installed as it is.
    """
    names = check_name(name)
    folder = Path(names.distribution) if directory is None else directory
    written = write_backend(names, folder)
    show([*map(str, written), "", f'next: cd {folder} && pip install -e ".[test]" && pytest'])


def check_name(name: str) -> Names:
    if NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            "a backend cannot have such a name",
            found=f"`{name}`",
            hint="use lower-case letters and digits, with single underscores between words: `my_engine`",
        )
    for group in (BACKEND_GROUP, DELEGATE_GROUP):
        for entry_point in importlib.metadata.entry_points(group=group, name=name):
            raise ConfigError(
                f"there is a backend `{name}` already",
                where=f"entry points `{group}`",
                found=f"`{entry_point.value}`",
                hint="choose another name: two backends with one id cannot be installed together",
            )
    return Names(name)


def render(names: Names) -> dict[str, str]:
    return {
        path.format(package=names.package, name=names.name): rename((TEMPLATE / file).read_text("utf-8"), names)
        for file, path in FILES.items()
    }


def rename(text: str, names: Names) -> str:
    """Return a text of the template, which is about a backend called `demo`, about another one."""
    renamed = {
        "demo_backend": names.package,
        "demo-backend": names.distribution,
        "Demo": names.prefix,
        "demo": names.name,
    }
    return re.sub("|".join(renamed), lambda match: renamed[match[0]], text)


def write_backend(names: Names, folder: Path) -> list[Path]:
    """Write a new backend; return its files. There is the whole folder afterwards, or none."""
    if os.path.lexists(folder):
        raise ConfigError(
            "the folder for the new backend is there already",
            where=str(folder),
            hint="name one that does not exist with `--directory`",
        )
    files = sorted(render(names).items())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".hatch-lower-", dir=folder.parent) as beside:
            unfinished = Path(beside, "unfinished")  # not `beside`, which nobody else may read
            for path, text in files:
                place = unfinished / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, "utf-8")
            unfinished.rename(folder)
    except OSError as error:
        raise refused_error(error, str(folder)) or ProcessError(
            "the new backend cannot be written", where=str(error.filename or folder), found=error.strerror or str(error)
        ) from error
    return [folder / path for path, _ in files]
