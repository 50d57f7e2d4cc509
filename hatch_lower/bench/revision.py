"""A side that is another revision of the project: checked out beside it for as long as it is needed, and built there.

What git does not have is missing in such a checkout. Files that the hook's `inputs` or a model's `assets` name and that
git ignores, weights as a rule, are copied from the project's folder: no revision says which they were at its time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hatch_lower.bench.command import Tell
from hatch_lower.bench.project import PROJECT_FILE, built
from hatch_lower.bench.repository import Commit, Repository, find_commit, find_repository, ignored_of, worktree
from hatch_lower.bench.side import Side
from hatch_lower.bench.temporary import work_folder
from hatch_lower.build.inputs.present import files_matching
from hatch_lower.cache.directory import history_path
from hatch_lower.cache.store import open_store
from hatch_lower.errors import ConfigError, LowerError, PackageError, ProcessError, size_text
from hatch_lower.hatch.outside import check_present, open_project

SHOWN = 3  # files that a line names


@contextmanager
def built_revision(root: Path, revision: str, environment: Mapping[str, str], tell: Tell) -> Iterator[Side]:
    """Build a project as a git revision has it, and open its wheel; `source` is its folder in a temporary worktree.

    The build uses the cache that `environment` names, so it lowers what no build before it has lowered.
    """
    root = root.resolve()
    check_present(root / PROJECT_FILE)
    repository = find_repository(root, environment)
    commit = find_commit(repository, revision)
    title = title_of(revision, commit)
    directory = open_store(environment, lambda _: None).directory
    with work_folder() as work, worktree(repository, commit, work / repository.top.name) as checkout:
        place = root.relative_to(repository.top)
        source = checkout / place
        if not (source / PROJECT_FILE).is_file():
            raise ConfigError(
                "the revision does not have the project",
                where=title,
                found=f"no `{(place / PROJECT_FILE).as_posix()}`",
                hint="name a revision in which the project is in this folder of the repository",
            )
        copy_ignored(repository, root, source, title, tell)
        history = history_path(directory, source)
        forgotten = [history, history.with_suffix(".log")]  # nobody will ask for the last build in this folder
        try:
            with ExitStack() as stack:
                try:
                    side = stack.enter_context(built(source, title, environment, tell))
                except ProcessError:  # what the build said names the log
                    forgotten.pop()
                    raise
                yield side
        finally:
            for path in forgotten:
                with suppress(OSError):
                    path.unlink()


def title_of(revision: str, commit: Commit) -> str:
    return str(commit) if commit.sha.startswith(revision.lower()) else f"{revision} ({commit})"


def copy_ignored(repository: Repository, root: Path, source: Path, title: str, tell: Tell) -> None:
    """Copy the files that a revision's settings name and that git ignores from the project's folder."""
    try:
        settings = open_project(source).settings
    except LowerError as error:  # tell of the revision: its folder is gone when the message is read
        where = error.where.replace(str(source), title)
        raise type(error)(error.what, where=where, found=error.found, hint=error.hint) from error
    patterns = dict.fromkeys([*settings.inputs, *(glob for model in settings.models for glob in model.assets)])
    named = {path for pattern in patterns for path in files_matching(root, pattern)}
    files = [path.relative_to(root) for path in ignored_of(repository, root, named)] if named else []
    files = [path for path in files if not os.path.lexists(source / path)]
    if not files:
        return
    names = ", ".join([*(f"`{path.as_posix()}`" for path in files[:SHOWN]), *(["…"] if len(files) > SHOWN else [])])
    tell(f"{title}: with {names} of the working tree, for git ignores what `inputs` or `assets` name")
    needed, free = sum((root / path).stat().st_size for path in files), shutil.disk_usage(source).free
    try:
        if needed > free:
            raise OSError(f"{size_text(needed)} to copy, {size_text(free)} free")
        for path in files:
            # a copy: what a revision's own code writes to its inputs must not change those of the project
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, source / path)
    except OSError as error:
        raise PackageError(
            "the files that git ignores cannot be copied for the build of a revision",
            where=title,
            found=str(error),
            hint="see that they can be read, and that there is space for temporary files (TMPDIR)",
        ) from error
