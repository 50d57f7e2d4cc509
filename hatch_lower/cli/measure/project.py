"""Sides that are built for a comparison: a project's working tree, or the project at a git revision.

A build uses the cache, so only changed programs are lowered. A revision is checked out into a temporary worktree.
Files that git ignores are missing there. If the hook's `inputs` or a model's `assets` name ignored files (usually
weights), the files are copied from the project's folder, because no revision records their contents.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hatch_lower.cache.directory import history_path
from hatch_lower.cache.store import Store, open_store
from hatch_lower.cli.measure.command import Tell, run_command
from hatch_lower.cli.measure.figures import Figures, FigureSubject
from hatch_lower.cli.measure.repository import (
    Commit,
    Repository,
    fill_submodules,
    find_commit,
    find_repository,
    ignored_of,
    is_changed,
    without_guidance,
    worktree,
)
from hatch_lower.cli.measure.side import BenchSide, open_wheel_side
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.driver.context import VARIANTS
from hatch_lower.driver.explain import read_history
from hatch_lower.driver.inputs.present import files_matching
from hatch_lower.driver.reproduce.rebuild import only_wheel
from hatch_lower.errors import ConfigError, LowerError, PackageError, ProcessError, size_text
from hatch_lower.hatch.outside import check_present, open_project
from hatch_lower.runtime.classes import editable_folder

PROJECT_FILE = "pyproject.toml"
LAST_LINES = 40  # of the output of a build that failed
SHOWN = 3  # files or folders that a line names


def is_project(target: str | Path) -> bool:
    """Return whether a target is a project's folder."""
    return not isinstance(target, str) and (target / PROJECT_FILE).is_file()


def editable_project(distribution: str) -> Path | None:
    try:
        folder = editable_folder(importlib.metadata.distribution(distribution))
    except importlib.metadata.PackageNotFoundError:
        return None
    return None if folder is None else Path(folder)


@contextmanager
def built_project(root: Path, environment: Mapping[str, str], tell: Tell) -> Iterator[BenchSide]:
    """Build a project in its folder, and open its wheel."""
    root = root.resolve()
    open_project(root)  # raises if the settings are wrong
    title = f"working tree{project_state(root, environment)}"
    with built(root, title, environment, tell) as side:
        yield side


@contextmanager
def built(root: Path, title: str, environment: Mapping[str, str], tell: Tell) -> Iterator[BenchSide]:
    store = open_store(environment, lambda _: None)  # the build itself reports problems of the cache
    history = history_path(store.directory, root)
    before = state_of_file(history)
    with work_folder() as target:
        wheel = build_wheel(root, target, title, environment, tell)
        unchanged = before is not None and state_of_file(history) == before
        with open_wheel_side(wheel, title) as side:
            yield replace(side, source=root, build=read_facts(store, root, side.folders, unchanged=unchanged))


def project_state(root: Path, environment: Mapping[str, str]) -> str:
    """Return ` (COMMIT)` or ` (changed)` for a working tree; empty without a readable repository."""
    try:
        repository = find_repository(root, environment)
        return " (changed)" if is_changed(repository, root) else f" ({find_commit(repository, 'HEAD')})"
    except LowerError:
        return ""


def build_wheel(root: Path, target: Path, title: str, environment: Mapping[str, str], tell: Tell) -> Path:
    tell(f"building {title}")
    command = [sys.executable, "-u", "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    # a single wheel has all recipes
    status, lines = run_command(command, root, {**without_guidance(environment), VARIANTS: "off"}, tell)
    if status:
        raise ProcessError(
            f"{title} cannot be built",
            where=f"`python -m hatchling build --target wheel` ended with status {status}",
            found="\n".join(lines[-LAST_LINES:]),
            hint="install all requirements of `[build-system] requires` into this environment, and fix the error",
        )
    return only_wheel(target, title)


def read_facts(store: Store, root: Path, models: Iterable[str], *, unchanged: bool) -> Figures:
    """Return the figures of a project's last build; `unchanged`: the build did not write its history again."""
    history = read_history(store.directory, root) if store.writes else None
    if history is None:
        return {}
    built = {name: history.models[name] for name in models if name in history.models}
    if unchanged:  # only a build without exports leaves the history unchanged
        return {FigureSubject(name): {"level": 1, "compilations": 0} for name in built}
    return {
        FigureSubject(name): {
            "level": model.level,
            "compilations": sum(row.partitions - row.reused for row in model.rows),
        }
        for name, model in built.items()
    }


def state_of_file(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


@contextmanager
def built_revision(root: Path, revision: str, environment: Mapping[str, str], tell: Tell) -> Iterator[BenchSide]:
    """Build a project at a git revision, and open its wheel; `source` is its folder in a temporary worktree."""
    root = root.resolve()
    check_present(root / PROJECT_FILE)
    repository = find_repository(root, environment)
    commit = find_commit(repository, revision)
    title = str(commit) if commit.sha.startswith(revision.lower()) else f"{revision} ({commit})"
    directory = open_store(environment, lambda _: None).directory
    with work_folder() as work, worktree(repository, commit, work / repository.top.name) as checkout:
        place = root.relative_to(repository.top)
        source = checkout / place
        empty = fill_submodules(repository, commit.sha, checkout, title)
        if empty:
            plural = "s" if len(empty) > 1 else ""
            tell(f"{title}: without the submodule{plural} {listed_files(empty)}, not checked out here")
        if not (source / PROJECT_FILE).is_file():
            raise ConfigError(
                "the revision does not have the project",
                where=title,
                found=f"no `{(place / PROJECT_FILE).as_posix()}`",
                hint="name a revision in which the project is in this folder of the repository",
            )
        copy_ignored(repository, root, source, title, tell)
        history = history_path(directory, source)
        forgotten = [history, history.with_suffix(".log")]  # the folder is temporary
        try:
            with ExitStack() as stack:
                try:
                    side = stack.enter_context(built(source, title, environment, tell))
                except ProcessError as error:  # the error names the log
                    forgotten.pop()
                    raise with_causes(error, commit, empty) from error
                yield side
        finally:
            for path in forgotten:
                with suppress(OSError):
                    path.unlink()


def with_causes(error: ProcessError, commit: Commit, empty: Sequence[str]) -> ProcessError:
    """Return the error of a build, with the parts of the project that a revision lacks."""
    hints = []
    if empty:
        hints.append(
            f"what is in {listed_files(empty)} is missing: `git submodule update --init --recursive` brings it"
        )
    if "Git LFS pointer" in error.found:
        hints.append(f"`git lfs fetch origin {commit.sha}` brings the files of this revision")
    return ProcessError(error.what, where=error.where, found=error.found, hint="; ".join(hints) or error.hint)


def listed_files(names: Sequence[str]) -> str:
    return ", ".join([*(f"`{name}`" for name in names[:SHOWN]), *(["…"] if len(names) > SHOWN else [])])


def copy_ignored(repository: Repository, root: Path, source: Path, title: str, tell: Tell) -> None:
    """Copy files that git ignores and that the revision's settings name from the project's folder."""
    try:
        settings = open_project(source).settings
    except LowerError as error:  # name the revision: its folder is gone when the message is read
        where = error.where.replace(str(source), title)
        raise type(error)(error.what, where=where, found=error.found, hint=error.hint) from error
    patterns = dict.fromkeys([*settings.inputs, *(glob for model in settings.models for glob in model.assets)])
    named = {path for pattern in patterns for path in files_matching(root, pattern)}
    files = [path.relative_to(root) for path in ignored_of(repository, root, named)] if named else []
    files = [path for path in files if not os.path.lexists(source / path)]
    if not files:
        return
    names = listed_files([path.as_posix() for path in files])
    tell(f"{title}: with {names} of the working tree: git ignores these files of `inputs` or `assets`")
    needed, free = sum((root / path).stat().st_size for path in files), shutil.disk_usage(source).free
    try:
        if needed > free:
            raise OSError(f"{size_text(needed)} to copy, {size_text(free)} free")
        for path in files:
            # a copy, so that code of the revision cannot change the project's files
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, source / path)
    except OSError as error:
        raise PackageError(
            "the files that git ignores cannot be copied for the build of a revision",
            where=title,
            found=str(error),
            hint="make the files readable, and provide space for temporary files (TMPDIR)",
        ) from error
