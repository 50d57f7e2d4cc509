"""Builds that something strikes: killed or out of disk at a chosen change of a file, or with another clock.

`supervise.cpp` and `clock.cpp` beside this module do what needs the system; they are compiled into a test's folder.
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hatch_lower.cache.contents import StoreLimits, survey, trim_store
from support.scenarios import Project, copy_project, only, sha256, tree
from support.venv import Finished, run

HERE = Path(__file__).parent
REFUSED = 77
TWO_HOURS = 7200.0
LIMITS = StoreLimits(10**10, 60 * 86400.0)
KEPT = re.compile(
    r"(records/(..)/\2[0-9a-f]{62}\.json|blobs/(..)/\3[0-9a-f]{62}|locks/[a-z]+-\d{3}|history/[0-9a-f]{64}\.(json|log)"
    r"|preload/[0-9a-f]{64}-[0-9a-f]{64}\.so|secret|stats\.json|verified\.json|trimmed|CACHEDIR\.TAG|\.gitignore)"
)
"""All that is in a cache beside what struck builds left."""
NOT_OURS = re.compile(r"tmp\w+\.whl|[a-z0-9_]{8}")
"""What hatchling, and Python when it looks whether a folder can be written, leave where they are killed."""


@dataclass(frozen=True, slots=True)
class Point:
    """A change of a file that a build made, or was about to make.

    Args:
        call: `write`, `truncate`, `allocate`, `open` (of a new file, or to empty one), `mkdir`, `rename`, `link`,
            `symlink`, `unlink`.
        path: what was changed.
        program: `hatchling`, `hatch_lower.driver.worker`, or the name of the executable.
    """

    call: str
    path: str
    program: str


@dataclass(frozen=True, slots=True)
class Struck:
    """A build that was supervised: how it ended, and the changes up to its end, the last one that of the strike."""

    finished: Finished
    points: tuple[Point, ...]

    def in_the_window(self) -> bool:
        """Return whether its last change came after hatchling's wheel had its name, and before the whole one had."""
        names = [point.path for point in self.points[:-1] if point.call == "rename" and point.path.endswith(".whl")]
        return len(names) == 1


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Runs builds and strikes at a chosen change of a file.

    Args:
        program: the compiled `supervise.cpp`.
    """

    program: Path

    def build(self, place: Place, action: str = "list", point: str = "0", *, scope: Sequence[Path] = ()) -> Struck:
        """Build a wheel.

        Args:
            place: where.
            action: `list`, `kill`, `kill-all`, `full` or `once`, as `supervise.cpp` says.
            point: its number from 1; or `call:text` or `call:text:n` for the n-th such call on a path with that text.
            scope: the folders in which changes count; those of the place if left out.
        """
        project = place.project
        return self.run(project.command(), place, action, point, scope or place.folders())

    def run(
        self, command: Sequence[str | Path], place: Place, action: str, point: str, scope: Sequence[Path]
    ) -> Struck:
        """Run any command as a build is run."""
        log = place.root / "points"
        words = [self.program, log, action, point, *scope, "--", *command]
        finished = run(words, cwd=place.project.root, environment=place.environment())
        if finished.status == REFUSED:
            pytest.skip("the system does not let a process supervise others (seccomp)")
        rows = [line.split(" ", 3) for line in log.read_text(errors="replace").splitlines()]
        return Struck(finished, tuple(Point(row[1], row[2], row[3]) for row in rows))


@dataclass(frozen=True, slots=True)
class Place:
    """A project with folders of its own for wheels, cache and temporary files."""

    root: Path
    project: Project

    @classmethod
    def of(cls, name: str, root: Path, cache: Path | None = None) -> Place:
        """Copy a scenario, and a cache to begin with, into a new folder."""
        (root / "temporary").mkdir(parents=True)
        place = cls(root, copy_project(name, root))
        if cache is not None:
            shutil.copytree(cache, place.project.cache)
        return place

    @property
    def temporary(self) -> Path:
        """The folder for temporary files."""
        return self.root / "temporary"

    def folders(self) -> tuple[Path, ...]:
        """Return all folders that a build may write into."""
        return (self.project.root, self.project.dist, self.project.cache, self.temporary)

    def environment(self, additions: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a build here, and `additions`."""
        return self.project.environment({"TMPDIR": str(self.temporary), **(additions or {})})

    def build(self, additions: Mapping[str, str] | None = None) -> Finished:
        """Build a wheel, to whatever end."""
        return self.project.build("wheel", self.environment(additions))

    def start_over(self, cache: Path | None = None) -> None:
        """Remove wheels and cache; the cache is a copy of `cache` again."""
        shutil.rmtree(self.project.dist, ignore_errors=True)
        shutil.rmtree(self.project.cache, ignore_errors=True)
        if cache is not None:
            shutil.copytree(cache, self.project.cache)

    def wheels(self) -> list[Path]:
        """Return what lies in the folder for wheels."""
        return sorted(self.project.dist.iterdir()) if self.project.dist.is_dir() else []

    def left(self) -> list[str]:
        """Return what lies in the folder for temporary files, but for what is not ours."""
        return sorted(each.name for each in self.temporary.iterdir() if not NOT_OURS.fullmatch(each.name))

    def recovers(self, known: Known) -> None:
        """Build again: the wheel is the right one, and nothing of what was struck stays."""
        finished = self.build().check()
        assert sha256(only(self.project.dist, "*.whl")) == known.wheel, finished.output
        assert len(self.wheels()) == 1, self.wheels()
        assert self.left() == []
        assert tree(self.project.root) == known.sources
        nothing_stays(self.project.cache / "v1")


@dataclass(frozen=True, slots=True)
class Known:
    """A project that was built undisturbed.

    Args:
        name: of the scenario.
        cache: what the build left, to be copied.
        wheel: digest of its wheel.
        sources: digests of the project's files.
        points: the changes of files that its first build made, and those that one with nothing to do makes.
    """

    name: str
    cache: Path
    wheel: str
    sources: Mapping[str, str]
    first: tuple[Point, ...]
    again: tuple[Point, ...]


def known_project(name: str, folder: Path, supervisor: Supervisor) -> None:
    """Build a scenario twice, undisturbed, and leave what is to be known of it in the folder, for `read_known`."""
    place = Place.of(name, folder)
    first = supervisor.build(place)
    first.finished.check()
    wheel = sha256(only(place.project.dist, "*.whl"))
    again = supervisor.build(place)
    again.finished.check()
    assert sha256(only(place.project.dist, "*.whl")) == wheel
    assert place.left() == []
    known = Known(name, place.project.cache, wheel, tree(place.project.root), first.points, again.points)
    (folder / "known").write_bytes(pickle.dumps(known))


def read_known(folder: Path) -> Known:
    """Return what `known_project` has left in a folder."""
    known: Known = pickle.loads((folder / "known").read_bytes())
    return known


def compiled(name: str, folder: Path, *options: str) -> Path:
    """Compile a C++ file that lies beside this module."""
    program = folder / Path(name).stem
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    subprocess.run([*compiler, "-std=c++17", *options, "-o", program, HERE / name], check=True)
    return program


def sample(count: int, total: int) -> list[int]:
    """Return numbers from 1 to `total`, evenly spread; all of them if `count` is as many."""
    return sorted({1 + i * total // count for i in range(count)}) if count < total else list(range(1, total + 1))


def is_one_paragraph(finished: Finished) -> bool:
    """Return whether a failed build said why as our errors do: once, and without a traceback."""
    lines = finished.stderr.splitlines()
    errors = [i for i, line in enumerate(lines) if line.startswith("hatch-lower: ")]
    whole = len(errors) == 1 and all(line.startswith("  ") for line in lines[errors[0] + 1 :])
    return finished.status == 1 and whole and "Traceback" not in finished.output


def nothing_stays(directory: Path) -> None:
    """Trim a cache as in two hours' time: then it holds nothing but whole entries."""
    if not directory.is_dir():
        return
    trim_store(directory, LIMITS, time.time() + TWO_HOURS)
    found = survey(directory)
    assert (found.leftovers, found.unreferenced) == (0, 0)
    assert all(each.whole for each in found.entries)
    assert [path for path in tree(directory) if not KEPT.fullmatch(path)] == []
    assert list(directory.rglob("*.part")) == []
