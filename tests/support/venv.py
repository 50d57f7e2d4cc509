"""Virtual environments and the places where installers look, for tests that build and install as a user would."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended: its status and both its outputs."""

    command: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both outputs, stdout first."""
        return self.stdout + self.stderr

    def check(self) -> Finished:
        """Return this, or fail with everything that the command said."""
        assert self.status == 0, f"{' '.join(self.command)}\nended with {self.status}\n{self.stdout}\n{self.stderr}"
        return self


@dataclass(frozen=True, slots=True)
class VirtualEnvironment:
    """An environment with pip and nothing else of ours until it is installed."""

    path: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.path / "bin" / "python"

    def install(self, *arguments: str, wheelhouse: Path | None = None) -> None:
        """Run `uv pip install`, which unpacks a distribution once for all environments, finding `wheelhouse` first."""
        command = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--python", self.python]
        run([*command, *arguments], environment=installer_environment(wheelhouse)).check()

    def run(self, *arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> Finished:
        """Run the interpreter in `cwd`, without the outer environment's import path."""
        return run([self.python, *arguments], cwd=cwd, environment=environment)


def make_environment(path: Path) -> VirtualEnvironment:
    """Return a new virtual environment at `path`."""
    venv.create(path, with_pip=True)
    return VirtualEnvironment(path)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> Finished:
    """Run a command to its end with additions to this process's environment; never raises for its status."""
    words = tuple(str(word) for word in command)
    done = subprocess.run(
        words, cwd=cwd, env=child_environment(environment), capture_output=True, text=True, timeout=timeout, check=False
    )
    return Finished(words, done.returncode, done.stdout, done.stderr)


def child_environment(additions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without what would leak this interpreter into another, with `additions`."""
    kept = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    kept.setdefault("OMP_NUM_THREADS", "2")
    return {**kept, **(additions or {})}


def find_links(wheelhouse: Path | None) -> tuple[str, ...]:
    """Return `wheelhouse` and what pip's own configuration names: setting the variable would replace the latter."""
    listed = run([sys.executable, "-m", "pip", "config", "list"]).check().stdout.splitlines()
    values = [ast.literal_eval(line.split("=", 1)[1]) for line in listed if ".find-links=" in line]
    places = [place for value in values for place in value.split()]
    return tuple(dict.fromkeys([*([str(wheelhouse)] if wheelhouse else []), *places]))


def installer_environment(wheelhouse: Path | None) -> dict[str, str]:
    """Return variables with which pip, and uv (which does not read pip's configuration), find `wheelhouse` first."""
    places = find_links(wheelhouse)
    return {"PIP_FIND_LINKS": " ".join(places), "UV_FIND_LINKS": ",".join(places), "PIP_NO_COMPILE": "1"}


def make_wheelhouse(folder: Path) -> Path:
    """Build hatch-lower's own wheel into a new folder below `folder`.

    Installers remember a wheel by its path and version, so the path must be one that never was.
    """
    made = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*command, "--wheel-dir", made, REPOSITORY]).check()
    return made
