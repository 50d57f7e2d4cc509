"""The document of `--json`: pytest-benchmark's own format, so that its command and others that read it do.

`benchmarks` has an entry for each series of timed rounds. All figures of both sides, of whatever tier, and the verdicts
are under the key `hatch_lower`. Without timed rounds the document holds nothing of the machine, the time, the paths
and the cache.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hatch_lower.bench.figures import METRICS, Figures, Subject, Tier

SCHEMA = 1
FORMAT = "5.3.1"  # the version of pytest-benchmark whose format this is
NO_TIME = "1970-01-01T00:00:00+00:00"
GIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TimedSeries:
    """The rounds of one timed metric on one side."""

    subject: Subject
    metric: str  # one whose unit is seconds
    side: str  # `A`, `B` or `eager`
    seconds: tuple[float, ...]  # of each round, in order

    @property
    def group(self) -> str:
        """What is measured, whichever side it is of."""
        return str(self.subject) if self.metric == "call-seconds" else f"{self.subject} {METRICS[self.metric].words}"

    @property
    def name(self) -> str:
        return self.group if self.side == "A" else f"{self.group} ({self.side})"


@dataclass(frozen=True, slots=True)
class ReportedSide:
    title: str
    distributions: Sequence[str]  # `digits 1.0`
    figures: Figures


@dataclass(frozen=True, slots=True)
class ReportedVerdict:
    subject: Subject
    metric: str
    outcome: str
    facts: Mapping[str, object] = field(default_factory=dict)  # as JSON: the limit, the ratio and its interval


@dataclass(frozen=True, slots=True)
class Report:
    sides: Mapping[str, ReportedSide]  # `A`, and `B` if there is one
    series: Sequence[TimedSeries] = ()
    verdicts: Sequence[ReportedVerdict] = ()


def report_text(report: Report, project: Path) -> str:
    """Return the document; `project` is a folder of the git repository that it is about, if there is one."""
    series = sorted((each for each in report.series if each.seconds), key=lambda each: (each.group, each.side))
    left_out: tuple[Tier, ...] = () if series else ("build",)
    document = {
        "machine_info": machine_info() if series else {},
        "commit_info": commit_info(project) if series else {},
        "benchmarks": [entry_of(each, report.sides.get(each.side)) for each in series],
        "datetime": datetime.now(timezone.utc).isoformat() if series else NO_TIME,
        "version": FORMAT,
        "hatch_lower": {
            "schema": SCHEMA,
            "sides": {
                name: {"distributions": list(side.distributions), **({"title": side.title} if series else {})}
                for name, side in report.sides.items()
            },
            "figures": list(figure_rows(report.sides, left_out)),
            "verdicts": [
                {**asdict(each.subject), "metric": each.metric, "outcome": each.outcome, **each.facts}
                for each in sorted(report.verdicts, key=lambda each: (each.subject, each.metric))
                if METRICS[each.metric].tier not in left_out
            ],
        },
    }
    return json.dumps(plain(document), sort_keys=True, indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return a value for JSON, which has no infinity: that is text here."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def figure_rows(sides: Mapping[str, ReportedSide], left_out: Collection[Tier]) -> Iterator[dict[str, object]]:
    for subject in sorted({subject for side in sides.values() for subject in side.figures}):
        known = {name: side.figures[subject] for name, side in sides.items() if subject in side.figures}
        kept = {
            name: {metric: value for metric, value in figures.items() if METRICS[metric].tier not in left_out}
            for name, figures in known.items()
        }
        yield {**asdict(subject), "figures": kept}


def entry_of(series: TimedSeries, side: ReportedSide | None) -> dict[str, object]:
    subject = series.subject
    way = (subject.size, f"threads={subject.threads}" if subject.threads else "")
    return {
        "group": series.group,
        "name": series.name,
        "fullname": series.name,
        "param": ", ".join(filter(None, way)) or None,
        "params": {**asdict(subject), "metric": series.metric, "side": series.side},
        "extra_info": {} if side is None else exact_of(side.figures, subject),
        "options": {},
        "stats": stats_of(series.seconds),
    }


def exact_of(figures: Figures, subject: Subject) -> dict[str, float]:
    """Return the exact figures of a method, and of the recipe, the model and the wheel that it is in."""
    found = {metric: value for each in reversed(subject.parts()) for metric, value in figures.get(each, {}).items()}
    return {metric: value for metric, value in found.items() if METRICS[metric].tier == "exact"}


def stats_of(seconds: Sequence[float]) -> dict[str, object]:
    """Return what pytest-benchmark computes of one round at least, by its names."""
    data = sorted(seconds)
    mean, total = statistics.mean(data), sum(seconds)
    deviation = statistics.stdev(data) if len(data) > 1 else 0.0
    first, third = quartile(data), -quartile([-each for each in reversed(data)])
    spread = third - first
    low, high = first - 1.5 * spread, third + 1.5 * spread
    far = sum(abs(each - mean) > deviation for each in data)
    outside = sum(not low <= each <= high for each in data)
    return {
        "min": data[0],
        "max": data[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(data),
        "median": statistics.median(data),
        "iqr": spread,
        "q1": first,
        "q3": third,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": min(each for each in data if each >= low),
        "hd15iqr": max(each for each in data if each <= high),
        "ops": len(data) / total if total else 0.0,
        "total": total,
        "data": list(seconds),
        "iterations": 1,
    }


def quartile(data: Sequence[float]) -> float:
    # Hazen's: half a place further in than the quarter of the way
    place = max((len(data) - 2) / 4, 0.0)
    at = int(place)
    part = place - at
    return data[at] if part == 0 else (1 - part) * data[at] + part * data[at + 1]


def machine_info() -> dict[str, object]:
    """Return what pytest-benchmark tells of a machine, but for its name."""
    return {
        "processor": platform.processor(),
        "machine": platform.machine(),
        "python_compiler": platform.python_compiler(),
        "python_implementation": platform.python_implementation(),
        "python_implementation_version": platform.python_version(),
        "python_version": platform.python_version(),
        "python_build": list(platform.python_build()),
        "release": platform.release(),
        "system": platform.system(),
        "cpu": processor_info(),
    }


def processor_info() -> dict[str, object]:
    names = {"vendor_id": "vendor_id_raw", "model name": "brand_raw"}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system
        lines = []
    rows = [[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]
    found = {names[name]: value for name, value in reversed(rows) if name in names}
    return {**found, "arch_string_raw": platform.machine(), "count": os.cpu_count()}


def commit_info(project: Path) -> dict[str, object]:
    commit, time, author_time = (git(project, "show", "-s", "--format=%H %cI %aI") or "unversioned  ").split(" ")
    return {
        "id": commit,
        "time": time or None,
        "author_time": author_time or None,
        "dirty": bool(git(project, "status", "--porcelain", "--untracked-files=no")),
        "project": project.resolve().name,
        "branch": git(project, "symbolic-ref", "--quiet", "--short", "HEAD") or "(unknown)",
    }


def git(folder: Path, *arguments: str) -> str:
    """Return what git says of a folder's repository; empty where there is none, or no git."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
