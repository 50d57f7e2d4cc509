"""A project and its git revisions as sides of a benchmark; in most tests something else than hatchling builds them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import is_running, wait_for
from support.sides import commit, git, worktrees
from support.venv import child_environment
from support.workplaces import TABLE, WHEEL, Workplace, workplace

from hatch_lower.cache.directory import history_path
from hatch_lower.cli.measure import project
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.project import is_project
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.driver.explain import BuildHistory, ModelHistory, write_history
from hatch_lower.errors import ConfigError, PackageError, ProcessError
from hatch_lower.format.results import MethodRow

pytestmark = pytest.mark.processes


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    with workplace(tmp_path, monkeypatch) as place:
        yield place


def test_a_revision_is_built_in_a_worktree_that_goes(place: Workplace) -> None:
    place.edit("relu", "tanh", "tiny/model.py")
    (place.root / "new.txt").touch()
    before = git(place.repository, "status", "--porcelain")
    with place.revision("main") as side:
        assert side.source is not None
        assert side.source.relative_to(place.temporary).parts[1:] == ("repository", "models", "tiny")
        assert "relu" in (side.source / "tiny" / "model.py").read_text()
        assert not (side.source / "new.txt").exists()
        assert [folder for folder, _ in place.builds] == [side.source]
        assert side.wheel is not None
        assert side.wheel.name == WHEEL
        assert list(side.folders) == ["tiny"]
        assert len(worktrees(place.repository)) == 2
    assert worktrees(place.repository) == [str(place.repository)]
    assert git(place.repository, "status", "--porcelain") == before
    assert place.told == [f"building {side.title}"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_worktree_goes_whatever_ends_the_block_or_the_build(place: Workplace, error: type[BaseException]) -> None:
    with pytest.raises(error), place.revision("main"):
        raise error
    assert worktrees(place.repository) == [str(place.repository)]

    def fail(folder: Path) -> None:
        raise error

    place.do = fail
    with pytest.raises(error), place.revision("main"):
        pass
    assert worktrees(place.repository) == [str(place.repository)]
    assert list(place.temporary.iterdir()) == []


def test_a_title_names_the_commit(place: Workplace) -> None:
    sha = git(place.repository, "rev-parse", "HEAD")
    short = git(place.repository, "rev-parse", "--short", "HEAD")
    git(place.repository, "tag", "v1")
    assert place.open(place.revision("v1")).title == f"v1 ({short} First)"
    assert place.open(place.revision(sha)).title == f"{short} First"
    assert place.open(place.revision(sha[:12])).title == f"{short} First"
    commit(place.repository, "A subject " * 20)
    assert place.open(place.revision("HEAD~1")).title == f"HEAD~1 ({short} First)"
    title = place.open(place.revision("main")).title
    assert title.endswith("A subject…)")
    assert len(title) == len("main (") + 7 + 1 + 60 + 1


def test_a_title_says_whether_the_working_tree_has_changed(place: Workplace) -> None:
    short = git(place.repository, "rev-parse", "--short", "HEAD")
    side = place.open(place.project())
    assert (side.title, side.source) == (f"working tree ({short} First)", place.root)
    (place.repository / "elsewhere.txt").touch()  # not in the project's folder
    (place.root / "weights.bin").touch()  # ignored
    assert place.open(place.project()).title == f"working tree ({short} First)"
    (place.root / "new.py").touch()
    assert place.open(place.project()).title == "working tree (changed)"
    shutil.rmtree(place.repository / ".git")
    assert place.open(place.project()).title == "working tree"
    shutil.rmtree(place.repository)


def test_what_a_project_is(place: Workplace, tmp_path: Path) -> None:
    assert is_project(place.root)
    assert [is_project(each) for each in (tmp_path, tmp_path / "nowhere", "tiny")] == [False, False, False]


def test_a_revision_that_does_not_exist(place: Workplace) -> None:
    git(place.repository, "tag", "v1.0")
    assert str(place.refusal(place.revision("v1.1"))) == (
        "there is no such revision\n"
        f"  where: `v1.1` in {place.repository}\n"
        "  found: did you mean `v1.0`? known: `main`, `v1.0`\n"
        "  to do: name a branch, a tag or a commit of this repository; `git fetch` gets the branches of its remote"
    )
    for name in ("", "-h", "--help", "0" * 40, "main:models", "a b", "\n"):
        error = place.refusal(place.revision(name))
        assert (type(error), error.what) == (ConfigError, "there is no such revision")
    assert place.builds == []


def test_a_revision_is_no_option_of_git_and_no_command(place: Workplace, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = [
        *(f"--upload-pack=touch {marker}", f"--output={marker}", f"-c core.fsmonitor=touch\\ {marker}", "-C/", "--"),
        *(
            f"ext::sh -c touch% {marker}",
            f"$(touch {marker})",
            f"`touch {marker}`",
            f"main; touch {marker}",
            "--exec=sh",
        ),
        *(f"main --output={marker}", "main..HEAD", "^main", "main^@", "main:../../etc/passwd", "--all", "--help"),
        *("\x1b]0;pwned\x07", "main\0--all", "@{upstream}", "--git-dir=/", "refs/../../x", "--end-of-options"),
    ]
    for name in hostile:
        error = place.refusal(place.revision(name))
        assert isinstance(error, ConfigError | ProcessError), name
        assert str(error).replace("\n", "").isprintable()
    assert not marker.exists()
    assert place.builds == []


def test_a_branch_that_only_the_remote_has_is_named(place: Workplace) -> None:
    git(place.repository, "update-ref", "refs/remotes/origin/next", "HEAD")
    git(place.repository, "branch", "nest")
    assert place.refusal(place.revision("next")).found == "did you mean `origin/next`?"


def test_of_many_names_the_nearest_are_listed(place: Workplace) -> None:
    for number in range(30):
        git(place.repository, "tag", f"v{number}")
    found = place.refusal(place.revision("v100")).found
    assert found.startswith("did you mean `v10`? known: ")
    assert found.count("`") == 2 * 9


def test_a_shallow_clone_without_the_revision(place: Workplace, tmp_path: Path) -> None:
    old = git(place.repository, "rev-parse", "HEAD")
    commit(place.repository, "Second")
    git(tmp_path, "clone", "--quiet", "--depth", "1", place.repository.as_uri(), "clone")
    place.root = tmp_path / "clone" / "models" / "tiny"
    for name in (old, "HEAD~1"):
        error = place.refusal(place.revision(name))
        assert error.what == "there is no such revision"
        assert "`git fetch --unshallow`" in error.hint
        assert "`fetch-depth: 0`" in error.hint
    assert place.open(place.revision("HEAD")).title.endswith("Second)")


def test_a_project_in_no_repository(place: Workplace, tmp_path: Path) -> None:
    place.root = Path(shutil.copytree(place.root, tmp_path / "copy"))
    place.environment["GIT_CEILING_DIRECTORIES"] = str(tmp_path)
    error = place.refusal(place.revision("main"))
    assert error.what == "the project is not in a git repository"
    assert error.where == str(place.root)
    assert error.found.startswith("fatal: not a git repository")
    assert "`--against`" in error.hint


def test_a_repository_of_somebody_else(place: Workplace) -> None:
    place.environment["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    error = place.refusal(place.revision("main"))
    assert error.what == "the project's git repository cannot be read"
    assert "dubious ownership" in error.found
    assert "`git config --global --add safe.directory" in error.hint


def test_no_git(place: Workplace) -> None:
    place.environment["PATH"] = str(place.temporary)
    assert str(place.refusal(place.revision("main"))) == (
        "git is not installed here\n"
        "  where: PATH\n"
        "  to do: install git, or compare with a wheel: `--against dist/NAME.whl`"
    )
    assert place.open(place.project()).title == "working tree"


def test_git_cannot_make_a_worktree(place: Workplace) -> None:
    (place.repository / ".git" / "worktrees").touch()
    error = place.refusal(place.revision("main"))
    assert (type(error), error.what) == (ProcessError, "git could not check out a commit")
    assert error.where.startswith(f"{place.repository}, commit ")
    assert "fatal: " in error.found
    (place.repository / ".git" / "worktrees").unlink()


def test_a_revision_without_the_hook_or_without_the_project(place: Workplace) -> None:
    place.edit(TABLE, "[tool.other]\n")
    short = commit(place.repository, "Without")[:7]
    error = place.refusal(place.revision("main"))
    assert error.what == "the project does not use hatch-lower"
    assert error.where == f"main ({short} Without)/pyproject.toml"
    assert place.refusal(place.project()).what == "the project does not use hatch-lower"
    git(place.repository, "rm", "--quiet", "-r", "models")
    short = commit(place.repository, "Nothing")[:7]
    assert place.refusal(place.revision("main")).what == "there is no project"
    git(place.repository, "checkout", "--quiet", "HEAD~1")
    assert str(place.refusal(place.revision("main"))) == (
        "the revision does not have the project\n"
        f"  where: main ({short} Nothing)\n"
        "  found: no `models/tiny/pyproject.toml`\n"
        "  to do: name a revision in which the project is in this folder of the repository"
    )
    assert place.builds == []


def test_a_revision_that_does_not_build(place: Workplace) -> None:
    place.do = lambda folder: (3, [f"line {number}" for number in range(60)])
    error = place.refusal(place.revision("main"))
    assert type(error) is ProcessError
    assert error.what.startswith("main (")
    assert error.what.endswith(" First) cannot be built")
    assert error.where == "`python -m hatchling build --target wheel` ended with status 3"
    assert error.found.splitlines() == [f"line {number}" for number in range(20, 60)]
    place.do = lambda folder: (0, [])
    assert place.refusal(place.revision("main")).what == "the build made no wheel"


def test_the_log_of_a_build_that_failed_stays_for_its_message_names_it(place: Workplace) -> None:
    def build(folder: Path, status: int) -> tuple[int, list[str]] | None:
        log = history_path(place.cache / "v1", folder).with_suffix(".log")
        write_history(place.cache / "v1", folder, BuildHistory("tiny", "1.0", {}))
        log.write_text("tiny: what the model printed\n")
        return (status, [f"1 line of output by the model's code (kept in {log})"]) if status else None

    place.do = lambda folder: build(folder, 1)
    found = place.refusal(place.revision("main")).found
    (kept,) = (place.cache / "v1" / "history").iterdir()
    assert f"kept in {kept}" in found
    kept.unlink()
    place.do = lambda folder: build(folder, 0)
    place.open(place.revision("main"))
    assert list(kept.parent.iterdir()) == []


def test_files_that_git_ignores_and_the_settings_name_are_copied(place: Workplace) -> None:
    place.edit(TABLE, f'{TABLE}inputs = ["*.bin", "kept", "*.txt"]\nmodels.tiny.assets = ["words/*.bin"]\n')
    (place.root / "held.bin").write_text("of the commit")
    git(place.repository, "add", "--force", place.root / "held.bin")
    commit(place.repository, "Inputs")
    files = ("weights.bin", "held.bin", "kept/deep/a", "words/list.bin", "new.txt", "unnamed/x.bin")
    for name in files:
        (place.root / name).parent.mkdir(parents=True, exist_ok=True)
        (place.root / name).write_text("of the working tree")
    os.utime(place.root / "weights.bin", (1000, 1000))
    with place.revision("main") as side:
        found = {name: (side.source / name).read_text() for name in files if (side.source / name).exists()}
        assert found == {
            "weights.bin": "of the working tree",
            "held.bin": "of the commit",
            "kept/deep/a": "of the working tree",
            "words/list.bin": "of the working tree",
        }
        assert (side.source / "weights.bin").stat().st_mtime == 1000
        (side.source / "weights.bin").write_text("changed by a build")
    assert (place.root / "weights.bin").read_text() == "of the working tree"
    assert place.told[0] == (
        f"{side.title}: with `kept/deep/a`, `weights.bin`, `words/list.bin` of the working tree: "
        "git ignores these files of `inputs` or `assets`"
    )


def test_a_file_that_the_revision_still_had_is_its_own(place: Workplace) -> None:
    place.edit(TABLE, f'{TABLE}inputs = ["*.bin"]\n')
    (place.root / "weights.bin").write_text("of the commit")
    git(place.repository, "add", "--force", place.root / "weights.bin")
    commit(place.repository, "With weights")
    git(place.repository, "rm", "--quiet", "--cached", place.root / "weights.bin")
    commit(place.repository, "Without")
    (place.root / "weights.bin").write_text("of the working tree")
    for name, text in (("HEAD~1", "of the commit"), ("HEAD", "of the working tree")):
        with place.revision(name) as side:
            assert (side.source / "weights.bin").read_text() == text


def test_ignored_files_that_there_is_no_space_for(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.edit(TABLE, f'{TABLE}inputs = ["*.bin"]\n')
    commit(place.repository, "Inputs")
    (place.root / "weights.bin").write_bytes(bytes(2048))
    monkeypatch.setattr(project.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 1024))
    error = place.refusal(place.revision("main"))
    assert type(error) is PackageError
    assert error.found == "2.00 KiB to copy, 1.00 KiB free"
    assert "TMPDIR" in error.hint


def test_variables_of_a_git_hook_lead_nowhere_else(place: Workplace) -> None:
    before = git(place.repository, "ls-files", "--stage")
    names = {"GIT_DIR": ".git", "GIT_INDEX_FILE": str(place.repository / ".git" / "index"), "GIT_WORK_TREE": "."}
    place.environment |= names
    with place.revision("main") as side:
        assert (side.source / "tiny" / "model.py").is_file()
        assert not names.keys() & place.builds[0][1].keys()
    assert git(place.repository, "ls-files", "--stage") == before


def test_hooks_of_the_user_are_not_run(place: Workplace) -> None:
    hook = place.repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {place.repository / 'ran'}\n")
    hook.chmod(0o755)
    place.open(place.revision("main"))
    assert not (place.repository / "ran").exists()


def test_the_worktree_of_a_killed_benchmark_is_forgotten_and_others_are_not(place: Workplace, tmp_path: Path) -> None:
    killed, own = place.temporary / "hatch-lower-bench-killed" / "repository", tmp_path / "own"
    for folder in (killed, own):
        git(place.repository, "worktree", "add", "--quiet", "--detach", folder)
    shutil.rmtree(own)  # on a disk that is not there today
    place.open(place.revision("main"))
    assert worktrees(place.repository) == [str(place.repository), str(own)]
    git(place.repository, "worktree", "prune")


def test_the_next_comparison_of_any_kind_forgets_worktrees_of_a_killed_benchmark(place: Workplace) -> None:
    killed = place.temporary / "hatch-lower-bench-killed" / "repository"
    git(place.repository, "worktree", "add", "--quiet", "--detach", killed)
    with work_folder():
        assert not killed.parent.exists()
        assert worktrees(place.repository) == [str(place.repository)]


def row(partitions: int, reused: int, level: int = 0) -> MethodRow:
    return MethodRow("tiny", "default", "forward", 9, 9, partitions, 100, 1.0, reused, "", level)


def test_the_facts_of_a_build_are_what_the_cache_has_written_down(place: Workplace) -> None:
    def build(folder: Path) -> None:
        models = {
            "tiny": ModelHistory(0, rows=(row(4, 1), row(2, 2, 3))),
            "gone": ModelHistory(0, rows=(row(4, 1),)),
        }
        write_history(place.cache / "v1", folder, BuildHistory("tiny", "1.0", models))

    place.do = build
    lowered = {FigureSubject("tiny"): {"level": 0, "compilations": 3}}
    assert place.open(place.project()).build == lowered
    assert place.open(place.revision("main")).build == lowered
    (kept,) = (place.cache / "v1" / "history").iterdir()  # of the project, and none of the worktree
    place.do = lambda folder: None  # a build that exports nothing leaves the history
    assert place.open(place.project()).build == {FigureSubject("tiny"): {"level": 1, "compilations": 0}}
    assert place.open(place.revision("main")).build == {}
    place.environment["HATCH_LOWER_CACHE"] = "off"
    assert place.open(place.project()).build == {}
    assert kept.is_file()


def test_an_interrupted_build_leaves_nothing(place: Workplace) -> None:
    place.edit(TABLE, f"[tool.hatch.build.targets.wheel.hooks.custom]\n{TABLE}")
    mark = place.repository.parent / "mark"
    (place.root / "hatch_build.py").write_text(
        "import subprocess, sys, time\n"
        "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n"
        "class Hook(BuildHookInterface):\n"
        "    def initialize(self, version, build_data):\n"
        "        child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        f"        open({str(mark)!r}, 'w').write(str(child.pid))\n"
        "        time.sleep(99)\n"
    )
    commit(place.repository, "Sleeps")
    script = (
        "import os; from pathlib import Path; from hatch_lower.cli.measure.project import built_revision\n"
        f"with built_revision(Path({str(place.root)!r}), 'main', os.environ, print): pass\n"
    )
    environment = child_environment({**place.environment, "TMPDIR": str(place.temporary)})
    for number, status in (
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGINT, -signal.SIGINT),
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # `nohup` has it ignored
        )
        wait_for(lambda: mark.exists() and bool(mark.read_text()), "the hook slept", process)
        assert len(worktrees(place.repository)) == 2
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
        assert process.returncode == status, output
        assert list(place.temporary.iterdir()) == []
        assert worktrees(place.repository) == [str(place.repository)]
        pid = int(mark.read_text())
        wait_for(lambda pid=pid: not is_running(pid), "its child to end")
        mark.unlink()


@pytest.mark.torch
@pytest.mark.slow
def test_what_the_working_tree_has_lowered_is_not_lowered_for_a_revision(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(place.temporary))
    assert place.open(place.project()).build == {FigureSubject("tiny"): {"level": 0, "compilations": 1}}
    (place.root / "README.md").write_text("Words.\n")
    commit(place.repository, "Documentation")
    for name in ("HEAD", "HEAD~1"):
        with place.revision(name) as side:
            assert side.build == {FigureSubject("tiny"): {"level": 1, "compilations": 0}}
            assert list(side.folders) == ["tiny"]
