"""Fresh environments with a wheel, its requirements and one version of an engine, made by uv or by venv and pip."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hatch_lower
from hatch_lower.canonical import recorded_digest, sha256_bytes
from hatch_lower.cli.matrix.engines import Engine, TriedRecipe
from hatch_lower.cli.matrix.places import IndexPlaces, without_installer_settings
from hatch_lower.cli.measure.command import run_limited
from hatch_lower.config.requirements import OWN_NAME
from hatch_lower.driver.signals import uninterrupted
from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.sources import FOLDERS

INSTALL_SECONDS = 60.0 * 60
CHECK_SECONDS = 60.0 * 60
LAST_LINES = 12
NO_SPACE = os.strerror(errno.ENOSPC)
EARLY = (2020, 2, 2, 0, 0, 0)  # a date that an archive can have
CHILD = "hatch_lower.cli.matrix.child"


class InstallError(Exception):
    """The installer refuses a version of an engine; the text has the end of its output."""


class Request(Frozen):
    """The check of a recipe in an environment; the tolerance is relative and absolute, `None` for the usual one."""

    distribution: str
    tried: TriedRecipe
    tolerance: tuple[float, float] | None
    device: str | None
    distributions: tuple[str, ...]  # whose installed versions are reported


class CheckedRecipe(Frozen):
    """The rows of the check of a recipe, as JSON, and the installed versions."""

    rows: tuple[Mapping[str, Any], ...]
    installed: Mapping[str, str]
    ended: str = ""  # the end of a process that has not checked all methods


class Workshop(Frozen):
    """A folder for environments, the wheel under test and hatch-lower's own wheel, and the installer."""

    folder: Path
    wheel: Path
    own: Path
    uv: tuple[str, ...]  # command; empty without uv
    places: IndexPlaces

    @contextmanager
    def environment(self, engine: Engine, version: str) -> Iterator[Environment]:
        """Make an environment with a version of an engine, and remove it after the block.

        Raises `InstallError` if the installer refuses, and `ConfigError` if no environment can be made here.
        """
        root = self.folder / "environment"
        made = Environment(root, self.variables())
        try:
            self.create(root)
            self.install(root, engine, version)
            yield made
        finally:
            with uninterrupted():
                shutil.rmtree(root, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        weights = [os.path.abspath(text) for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]
        return {
            **without_installer_settings(os.environ),
            FOLDERS: os.pathsep.join(weights),  # the check runs in another folder
            **self.places.variables(),
            "PIP_NO_COMPILE": "1",
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_NO_PROGRESS": "1",
        }

    def create(self, root: Path) -> None:
        own = [*self.uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(root)]
        command = own if self.uv else [sys.executable, "-m", "venv", str(root)]
        status, output = run_limited(command, "an environment", None, self.variables(), INSTALL_SECONDS)
        if status != 0:
            raise ConfigError(
                "no environment can be made here",
                where=f"`{' '.join(command[:-1])}`",
                found=last_lines(output),
                hint="install uv, or the packages of Python for `venv` and `ensurepip`",
            )

    def install(self, root: Path, engine: Engine, version: str) -> None:
        python = str(root / "bin" / "python")
        command = [*self.uv, "pip", "install", "--python", python] if self.uv else [python, "-m", "pip", "install"]
        # an engine is not built from source here
        first = ["--only-binary", engine.name, f"{engine.name}=={version}", *engine.others]
        first.append(f"{OWN_NAME} @ {self.own.as_uri()}")
        # not all of the wheel's dependencies: other recipes may need torch
        for arguments in (first, ["--no-deps", str(self.wheel)]):
            whole = [*command, "--quiet", *arguments]
            status, output = run_limited(whole, "the installer", None, self.variables(), INSTALL_SECONDS)
            if status != 0:
                if NO_SPACE in output:
                    raise ConfigError(
                        "no environment can be made here",
                        where=str(self.folder),
                        found=last_lines(output),
                        hint="make space on the disk, or name a folder on another disk in `TMPDIR`",
                    )
                limit = f"no end after {INSTALL_SECONDS:.0f} s\n" if status is None else ""
                raise InstallError(f"{limit}{last_lines(output)}")


class Environment(Frozen):
    root: Path
    variables: Mapping[str, str]

    def check(self, request: Request) -> CheckedRecipe:
        """Check a recipe in a process of its own: a crash of an engine is a result."""
        result = self.root / "result.jsonl"
        result.unlink(missing_ok=True)
        asked = {
            "distribution": request.distribution,
            "model": request.tried.model,
            "recipe": request.tried.recipe,
            "tolerance": request.tolerance,
            "device": request.device,
            "distributions": request.distributions,
        }
        # isolated: neither the current folder nor the user's packages are imported
        command = [str(self.root / "bin" / "python"), "-I", "-m", CHILD, json.dumps(asked), str(result)]
        status, output = run_limited(command, "the check of a recipe", self.root, self.variables, CHECK_SECONDS)
        lines = result.read_text("utf-8").splitlines() if result.exists() else []
        installed, *rows = [json.loads(line) for line in lines] or [{"installed": {}}]
        return CheckedRecipe(tuple(rows), installed["installed"], "" if status == 0 else process_end(status, output))


def process_end(status: int | None, output: str) -> str:
    if status is None:
        return f"no result after {CHECK_SECONDS:.0f} s"
    kind = f"the process was ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return "\n".join(filter(None, [kind, last_lines(output)]))


def last_lines(output: str) -> str:
    return "\n".join(line for line in output.strip().splitlines()[-LAST_LINES:])


def make_workshop(folder: Path, wheel: Path, places: IndexPlaces) -> Workshop:
    """Return a workshop with copies of the wheels: uv remembers a wheel by its path."""
    copies = folder / "wheels"
    copies.mkdir()
    copy = copies / wheel.name
    shutil.copyfile(wheel, copy)
    return Workshop(folder, copy, write_own_wheel(copies), find_uv(), places)


def find_uv() -> tuple[str, ...]:
    if path := shutil.which("uv"):
        return (path,)
    return (sys.executable, "-m", "uv") if find_spec("uv") is not None else ()


def write_own_wheel(folder: Path) -> Path:
    """Write a wheel with the code of this hatch-lower, and the metadata of the installed distribution."""
    try:
        own = importlib.metadata.distribution(OWN_NAME)
    except importlib.metadata.PackageNotFoundError as error:
        hint = "install hatch-lower, for instance `pip install --editable .`"
        raise ConfigError(
            "hatch-lower is not installed here", found="no metadata of `hatch-lower`", hint=hint
        ) from error
    package = Path(hatch_lower.__file__).parent
    info = f"hatch_lower-{own.version}.dist-info"
    files = {
        f"hatch_lower/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (own.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: hatch-lower\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name},{recorded_digest(sha256_bytes(data))},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"hatch_lower-{own.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, EARLY), data)
    return path
