"""Submodules of a revision: git leaves their folders empty in a worktree.

Their files come from the commits that the project's own clone has. No URL is asked, and nothing that a revision says of
its submodules (`.gitmodules`) is read: a revision of somebody else's may say anything.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hatch_lower.cli.measure.repository import Repository, checkout_error
from hatch_lower.errors import ProcessError

SUBMODULE = "160000"  # the mode of an entry that is a commit of another repository


def fill_submodules(repository: Repository, sha: str, folder: Path, title: str) -> list[str]:
    """Write the files of a commit's submodules into its worktree; return the folders that stay empty."""
    empty = []
    for path, wanted in submodules_of(repository, sha):
        own = repository.top / path
        name = own.relative_to(repository.top).as_posix()
        if not os.path.lexists(own / ".git"):  # git would look for a repository in the folders above
            empty.append(name)
            continue
        submodule = replace(repository, top=own)
        if submodule.run("cat-file", "-e", f"{wanted}^{{commit}}").returncode:
            raise ProcessError(
                f"the submodule `{name}` lacks the commit of the revision",
                where=title,
                found=f"commit {wanted[:12]} is not in {own}",
                hint=f"bring it: `git -C {shlex.quote(str(own))} fetch`",
            )
        write_files(submodule, wanted, folder / path)
        empty += [f"{name}/{other}" for other in fill_submodules(submodule, wanted, folder / path, title)]
    return empty


def submodules_of(repository: Repository, sha: str) -> Iterator[tuple[str, str]]:
    """Yield path and commit of each submodule."""
    for line in repository.says("ls-tree", "-r", "-z", "--full-tree", sha).split("\0"):
        entry, _, path = line.partition("\t")
        if entry.startswith(f"{SUBMODULE} "):
            yield path, entry.rpartition(" ")[2]


def write_files(submodule: Repository, sha: str, folder: Path) -> None:
    """Write a commit's files into a folder; the submodule's own index and registrations stay as they are."""
    index = folder.parent / f".{folder.name}.index"
    own = replace(submodule, environment={**submodule.environment, "GIT_INDEX_FILE": str(index)})
    try:
        for arguments in (("read-tree", sha), ("checkout-index", "--all", "--force", f"--prefix={folder}/")):
            done = own.run(*arguments)
            if done.returncode:
                raise checkout_error(submodule, sha, done.stderr)
    finally:
        index.unlink(missing_ok=True)
