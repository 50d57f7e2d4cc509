"""The order in which `load` tries the recipes of a model that was built with `order = "measured"`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from hatch_lower.format.manifest import MeasuredCalls, ModelEntry, RecipeEntry
from hatch_lower.runtime.selection import CPUINFO, LEVELS, machine_level, thread_count


def order_here(model: ModelEntry, cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return a model's recipes, the fastest on this processor first.

    The measurements of the highest instruction set level that the processor has decide. Recipes with measurements of
    lower levels only come next, and recipes without measurements last, in the order of the settings.
    """
    if not any(recipe.measured for recipe in model.recipes.values()):
        return model.order
    here = thread_count()
    ordered: list[str] = []
    for level in levels_here(cpuinfo):
        seconds = seconds_at(level, here, {name: model.recipes[name] for name in model.order if name not in ordered})
        ordered += sorted(seconds, key=seconds.__getitem__)
    return (*ordered, *(name for name in model.order if name not in ordered))


def levels_here(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return the names that measurements on this processor may have as level, the highest level first."""
    highest, names = machine_level(cpuinfo), [name for name, _ in LEVELS]
    return tuple(names[names.index(highest) :: -1]) if highest in names else (highest,)


def seconds_at(level: str, threads: int, recipes: Mapping[str, RecipeEntry]) -> dict[str, float]:
    """Return the seconds of a call of each recipe with measurements of a level.

    The measurements with the most threads, but at most `threads`, decide; else the measurements with the fewest.
    """
    measured = {
        (name, calls.threads): call_seconds(calls)
        for name, recipe in recipes.items()
        for calls in recipe.measured
        if calls.level == level
    }
    counts = {count for _, count in measured}
    if not counts:
        return {}
    count = max((count for count in counts if count <= threads), default=min(counts))
    return {name: measured[name, count] for name in recipes if (name, count) in measured}


def call_seconds(measured: MeasuredCalls) -> float:
    """Return the geometric mean of the seconds of all calls."""
    # a mean of seconds would be the seconds of the longest call
    return math.exp(math.fsum(math.log(call.seconds) for call in measured.calls) / len(measured.calls))
