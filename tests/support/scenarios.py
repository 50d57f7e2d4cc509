"""Copies of the projects in `tests/projects`, and builds of them in a process of their own."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from support.shared import Shared
from support.venv import REPOSITORY, Finished, run

PROJECTS = REPOSITORY / "tests" / "projects"
EXAMPLES = {
    "example": REPOSITORY / "examples" / "project",
    "decoder": REPOSITORY / "examples" / "decoder",
    "serving": REPOSITORY / "examples" / "serving",
}
LEFT_OUT = shutil.ignore_patterns("__pycache__", "dist", "*.pyc")


@dataclass(frozen=True, slots=True)
class Project:
    """A copy of a project, the folder for its wheels, and its own cache."""

    root: Path
    dist: Path
    cache: Path

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace the only occurrence of `old` in a file."""
        text = (self.root / path).read_text()
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        (self.root / path).write_text(text.replace(old, new))

    def environment(self, additions: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a build: this project's own cache, and `additions`."""
        return {"HATCH_LOWER_CACHE_DIR": str(self.cache), **(additions or {})}

    def command(self, target: str = "wheel") -> list[str | Path]:
        """Return what `hatch build` runs inside the build environment that it prepared."""
        return [sys.executable, "-u", "-m", "hatchling", "build", "--target", target, "--directory", self.dist]

    def build(self, target: str = "wheel", environment: Mapping[str, str] | None = None) -> Finished:
        """Run the build to its end, whatever that is."""
        return run(self.command(target), cwd=self.root, environment=self.environment(environment))

    def wheel(self, environment: Mapping[str, str] | None = None) -> Path:
        """Build the wheel and return it."""
        self.build("wheel", environment).check()
        return only(self.dist, "*.whl")

    def left_behind(self) -> list[str]:
        """Return what lies in the folder for wheels, and the cache's temporary files."""
        made = [path.name for path in self.dist.glob("*")] if self.dist.exists() else []
        partial = [path.name for path in self.cache.rglob("*") if path.is_file() and is_temporary(path.name)]
        return sorted(made + partial)


def copy_project(name: str, folder: Path) -> Project:
    """Copy a scenario, or one of `EXAMPLES`, into `folder`."""
    root = folder / name
    shutil.copytree(EXAMPLES.get(name, PROJECTS / name), root, ignore=LEFT_OUT)
    return Project(root, folder / "dist", folder / "cache")


def built_scenario(shared: Shared, name: str) -> Path:
    """Return the folder of a scenario that was built: `dist`, `cache`, and in `stdout` and `stderr` what was said."""

    def make(folder: Path) -> None:
        done = copy_project(name, folder).build().check()
        (folder / "stdout").write_text(done.stdout)
        (folder / "stderr").write_text(done.stderr)

    return shared.once(f"built-{name}", make)


def only(folder: Path, pattern: str) -> Path:
    """Return the one file in `folder` that matches."""
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"{pattern} in {folder}: {[path.name for path in found]}"
    return found[0]


def is_temporary(name: str) -> bool:
    """Return whether a file is one that is being written, by its name."""
    return name.startswith((".tmp", "tmp")) or name.endswith((".tmp", ".part", ".new"))


def tree(root: Path) -> dict[str, str]:
    """Return the digest of each file below `root`, by its path."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): sha256(path) for path in paths}


def sha256(path: Path) -> str:
    """Return a file's digest."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel: with `folder` on the import path, it is as good as installed."""
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
