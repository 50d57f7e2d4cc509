"""A profile: the time of one method's calls, by source line, module and operation, in one or several recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hatch_lower.format.debug_map import Origin
from hatch_lower.frozen import Frozen

PROFILE_SCHEMA = 1
PLAN = "plan"  # the engine of instructions that the plan runs itself
REST = "other work of the engine"  # what a delegate does beside the instructions that it measures
WHOLE = "whole delegate"  # of one that measures nothing inside


@dataclass(frozen=True, slots=True)
class Row:
    """What one operation of one line takes in one engine; `source` is empty for what no line is known of."""

    source: str
    module: str
    op: str
    engine: str
    seconds: float  # of one call
    calls: int  # how often it ran in all the calls that were measured
    shared: bool = False  # some of it is a share of what the engine computes together with other operations


@dataclass(frozen=True, slots=True)
class Span:
    """What a plan's instruction, or one inside a delegate, takes in one call; spans follow each other."""

    op: str
    engine: str
    seconds: float
    origins: tuple[Origin, ...] = ()
    parts: tuple[Span, ...] = ()


class RecipeProfile(Frozen):
    calls: int  # that were measured
    seconds: float  # of a call with timers; rows and `unattributed` add up to it
    overhead: float  # the share by which a call with timers is longer than one without
    rows: tuple[Row, ...]
    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()  # what is not measured, and why

    @property
    def unattributed(self) -> float:
        """The seconds of a call that are in no row: what is around the plan's instructions."""
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
    notes: tuple[str, ...] = ()  # what is to be known of its lines

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
