"""A profile: the time of a method's calls by source line, module and operation, in one or several recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hatch_lower.format.debug_map import Origin
from hatch_lower.frozen import Frozen

PROFILE_SCHEMA = 1
PLAN = "plan"  # the engine of instructions that the plan runs itself
REST = "other work of the engine"  # time of a delegate outside of measured instructions
WHOLE = "whole delegate"  # a delegate without inner measurements


@dataclass(frozen=True, slots=True)
class Row:
    """The time of an operation of a source line in an engine; `source` is empty if unknown."""

    source: str
    module: str
    op: str
    engine: str
    seconds: float  # of one call
    calls: int  # number of runs in all measured calls
    shared: bool = False  # part of the time is a share of the time of several operations


@dataclass(frozen=True, slots=True)
class Span:
    """The time of an instruction of a plan or delegate in a call; spans are in sequence."""

    op: str
    engine: str
    seconds: float
    origins: tuple[Origin, ...] = ()
    parts: tuple[Span, ...] = ()


class RecipeProfile(Frozen):
    calls: int  # that were measured
    seconds: float  # of a call with timers; the sum of all rows and `unattributed`
    overhead: float  # relative difference of calls with and without timers
    rows: tuple[Row, ...]
    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()  # omitted measurements, with reasons

    @property
    def unattributed(self) -> float:
        """The seconds of a call outside of all rows: time between instructions of the plan."""
        return self.seconds - sum(row.seconds for row in self.rows)

    @property
    def attributed(self) -> float:
        """The share of a call that is attributed to source lines."""
        return sum(row.seconds for row in self.rows if row.source) / self.seconds


class Profile(Frozen):
    model: str
    method: str
    threads: int
    recipes: Mapping[str, RecipeProfile]
    notes: tuple[str, ...] = ()  # remarks about source lines

    @property
    def calls(self) -> int:
        """How often each recipe was called, at least."""
        return min(recipe.calls for recipe in self.recipes.values())

    def to_json(self) -> dict[str, object]:
        return {
            "schema": PROFILE_SCHEMA,
            "model": self.model,
            "method": self.method,
            "threads": self.threads,
            "calls": self.calls,
            "notes": list(self.notes),
            "recipes": {name: recipe_json(recipe) for name, recipe in self.recipes.items()},
        }


def recipe_json(recipe: RecipeProfile) -> dict[str, object]:
    return {
        "seconds": recipe.seconds,
        "rows": [row_json(row) for row in recipe.rows],
        "unattributed": recipe.unattributed,
        "attributed": recipe.attributed,
        "overhead": recipe.overhead,
        "notes": list(recipe.notes),
    }


def row_json(row: Row) -> dict[str, object]:
    written = asdict(row)
    return written if row.shared else {name: value for name, value in written.items() if name != "shared"}


def merged(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return rows of which no two are of the same operation of the same line, the longest first."""
    found: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.source, row.module, row.op, row.engine), []).append(row)
    added = [
        Row(*key, sum(row.seconds for row in same), sum(row.calls for row in same), any(row.shared for row in same))
        for key, same in found.items()
    ]
    return tuple(sorted(added, key=lambda row: -row.seconds))
