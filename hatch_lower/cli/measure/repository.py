"""The git repository of a project: its commits, and a temporary worktree of a commit with the files of its
submodules. These files come from the commits that the project's own clone has. No URL is asked, and nothing that
a revision says of its submodules is read.
"""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from hatch_lower.cli.measure.temporary import PREFIX
from hatch_lower.driver.signals import uninterrupted
from hatch_lower.errors import ConfigError, LowerError, ProcessError, nearest
from hatch_lower.frozen import Frozen

# Variables of a git hook that redirect git from the repository of the current folder
LEADING_AWAY = ("GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_WORK_TREE")
MOST_NAMES = 8  # in a message
LONGEST_SUBJECT = 60


class Repository(Frozen):
    program: str  # path of git
    top: Path  # the working tree, links followed
    environment: Mapping[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        fixed = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C.UTF-8"}
        try:
            return subprocess.run(
                # hooks are for the user's own checkouts
                [self.program, "-c", f"core.hooksPath={os.devnull}", *arguments],
                cwd=self.top,
                env={**self.environment, **fixed},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                encoding="utf-8",
                errors="surrogateescape",
            )
        except OSError as error:
            raise ProcessError(
                "git could not be started", where=str(self.top), found=f"{type(error).__name__}: {error}"
            ) from error

    def says(self, *arguments: str) -> str:
        """Return the output of git; empty after a failure."""
        done = self.run(*arguments)
        return "" if done.returncode else done.stdout.strip()


class Commit(Frozen):
    sha: str
    short: str
    subject: str

    def __str__(self) -> str:
        cut = self.subject if len(self.subject) <= LONGEST_SUBJECT else f"{self.subject[: LONGEST_SUBJECT - 1]}…"
        return f"{self.short} {cut}".rstrip()


def find_repository(folder: Path, environment: Mapping[str, str]) -> Repository:
    program = shutil.which("git", path=environment.get("PATH"))
    if program is None:
        raise ConfigError(
            "git is not installed here",
            where="PATH",
            hint="install git, or compare with a wheel: `--against dist/NAME.whl`",
        )
    here = Repository(program, folder, without_guidance(environment))
    done = here.run("rev-parse", "--show-toplevel")
    if done.returncode or not done.stdout.strip():
        unsafe = "safe.directory" in done.stderr
        hint = "make the folder known as your own: `git config --global --add safe.directory FOLDER`"
        raise ConfigError(
            "the project's git repository cannot be read" if unsafe else "the project is not in a git repository",
            where=str(folder),
            found=done.stderr.strip(),
            hint=hint if unsafe else "compare with a wheel instead: `--against`",
        )
    return replace(here, top=Path(os.path.realpath(done.stdout.rstrip("\n"))))


def without_guidance(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git, and tools that ask git for a version, use the repository of their folder."""
    return {name: value for name, value in environment.items() if name not in LEADING_AWAY}


def find_commit(repository: Repository, revision: str) -> Commit:
    is_name = revision.isprintable() and not revision.startswith("-")
    sha = repository.says("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") if is_name else ""
    if not sha:
        raise unknown_revision(repository, revision)
    short, _, subject = repository.says("log", "-1", "--format=%h %s", sha).partition(" ")
    return Commit(sha, short, subject)


def unknown_revision(repository: Repository, revision: str) -> LowerError:
    refs = repository.says("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags")
    names = refs.splitlines()
    remote = next((name for name in names if name.endswith(f"/{revision}")), None) if revision else None
    if remote is None and len(names) > MOST_NAMES:
        names = difflib.get_close_matches(revision, names, n=MOST_NAMES, cutoff=0.0)
    hint = "name a branch, a tag or a commit of this repository; `git fetch` gets the branches of its remote"
    if repository.says("rev-parse", "--is-shallow-repository") == "true":
        hint = (
            "this is a shallow clone, which has the newest commits only: run `git fetch --unshallow` "
            "(in GitHub's workflows, give `actions/checkout` the setting `fetch-depth: 0`)"
        )
    if revision.startswith("-"):
        hint = "what begins with `-` is no revision here: name a branch as `refs/heads/-NAME`, or the commit"
    return ConfigError(
        "there is no such revision",
        where=f"`{revision}` in {repository.top}",
        found=f"did you mean `{remote}`?" if remote is not None else nearest(revision, names),
        hint=hint,
    )


def is_changed(repository: Repository, folder: Path) -> bool:
    """Return whether a folder differs from its commit, new files included."""
    return bool(repository.says("status", "--porcelain", "--untracked-files=normal", "--", str(folder)))


@contextmanager
def worktree(repository: Repository, commit: Commit, folder: Path) -> Iterator[Path]:
    """Check a commit out into a new folder; remove the folder and its registration with git at the end of the block."""
    forget_lost(repository)
    try:
        done = repository.run("worktree", "add", "--quiet", "--detach", str(folder), commit.sha)
        if done.returncode:
            raise checkout_error(repository, commit.sha, done.stderr)
        yield folder
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)  # git refuses to remove worktrees with submodules
            forget(repository, folder)


def checkout_error(repository: Repository, sha: str, said: str) -> ProcessError:
    hint = "see that there is space for temporary files (TMPDIR), and that `.git` can be written"
    if "lfs" in said:
        hint = f"install git-lfs where this runs, and bring the files of the commit: `git lfs fetch origin {sha}`"
    elif repository.says("config", "--get-regexp", r"^remote\..*\.promisor$"):
        hint = "this is a partial clone: see that its remote can be reached, which git asks for the files of the commit"
    where = f"{repository.top}, commit {repository.says('rev-parse', '--short', sha)}"
    return ProcessError("git could not check out a commit", where=where, found=said.strip(), hint=hint)


def forget_lost(repository: Repository) -> None:
    """Remove registrations of killed benchmarks only; `git worktree prune` would also remove a user's registrations."""
    for line in repository.says("worktree", "list", "--porcelain").splitlines():
        key, _, path = line.partition(" ")
        work = Path(path).parent
        if key == "worktree" and work.name.startswith(PREFIX) and not work.exists():
            forget(repository, Path(path))


def forget(repository: Repository, folder: Path) -> None:
    repository.run("worktree", "remove", "--force", "--force", str(folder))


def ignored_of(repository: Repository, folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Return the paths below a folder that git ignores and that no commit has."""
    done = repository.run(
        *("-C", str(folder), "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    )
    # an ignored folder is listed with a slash at the end, without its files
    listed = {PurePosixPath(name) for name in done.stdout.split("\0") if name}
    relative = {path: PurePosixPath(path.relative_to(folder).as_posix()) for path in paths}
    return sorted(path for path, name in relative.items() if name in listed or not listed.isdisjoint(name.parents))


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
