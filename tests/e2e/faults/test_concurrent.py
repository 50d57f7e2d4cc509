"""Builds at the same time with one cache: what several of them want is made once, and all come to an end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.counted import Counted, chain_project, install_counted
from support.processes import PATIENCE, start, wait_for, with_variable, workers
from support.scenarios import Project, only, sha256, tree
from support.venv import Finished

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

MARK = "HATCH_LOWER_TEST_MARK"
CHAIN = ("sin", "cos", "tanh", "exp", "sin")
DISTINCT = ["aten.cos.default", "aten.exp.default", "aten.sin.default", "aten.tanh.default"]


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    """The backend `counted`, slow enough for builds to meet in it."""
    return install_counted(tmp_path / "backend", seconds=0.3)


@pytest.fixture
def build_all(counted: Counted, tmp_path: Path) -> Callable[[Sequence[Project]], list[Finished]]:
    """Builds projects at the same time; all must come to an end."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"PYTHONPATH": str(counted.folder), "TMPDIR": str(temporary)}

    def run(projects: Sequence[Project]) -> list[Finished]:
        before = [tree(each.root) for each in projects]
        with ThreadPoolExecutor(len(projects)) as pool:
            done = list(pool.map(lambda each: each.build(environment=environment).check(), projects))
        assert [tree(each.root) for each in projects] == before
        assert list(temporary.iterdir()) == []
        for each in projects:
            assert each.left_behind() == [only(each.dist, "*.whl").name]
        return done

    return run


def exports(done: Sequence[Finished]) -> int:
    """Return how many times a method was exported."""
    lines = [line.split() for each in done for line in each.stderr.splitlines()]
    ended = [words for words in lines if words[-2:] != ["so", "far"]]  # what is said of a long stage in its midst
    return sum(words[:1] == ["lower"] and words[2:3] == ["export"] for words in ended)


def test_four_builds_of_one_project_export_once_and_lower_each_partition_once(
    counted: Counted, build_all: Callable[[Sequence[Project]], list[Finished]], tmp_path: Path
) -> None:
    alone = chain_project(tmp_path / "alone", tmp_path / "another cache", {"chain": CHAIN})
    assert exports(build_all([alone])) == 1
    assert counted.lowered() == DISTINCT
    reference = sha256(only(alone.dist, "*.whl"))
    counted.log.unlink()
    projects = [chain_project(tmp_path / f"copy {i}", tmp_path / "cache", {"chain": CHAIN}) for i in range(4)]
    done = build_all(projects)
    assert counted.lowered() == DISTINCT
    assert {sha256(only(each.dist, "*.whl")) for each in projects} == {reference}
    assert exports(done) == 1
    assert sum("why chain: first build" in each.stderr for each in done) == 1, "of the build that has exported"


@pytest.mark.parametrize(
    ("different", "exported"),
    [pytest.param("version", 1, marks=pytest.mark.long), ("model", 2)],  # `test_incremental` reads no version, too
    ids=["version that no export reads", "model"],
)
def test_builds_of_other_projects_with_equal_partitions_lower_each_once(
    counted: Counted,
    build_all: Callable[[Sequence[Project]], list[Finished]],
    tmp_path: Path,
    different: str,
    exported: int,
) -> None:
    projects = [
        chain_project(
            tmp_path / f"copy {i}",
            tmp_path / "cache",
            {f"chain{i}" if different == "model" else "chain": CHAIN},
            version=f"1.{i}" if different == "version" else "1.0",
        )
        for i in range(2)
    ]
    assert exports(build_all(projects)) == exported
    assert counted.lowered() == DISTINCT


def test_builds_that_want_the_same_partitions_in_another_order_do_not_wait_for_each_other_for_ever(
    counted: Counted, build_all: Callable[[Sequence[Project]], list[Finished]], tmp_path: Path
) -> None:
    functions = ("sin", "cos", "tanh", "exp", "relu", "sigmoid")
    forth = {"first": functions[:4], "second": functions[2:]}
    back = {"second": functions[:3:-1], "first": functions[4::-1]}
    recipes = ["small"]
    projects = [
        chain_project(tmp_path / "forth", tmp_path / "cache", forth, name="forth", recipes=recipes, jobs=2),
        chain_project(tmp_path / "back", tmp_path / "cache", back, name="back", recipes=recipes, jobs=2),
    ]
    build_all(projects)
    assert counted.lowered() == sorted(f"aten.{each}.default" for each in functions)


def family(project: Project) -> list[int]:
    """Return the processes of a project's build."""
    return with_variable(MARK, str(project.root))


def test_a_build_that_waits_for_one_that_is_killed_goes_on(tmp_path: Path) -> None:
    slow = install_counted(tmp_path / "backend", seconds=PATIENCE)
    first, second = (
        chain_project(tmp_path / each, tmp_path / "cache", {"chain": ["sin"]}) for each in ("first", "second")
    )
    temporary = tmp_path / "temporary"  # the killed build leaves its folder there
    temporary.mkdir()
    environment = {"PYTHONPATH": str(slow.folder), "TMPDIR": str(temporary)}
    processes = []
    for each in (first, second):
        processes.append(start(each, {**environment, MARK: str(each.root)}))
        wait_for(lambda each=each: bool(workers(family(each))), "a child is started", processes[-1])
        wait_for(lambda: bool(slow.lowered()), "the partition is lowered", processes[0])
    assert processes[1].stderr is not None
    assert any("waiting for another build" in line for line in processes[1].stderr), "it has found the lock taken"
    assert slow.lowered() == ["aten.sin.default"]
    for pid in family(first):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (tmp_path / "backend" / "go on").touch()  # the second one need not wait
    processes[0].communicate(timeout=PATIENCE)
    _, errors = processes[1].communicate(timeout=PATIENCE)
    assert processes[1].returncode == 0, errors
    assert slow.lowered() == ["aten.sin.default"] * 2
    assert second.left_behind() == [only(second.dist, "*.whl").name]
