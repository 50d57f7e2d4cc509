"""What a revision is checked out with: submodules, Git LFS, and clones that lack a part of the repository."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sides import commit, git, worktrees
from support.workplaces import Workplace, workplace

from hatch_lower.errors import ConfigError, ProcessError

pytestmark = pytest.mark.processes

LIBRARY = "models/tiny/library"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 123\n"
PROGRAM = "#!/bin/sh\necho 'Error downloading object: no such host' >&2\nexit 2\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    with workplace(tmp_path, monkeypatch) as place:
        yield place


def new_repository(folder: Path, **files: str) -> Path:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    commit(folder, "First")
    return folder


def add_submodule(repository: Path, source: Path, path: str) -> None:
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "--quiet", source, path)
    commit(repository, "With a submodule")


@pytest.fixture
def library(place: Workplace, tmp_path: Path) -> Path:
    """Return a submodule of the project as the working tree has it: its commit is not the one of `main`."""
    source = new_repository(tmp_path / "source", code="old = 1\n")
    add_submodule(place.repository, source, LIBRARY)
    own = place.repository / LIBRARY
    (own / "code.py").write_text("new = 1\n")
    commit(own, "Second")
    return own


def built_files(place: Workplace, revision: str = "main") -> dict[str, str]:
    """Return the files from which a revision was built."""
    files = {}

    def read(folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file() and path.name != ".git":
                files[path.relative_to(folder).as_posix()] = path.read_text()

    place.do = read
    place.open(place.revision(revision))
    return files


def test_a_submodule_is_as_the_revision_has_it(place: Workplace, library: Path) -> None:
    before = [git(folder, "status", "--porcelain") for folder in (place.repository, library)]
    assert built_files(place)["library/code.py"] == "old = 1\n"
    with place.revision("main") as side:
        assert side.source is not None
        assert git(side.source, "status", "--porcelain") == ""  # a version that is made of git's state is the commit's
    assert [git(folder, "status", "--porcelain") for folder in (place.repository, library)] == before
    assert worktrees(library) == [str(place.repository / ".git" / "modules" / LIBRARY)]


def test_a_submodule_of_a_submodule_is_there(place: Workplace, library: Path, tmp_path: Path) -> None:
    add_submodule(library, new_repository(tmp_path / "inner", inner="deep = 1\n"), "below")
    commit(place.repository, "Deeper")
    assert built_files(place)["library/below/inner.py"] == "deep = 1\n"


def test_a_submodule_that_lacks_the_commit_says_what_brings_it(place: Workplace, library: Path) -> None:
    wanted = "1" * 40
    git(place.repository, "update-index", "--cacheinfo", f"160000,{wanted},{LIBRARY}")
    git(place.repository, "commit", "--quiet", "--message", "Newer")
    error = place.refusal(place.revision("main"))
    assert (type(error), error.what) == (
        ProcessError,
        f"the submodule `{LIBRARY}` lacks the commit of the revision",
    )
    assert error.found == f"commit {wanted[:12]} is not in {library}"
    assert error.hint == f"bring it: `git -C {library} fetch`"
    assert place.builds == []


@pytest.mark.parametrize("how", ["not initialized", "removed since"])
def test_a_submodule_that_is_not_checked_out_is_named(place: Workplace, library: Path, how: str) -> None:
    revision = git(place.repository, "rev-parse", "HEAD")
    git(place.repository, "submodule", "deinit", "--quiet", "--force", "--all")
    if how == "removed since":
        git(place.repository, "rm", "--quiet", LIBRARY)
        commit(place.repository, "Without")
    assert "library/code.py" not in built_files(place, revision)
    assert place.told[0].endswith(f": without the submodule `{LIBRARY}`, not checked out here")
    place.do = lambda folder: (1, ["No module named 'library.code'"])
    hint = place.refusal(place.revision(revision)).hint
    assert hint == f"what is in `{LIBRARY}` is missing: `git submodule update --init --recursive` brings it"


@pytest.mark.parametrize("recurse", ["true", "false"])
def test_nothing_that_a_revision_says_of_its_submodules_is_run(
    place: Workplace, library: Path, tmp_path: Path, recurse: str
) -> None:
    marker = tmp_path / "marker"
    url = f"ext::sh -c touch% {marker}"
    (place.repository / ".gitmodules").write_text(
        f'[submodule "{LIBRARY}"]\n\tpath = {LIBRARY}\n\turl = {url}\n\tupdate = !touch {marker}\n'
        f'[submodule "other"]\n\tpath = --upload-pack=touch {marker}\n\turl = --upload-pack=touch {marker}\n'
    )
    git(place.repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},other")
    git(place.repository, "config", "submodule.recurse", recurse)
    git(place.repository, "config", f"submodule.{LIBRARY}.url", url)
    git(place.repository, "add", ".gitmodules")
    git(place.repository, "commit", "--quiet", "--message", "Hostile")
    assert built_files(place)["library/code.py"] == "old = 1\n"
    assert not marker.exists()


def test_a_project_in_a_submodule_has_revisions(place: Workplace, tmp_path: Path) -> None:
    outer = new_repository(tmp_path / "outer")
    add_submodule(outer, place.repository, "inner")
    place.root = outer / "inner" / "models" / "tiny"
    assert "tiny/model.py" in built_files(place)
    assert worktrees(outer / "inner") == [str(outer / ".git" / "modules" / "inner")]
    assert git(outer, "status", "--porcelain") == ""


@pytest.fixture
def pointer(place: Workplace) -> Path:
    (place.root / ".gitattributes").write_text("*.weights filter=lfs -text\n")
    (place.root / "a.weights").write_text(POINTER)
    commit(place.repository, "With LFS")
    git(place.repository, "config", "filter.lfs.required", "true")
    return place.root / "a.weights"


@pytest.mark.parametrize("installed", [False, True])
def test_git_lfs_that_has_no_file_says_what_brings_it(
    place: Workplace, pointer: Path, tmp_path: Path, installed: bool
) -> None:
    program = tmp_path / "git-lfs"
    if installed:
        program.write_text(PROGRAM)
        program.chmod(stat.S_IRWXU)
    git(place.repository, "config", "filter.lfs.smudge", f"{program} smudge -- %f")
    error = place.refusal(place.revision("main"))
    sha = git(place.repository, "rev-parse", "main")
    assert (error.what, error.where) == ("git could not check out a commit", f"{place.repository}, commit {sha[:7]}")
    assert "a.weights: smudge filter lfs failed" in error.found
    assert error.hint == (
        f"install git-lfs where this runs, and bring the files of the commit: `git lfs fetch origin {sha}`"
    )


def test_a_build_that_met_a_pointer_says_what_brings_the_file_of_the_revision(place: Workplace, pointer: Path) -> None:
    place.do = lambda folder: (1, ["  to do: `a.weights` is a Git LFS pointer, not the file itself"])
    sha = git(place.repository, "rev-parse", "main")
    assert (
        place.refusal(place.revision("main")).hint == f"`git lfs fetch origin {sha}` brings the files of this revision"
    )


def test_a_partial_clone_whose_remote_is_gone_says_so(place: Workplace, tmp_path: Path) -> None:
    place.edit("relu", "tanh", "tiny/model.py")
    commit(place.repository, "Second")
    git(place.repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", place.repository.as_uri(), "clone")
    place.root = tmp_path / "clone" / "models" / "tiny"
    marker = tmp_path / "marker"
    for url in (str(tmp_path / "gone"), f"ext::sh -c touch% {marker}", f"--upload-pack=touch {marker}"):
        git(place.root, "config", "remote.origin.url", url)
        assert place.refusal(place.revision("HEAD~1")).hint == (
            "this is a partial clone: see that its remote can be reached, which git asks for the files of the commit"
        )
    assert not marker.exists()
    assert worktrees(place.root) == [str(tmp_path / "clone")]


def test_a_revision_of_a_sparse_checkout_has_the_folders_of_the_working_tree(place: Workplace) -> None:
    (place.repository / "other").mkdir()
    (place.repository / "other" / "file.txt").touch()
    commit(place.repository, "Other")
    git(place.repository, "sparse-checkout", "set", "models/tiny")
    place.do = lambda folder: None if not (folder.parents[1] / "other").exists() else (1, ["other"])
    place.open(place.revision("main"))


@pytest.mark.parametrize("bare", [False, True])
def test_a_linked_worktree_has_revisions(place: Workplace, tmp_path: Path, bare: bool) -> None:
    repository = place.repository
    if bare:
        git(tmp_path, "clone", "--quiet", "--bare", place.repository, "bare.git")
        repository = tmp_path / "bare.git"
    git(repository, "worktree", "add", "--quiet", "-b", "side", tmp_path / "linked")
    place.root = tmp_path / "linked" / "models" / "tiny"
    assert "tiny/model.py" in built_files(place, "side")
    assert worktrees(repository) == [str(repository), str(tmp_path / "linked")]
    git(repository, "worktree", "remove", "--force", tmp_path / "linked")


def test_a_project_inside_a_bare_repository_is_in_no_working_tree(place: Workplace, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", place.repository, "bare.git")
    place.root = Path(shutil.copytree(place.root, tmp_path / "bare.git" / "project"))
    error = place.refusal(place.revision("main"))
    assert (error.what, error.found) == (
        "the project is not in a git repository",
        "fatal: this operation must be run in a work tree",
    )


def test_a_branch_that_begins_with_a_hyphen_is_built_by_its_full_name(place: Workplace) -> None:
    git(place.repository, "update-ref", "refs/heads/-x", "HEAD")
    error = place.refusal(place.revision("-x"))
    assert (type(error), error.what) == (ConfigError, "there is no such revision")
    assert error.hint == "what begins with `-` is no revision here: name a branch as `refs/heads/-NAME`, or the commit"
    assert "tiny/model.py" in built_files(place, "refs/heads/-x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_that_belongs_to_another_user_is_not_read(place: Workplace) -> None:
    files = [place.repository, *place.repository.rglob("*")]
    for path in files:
        os.chown(path, 1234, 1234, follow_symlinks=False)
    error = place.refusal(place.revision("main"))
    assert error.what == "the project's git repository cannot be read"
    assert place.open(place.project()).title == "working tree"
    for path in files:
        os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
