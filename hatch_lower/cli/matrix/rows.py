"""The rows of a matrix: each version of an engine with each method of its recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from packaging.requirements import Requirement
from packaging.version import Version

from hatch_lower.cli.matrix.engines import Engine, EngineTrial, TriedRecipe
from hatch_lower.cli.matrix.environment import CheckedRecipe, InstallError
from hatch_lower.frozen import Frozen

Result = Literal["passed", "wrong number", "fails", "refused", "not compared", "not installable"]
RESULTS: dict[str, Result] = {"ok": "passed", "differs": "wrong number"}  # by status of the check
FAULTS = ("wrong number", "fails")


class MatrixRow(Frozen):
    """The result of a method with a version of an engine; without a recipe the result of the whole version."""

    engine: str
    version: Version
    result: Result
    model: str = ""
    recipe: str = ""
    method: str = ""
    detail: str = ""  # the reason, or the output with its difference
    largest_error: float | str | None = None  # the largest absolute difference; "inf" in place of an infinite number
    installed: tuple[tuple[str, str], ...] = ()  # versions of the recipe's requirements


class TriedEngine(Frozen):
    """An engine with the results of its versions."""

    engine: Engine
    rows: tuple[MatrixRow, ...]

    def is_failure(self, row: MatrixRow) -> bool:
        """Return whether a row breaks the promise of the wheel's requirement.

        A version that installers do not take here breaks no promise. A recipe that is refused breaks the promise if
        another version takes the recipe; otherwise this machine lacks a device that the recipe needs.
        """
        if row.result != "refused":
            return row.result in FAULTS
        return any((each.model, each.recipe) == (row.model, row.recipe) for each in self.rows if is_loaded(each))

    def versions(self) -> dict[Version, bool | None]:
        """Return whether each tried version passes: every recipe loads, no number is wrong, and a method is compared.

        `None` for a version that could not be tried.
        """
        found: dict[Version, bool | None] = {}
        for version in sorted({row.version for row in self.rows}):
            own = [row for row in self.rows if row.version == version]
            if any(map(self.is_failure, own)):
                found[version] = False
            else:
                found[version] = True if any(row.result == "passed" for row in own) else None
        return found


def is_loaded(row: MatrixRow) -> bool:
    return row.result in ("passed", "wrong number", "not compared")


class MadeEnvironment(Protocol):
    def check(self, tried: TriedRecipe) -> CheckedRecipe: ...


Open = Callable[[Engine, str], AbstractContextManager[MadeEnvironment]]  # of an engine and its version


def try_engine(
    engine: Engine, trials: Sequence[EngineTrial], open_environment: Open, tell: Callable[[str], None]
) -> TriedEngine:
    """Check the recipes of an engine with each version; `tell` is given the progress, a line at a time."""
    rows: list[MatrixRow] = []
    for number, trial in enumerate(trials, 1):
        if trial.reason:
            rows.append(MatrixRow(engine.name, trial.version, "not installable", detail=trial.reason))
            continue
        tell(f"{engine.name} {trial.version}, {number} of {len(trials)}")
        try:
            with open_environment(engine, str(trial.version)) as environment:
                for tried in engine.recipes:
                    rows += recipe_rows(engine, trial.version, tried, environment.check(tried))
        except InstallError as error:
            rows.append(MatrixRow(engine.name, trial.version, "fails", detail=f"it cannot be installed: {error}"))
    return TriedEngine(engine, tuple(rows))


def recipe_rows(engine: Engine, version: Version, tried: TriedRecipe, checked: CheckedRecipe) -> Iterator[MatrixRow]:
    installed = tuple(sorted(checked.installed.items()))

    def row(result: Result, method: str = "", detail: str = "", error: float | str | None = None) -> MatrixRow:
        return MatrixRow(engine.name, version, result, tried.model, tried.recipe, method, detail, error, installed)

    found = checked.installed.get(engine.name)
    if found is not None and Version(found).public != version.public:
        yield row("fails", "", f"version {found} is installed instead")
        return
    for each in checked.rows:
        method = each["method"]
        skipped: Result = "not compared" if method else "refused"
        result = skipped if each["status"] == "skipped" else RESULTS.get(each["status"], "fails")
        yield row(result, method, each["detail"], each["largest_error"])
    if checked.ended:
        yield row("fails", "", checked.ended)


def engine_distributions(engine: Engine) -> list[str]:
    """Return the distributions whose installed versions the rows of an engine name."""
    return sorted({engine.name, *(Requirement(text).name for text in engine.others)})
