"""Builds, timed: one with an empty cache, and one in which nothing has changed since."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hatch_lower.bench.figures import Subject
from hatch_lower.bench.project import build_wheel
from hatch_lower.bench.side import Side
from hatch_lower.bench.temporary import work_folder
from hatch_lower.bench.timed import IsDecided, Measured, Observations

WHEEL = Subject()
METRICS = ("cold-build-seconds", "warm-build-seconds")


def measure_builds(
    sides: Mapping[str, Side],
    environment: Mapping[str, str],
    budget: float,
    is_decided: IsDecided,
    tell: Callable[[str], None],
) -> Measured:
    """Build all sides in turn, once at least, until `is_decided` says that it is enough or the seconds are over."""
    measured: Measured = {(WHEEL, metric): Observations() for metric in METRICS}
    end = time.monotonic() + budget
    order = list(sides)
    while True:
        times = {name: build_twice(sides[name], environment, tell) for name in order}
        for at, metric in enumerate(METRICS):
            measured[WHEEL, metric].add([{name: [times[name][at]] for name in times}])
        order.reverse()
        if time.monotonic() > end or all(is_decided(*key, found) for key, found in measured.items()):
            return measured


def build_twice(side: Side, environment: Mapping[str, str], tell: Callable[[str], None]) -> tuple[float, float]:
    """Return the seconds of a build with an empty cache, and of another one after it."""
    assert side.source is not None
    with work_folder() as work:
        variables = {
            **environment,
            "HATCH_LOWER_CACHE": "on",
            "HATCH_LOWER_CACHE_DIR": str(work / "cache"),
            "HATCH_LOWER_REMOTE_CACHE": "off",
        }
        return (
            timed_build(side.source, work / "cold", side.title, variables, tell),
            timed_build(side.source, work / "warm", side.title, variables, tell),
        )


def timed_build(
    source: Path, target: Path, title: str, environment: Mapping[str, str], tell: Callable[[str], None]
) -> float:
    begin = time.perf_counter()
    build_wheel(source, target, title, environment, tell)
    return time.perf_counter() - begin
