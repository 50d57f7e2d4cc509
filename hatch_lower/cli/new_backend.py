"""`hatch-lower new-backend`: write a distribution with a backend, its two halves and tests."""

from __future__ import annotations

import importlib.metadata
import keyword
import re
from collections.abc import Mapping
from pathlib import Path

import click

from hatch_lower import BACKEND_GROUP, DELEGATE_GROUP
from hatch_lower.cli.output import show
from hatch_lower.driver.new_folder import folder_in_place
from hatch_lower.errors import ConfigError

KIT_TIME = "the kit lowers and runs many programs, which takes minutes; pytest-xdist (`pytest -n auto`) divides them"
TEMPLATE = Path(__file__).with_name("template")
# A Python identifier that is, with `-` for `_`, the normal form of a distribution's name (PEP 508)
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# File of the template for the backend `demo`, to its place in the new folder
FILES: Mapping[str, str] = {
    "README.md.in": "README.md",
    "__init__.py.in": "demo_backend/__init__.py",
    "compile.py.in": "demo_backend/compile.py",
    "pyproject.toml.in": "pyproject.toml",
    "run.py.in": "demo_backend/run.py",
    "test_backend.py.in": "tests/test_demo.py",
}


@click.command("new-backend")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="The new folder. Default: the name of the distribution.",
)
def new_backend(name: str, directory: Path | None) -> None:
    """Write a distribution with a new backend.

    The distribution has a compile half, a run half, and tests with hatch-lower's kit, and is ready to install.
    """
    check_name(name)
    folder = Path(renamed_template("demo-backend", name)) if directory is None else directory
    written = write_backend(name, folder)
    show([*map(str, written), "", f'next: cd {folder} && pip install -e ".[test]" && pytest', KIT_TIME])


def check_name(name: str) -> None:
    if NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            "the name of the backend is not allowed",
            found=f"`{name}`",
            hint="use lower-case letters and digits, with single underscores between words: `my_engine`",
        )
    for group in (BACKEND_GROUP, DELEGATE_GROUP):
        for entry_point in importlib.metadata.entry_points(group=group, name=name):
            raise ConfigError(
                f"there is a backend `{name}` already",
                where=f"entry points `{group}`",
                found=f"`{entry_point.value}`",
                hint="choose another name: two backends with the same id cannot be installed together",
            )


def render(name: str) -> dict[str, str]:
    return {
        renamed_template(path, name): renamed_template((TEMPLATE / file).read_text("utf-8"), name)
        for file, path in FILES.items()
    }


def renamed_template(text: str, name: str) -> str:
    """Return a text of the template with the names of this backend."""
    package, prefix = f"{name}_backend", "".join(part.capitalize() for part in name.split("_"))
    names = {"demo_backend": package, "demo-backend": package.replace("_", "-"), "Demo": prefix, "demo": name}
    return re.sub("|".join(names), lambda match: names[match[0]], text)


def write_backend(name: str, folder: Path) -> list[Path]:
    """Write a new backend, completely or not at all; return its files."""
    files = sorted(render(name).items())
    with folder_in_place(folder, "new backend", "--directory") as unfinished:
        for path, text in files:
            place = unfinished / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
    return [folder / path for path, _ in files]
