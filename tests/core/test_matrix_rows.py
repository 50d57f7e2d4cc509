"""The results of a matrix: what an environment answers decides on a version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hatch_lower.cli.matrix.engines import Engine, EngineTrial, TriedRecipe
from hatch_lower.cli.matrix.environment import CheckedRecipe, InstallError, process_end
from hatch_lower.cli.matrix.rows import MatrixRow, TriedEngine, try_engine
from hatch_lower.cli.matrix.text import matrix_json, matrix_lines

SMALL, LARGE = (TriedRecipe("net", name, ("tiny>=1",)) for name in ("small", "large"))
ENGINE = Engine("tiny", SpecifierSet(">=1,<2"), "the wheel's metadata", (SMALL, LARGE), ())


def answer(status: str = "ok", method: str = "forward", detail: str = "", error: float | None = 0.0) -> dict[str, Any]:
    return {"method": method, "status": status, "detail": detail, "largest_error": error}


OK = CheckedRecipe((answer(),), {})
REFUSED = CheckedRecipe((answer("skipped", "", "it cannot run here: no GPU", None),), {})
WRONG = CheckedRecipe((answer("differs", detail="`out`: 3 of 4 values", error=0.5),), {})
UNCOMPARED = CheckedRecipe((answer("skipped", detail="no packaged check inputs", error=None),), {})


@dataclass
class Machine:
    """Environments that answer as a test says, by version and recipe; other recipes pass."""

    answers: Mapping[tuple[str, str], CheckedRecipe] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    @contextmanager
    def __call__(self, engine: Engine, version: str) -> Iterator[Any]:
        self.opened.append(version)
        try:
            if version in self.refused:
                raise InstallError("no matching distribution")
            answers = self.answers

            class Made:
                def check(self, tried: TriedRecipe) -> CheckedRecipe:
                    return answers.get((version, tried.recipe), OK)

            yield Made()
        finally:
            self.closed.append(version)


def tried(machine: Machine, *versions: str, engine: Engine = ENGINE) -> TriedEngine:
    """Try versions; a version that ends with `!` has no wheel here."""
    trials = [
        EngineTrial(Version(text.removesuffix("!")), "no wheel" if text.endswith("!") else "") for text in versions
    ]
    return try_engine(engine, trials, machine, lambda line: None)


def results(found: TriedEngine) -> list[tuple[str, str, str]]:
    return [(str(row.version), row.recipe, row.result) for row in found.rows]


def verdicts(found: TriedEngine) -> dict[str, bool | None]:
    return {str(version): passes for version, passes in found.versions().items()}


def test_each_version_has_an_environment_that_ends_before_the_next_begins() -> None:
    machine = Machine()
    assert verdicts(tried(machine, "1.0", "1.1")) == {"1.0": True, "1.1": True}
    assert machine.opened == machine.closed == ["1.0", "1.1"]


def test_a_wrong_number_of_a_version_is_found_and_other_versions_pass() -> None:
    found = tried(Machine({("1.1", "large"): WRONG}), "1.0", "1.1", "1.2")
    assert results(found)[2:4] == [("1.1", "small", "passed"), ("1.1", "large", "wrong number")]
    assert verdicts(found) == {"1.0": True, "1.1": False, "1.2": True}


def test_a_version_without_a_wheel_is_a_row_and_no_failure() -> None:
    machine = Machine()
    found = tried(machine, "1.0!", "1.1")
    assert results(found)[0] == ("1.0", "", "not installable")
    assert machine.opened == ["1.1"]
    assert verdicts(found) == {"1.0": None, "1.1": True}


def test_a_version_that_the_installer_refuses_is_a_failure() -> None:
    found = tried(Machine(refused=("1.1",)), "1.0", "1.1")
    assert found.rows[-1].detail == "it cannot be installed: no matching distribution"
    assert verdicts(found) == {"1.0": True, "1.1": False}


def test_a_recipe_that_one_version_refuses_and_another_takes_is_a_failure() -> None:
    found = tried(Machine({("1.1", "large"): REFUSED}), "1.0", "1.1")
    assert verdicts(found) == {"1.0": True, "1.1": False}


def test_a_recipe_that_every_version_refuses_is_a_matter_of_the_machine() -> None:
    found = tried(Machine({(version, "large"): REFUSED for version in ("1.0", "1.1")}), "1.0", "1.1")
    assert verdicts(found) == {"1.0": True, "1.1": True}


def test_a_version_that_only_loads_is_neither_passed_nor_failed() -> None:
    found = tried(Machine({("1.0", name): UNCOMPARED for name in ("small", "large")}), "1.0")
    assert [row.result for row in found.rows] == ["not compared"] * 2
    assert verdicts(found) == {"1.0": None}


def test_a_crash_keeps_the_rows_before_it() -> None:
    crashed = CheckedRecipe((answer(),), {}, "the process was ended by SIGSEGV")
    found = tried(Machine({("1.0", "small"): crashed}), "1.0")
    assert [(row.method, row.result) for row in found.rows[:2]] == [("forward", "passed"), ("", "fails")]
    assert verdicts(found) == {"1.0": False}


def test_another_version_than_the_wanted_one_is_a_failure() -> None:
    other = CheckedRecipe((answer(),), {"tiny": "1.5"})
    found = tried(Machine({("1.0", "small"): other, ("1.1", "small"): replace_version(other, "1.1+cpu")}), "1.0", "1.1")
    assert found.rows[0].detail == "version 1.5 is installed instead"
    assert verdicts(found) == {"1.0": False, "1.1": True}


def replace_version(checked: CheckedRecipe, version: str) -> CheckedRecipe:
    return CheckedRecipe(checked.rows, {"tiny": version})


def test_the_end_of_a_process_is_named() -> None:
    assert process_end(-11, "") == "the process was ended by SIGSEGV"
    assert process_end(1, "a\nb\n") == "exit status 1\na\nb"
    assert process_end(None, "").startswith("no result after")


def test_the_table_has_the_reason_and_below_it_the_faults() -> None:
    machine = Machine({("1.1", "large"): WRONG, ("1.0", "large"): UNCOMPARED})
    lines = list(matrix_lines([tried(machine, "1.0", "1.1", "1.2!")]))
    assert [" ".join(line.split()) for line in lines] == [
        "engine version model recipe method result largest difference reason",
        "tiny 1.0 net small forward passed 0",
        "tiny 1.0 net large forward not compared no packaged check inputs",
        "tiny 1.1 net small forward passed 0",
        "tiny 1.1 net large forward wrong number 0.5",
        "tiny 1.2 not installable no wheel",
        "",
        "tiny 1.1, net, large, forward: `out`: 3 of 4 values",
        "",
        "tiny>=1,<2 (the wheel's metadata): 3 versions, 1 passed, 1 failed, 1 not tried",
    ]


def test_the_json_has_a_row_for_each_line_of_the_table() -> None:
    report = matrix_json("net.whl", [tried(Machine({("1.0", "large"): WRONG}), "1.0")])
    assert report["engines"] == [{"name": "tiny", "requirement": "tiny>=1,<2", "source": "the wheel's metadata"}]
    assert [(row["version"], row["recipe"], row["failure"]) for row in report["rows"]] == [
        ("1.0", "small", False),
        ("1.0", "large", True),
    ]
    assert report["rows"][1]["largest_error"] == 0.5


def test_an_infinite_difference_is_shown() -> None:
    row = MatrixRow("tiny", Version("1.0"), "wrong number", "net", "small", "forward", "all", "inf")
    assert any(line.split()[-1:] == ["inf"] for line in matrix_lines([TriedEngine(ENGINE, (row,))]))
