"""A project in a git repository whose revisions are sides of a benchmark; something else than hatchling builds it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.cli.measure import project
from hatch_lower.cli.measure.project import built_project, built_revision
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.errors import LowerError
from support.sides import PLAIN, Recipes, commit, git, worktrees, write_wheel

SCENARIO = Path(__file__).parents[1] / "projects" / "tiny"
TABLE = "[tool.hatch.build.targets.wheel.hooks.lower]\n"
WHEEL = "tiny-1.0-py3-none-any.whl"
Build = Callable[[Path], "tuple[int, list[str]] | None"]


class Workplace:
    """A repository with a project in a folder of it, and a stand-in for hatchling."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self.root = self.repository / "models" / "tiny"
        self.temporary = folder / "temporary"
        self.cache = folder / "cache"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HATCH")},
            "GIT_CONFIG_GLOBAL": os.devnull,
            "HATCH_LOWER_CACHE_DIR": str(self.cache),
        }
        self.told: list[str] = []
        self.models: Mapping[str, Recipes] = {"tiny": PLAIN}
        self.builds: list[tuple[Path, Mapping[str, str]]] = []
        self.do: Build = lambda folder: None  # while a wheel is built; it may fail

    def edit(self, old: str, new: str, path: str = "pyproject.toml") -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new))

    def build(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], tell: object = None
    ) -> tuple[int, list[str]]:
        """Take the place of `run_command`."""
        self.builds.append((folder, environment))
        failed = self.do(folder)
        if failed is None:
            write_wheel(Path(command[-1]) / WHEEL, self.models)
        return failed or (0, [])

    def revision(self, name: str) -> Any:
        return built_revision(self.root, name, self.environment, self.told.append)

    def project(self) -> Any:
        return built_project(self.root, self.environment, self.told.append)

    def open(self, side: Any) -> BenchSide:
        """Open a side, and close it."""
        with side as opened:
            assert isinstance(opened, BenchSide)
            return opened

    def refusal(self, side: Any) -> LowerError:
        with pytest.raises(LowerError) as caught:
            self.open(side)
        return caught.value


@contextmanager
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Return a project with one commit; no folder and no worktree is left after a test."""
    place = Workplace(tmp_path)
    place.temporary.mkdir()
    shutil.copytree(SCENARIO, place.root, ignore=shutil.ignore_patterns("__pycache__"))
    (place.repository / ".gitignore").write_text("*.bin\nkept/\n")
    git(place.repository, "init", "--quiet", "--initial-branch", "main")
    commit(place.repository, "First")
    monkeypatch.setattr(tempfile, "tempdir", str(place.temporary))
    monkeypatch.setattr(project, "run_command", place.build)
    yield place
    assert list(place.temporary.iterdir()) == []
    if place.repository.exists():
        assert worktrees(place.repository) == [str(place.repository)]
