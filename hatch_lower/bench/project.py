"""A side that is built here, through the cache: only what differs from what was built before is lowered."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hatch_lower.bench.command import Tell, last_lines, run_command
from hatch_lower.bench.repository import find_commit, find_repository, is_changed, without_guidance
from hatch_lower.bench.side import BuildFacts, Side, open_wheel
from hatch_lower.bench.temporary import work_folder
from hatch_lower.build.explain import read_history
from hatch_lower.cache.directory import history_path
from hatch_lower.cache.store import Store, open_store
from hatch_lower.errors import LowerError, ProcessError
from hatch_lower.hatch.outside import open_project

PROJECT_FILE = "pyproject.toml"


def is_project(target: str | Path) -> bool:
    """Return whether a target is a project, which is built, and not what was built."""
    return not isinstance(target, str) and (target / PROJECT_FILE).is_file()


@contextmanager
def built_project(root: Path, environment: Mapping[str, str], tell: Tell) -> Iterator[Side]:
    """Build a project as it is now, in its folder, and open its wheel."""
    root = root.resolve()
    open_project(root)  # says what is wrong with its settings
    title = f"working tree{state_of(root, environment)}"
    with built(root, title, environment, tell) as side:
        yield side


@contextmanager
def built(root: Path, title: str, environment: Mapping[str, str], tell: Tell) -> Iterator[Side]:
    store = open_store(environment, lambda _: None)  # the build itself says why the cache is not used
    history = history_path(store.directory, root)
    before = state_of_file(history)
    with work_folder() as target:
        wheel = build_wheel(root, target, title, environment, tell)
        unchanged = before is not None and state_of_file(history) == before
        with open_wheel(wheel, title) as side:
            yield replace(side, source=root, build=read_facts(store, root, side.folders, unchanged=unchanged))


def state_of(root: Path, environment: Mapping[str, str]) -> str:
    """Return which commit a working tree is at, or that it has changed since; nothing where that cannot be told."""
    try:
        repository = find_repository(root, environment)
        return " (changed)" if is_changed(repository, root) else f" ({find_commit(repository, 'HEAD')})"
    except LowerError:
        return ""


def build_wheel(root: Path, target: Path, title: str, environment: Mapping[str, str], tell: Tell) -> Path:
    tell(f"building {title}")
    command = [sys.executable, "-u", "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    status, lines = run_command(command, root, without_guidance(environment), tell)
    if status:
        raise ProcessError(
            f"{title} cannot be built",
            where=f"`python -m hatchling build --target wheel` ended with status {status}",
            found=last_lines(lines),
            hint="see that it can be built in this environment, with all that its `[build-system] requires` names",
        )
    wheels = sorted(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ProcessError(
            "the build made no wheel" if not wheels else "the build made more than one wheel",
            where=title,
            found=", ".join(path.name for path in wheels),
        )
    return wheels[0]


def read_facts(store: Store, root: Path, models: Iterable[str], *, unchanged: bool) -> BuildFacts | None:
    """Return what the cache knows of the build of a project; `unchanged`: the build did not write that down again."""
    history = read_history(store.directory, root) if store.writes else None
    if history is None:
        return None
    built = {name: history.models[name] for name in models if name in history.models}
    if unchanged:  # only a build that exports nothing leaves the history as it was
        return BuildFacts(dict.fromkeys(built, 1), dict.fromkeys(built, 0))
    lowered = {name: sum(row.partitions - row.reused for row in model.rows) for name, model in built.items()}
    return BuildFacts({name: model.level for name, model in built.items()}, lowered)


def state_of_file(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
