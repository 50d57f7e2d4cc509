"""The times that recipes took: estimates for the next build."""

from __future__ import annotations

from collections import defaultdict

from hatch_lower.cache.recipes import put_cost, read_cost
from hatch_lower.cache.store import Store
from hatch_lower.events import Event, Reporter
from hatch_lower.format.record import ModelReport


class StageSeconds:
    """Hands events on, and adds up how long the stages of each recipe took."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def report(self, event: Event) -> None:
        if event.state == "end":
            self._seconds[event.recipe] += event.seconds
        self._reporter.report(event)

    def of(self, recipe: str) -> float:
        """Return the seconds of a recipe and of the shared stages, as for a machine that makes the recipe alone."""
        return self._seconds[""] + self._seconds[recipe]


def keep_costs(store: Store, distribution: str, report: ModelReport, timed: StageSeconds) -> None:
    """Keep the seconds of each recipe that was lowered; a recipe from the cache takes less time, and is left out."""
    for recipe in dict.fromkeys(row.recipe for row in report.rows):
        rows = [row for row in report.rows if row.recipe == recipe]
        if any(row.level in (1, 2) for row in rows):  # no backend ran
            continue
        unit = f"{report.model}/{recipe}"
        seconds = timed.of(recipe)
        lowered = any(row.partitions and row.level != 3 for row in rows)
        if lowered or seconds > (read_cost(store, distribution, unit) or 0.0):
            put_cost(store, distribution, unit, seconds)
