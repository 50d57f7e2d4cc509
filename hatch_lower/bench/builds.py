"""Builds, timed: one with an empty cache, and one in which nothing has changed since."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hatch_lower.bench.command import Tell
from hatch_lower.bench.figures import Subject
from hatch_lower.bench.project import build_wheel
from hatch_lower.bench.side import Side
from hatch_lower.bench.temporary import work_folder
from hatch_lower.bench.timed import IsDecided, Measured, Observations

WHEEL = Subject()
METRICS = ("cold-build-seconds", "warm-build-seconds")


def measure_builds(
    sides: Mapping[str, Side], environment: Mapping[str, str], budget: float, is_decided: IsDecided, tell: Tell
) -> Measured:
    """Build all sides in turn, once at least, until `is_decided` says that it is enough or the seconds are over."""
    measured: Measured = {(WHEEL, metric): Observations() for metric in METRICS}
    end = time.monotonic() + budget
    order = list(sides)
    while True:
        times = {name: build_twice(sides[name], environment, tell) for name in order}
        for at, metric in enumerate(METRICS):
            measured[WHEEL, metric].add([{name: [seconds[at]] for name, seconds in times.items()}])
        order.reverse()
        if time.monotonic() > end or all(is_decided(*key, found) for key, found in measured.items()):
            return measured


def build_twice(side: Side, environment: Mapping[str, str], tell: Tell) -> list[float]:
    """Return the seconds of a build with an empty cache, and of another one after it."""
    assert side.source is not None
    seconds = []
    with work_folder() as work:
        variables = {
            **environment,
            "HATCH_LOWER_CACHE": "on",
            "HATCH_LOWER_CACHE_DIR": str(work / "cache"),
            "HATCH_LOWER_REMOTE_CACHE": "off",
        }
        for target in ("cold", "warm"):
            begin = time.perf_counter()
            build_wheel(side.source, work / target, side.title, variables, tell)
            seconds.append(time.perf_counter() - begin)
    return seconds
