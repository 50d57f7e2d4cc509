"""The document of `--json`, in pytest-benchmark's format, for its command and other readers of the format.

`benchmarks` has an entry for each series of timed rounds; all figures of both sides and the verdicts are under the key
`hatch_lower`. Without timed rounds the document is independent of machine, time, paths and cache.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.figures import METRICS, Figures, FigureSubject, Tier
from hatch_lower.cli.measure.limits import VerdictRow
from hatch_lower.cli.measure.repository import find_repository
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.cli.measure.timed import Measured
from hatch_lower.errors import LowerError

SCHEMA = 1
FORMAT = "5.3.1"  # the version of pytest-benchmark whose format this is
NO_TIME = "1970-01-01T00:00:00+00:00"


def report_text(
    sides: Mapping[str, BenchSide],
    figures: Mapping[str, Figures],
    measured: Measured,
    rows: Sequence[VerdictRow],
    project: Path,
) -> str:
    """Return the document; `project` is a folder of the git repository, if there is a repository."""
    series = sorted(
        (group_of(subject, metric), side, subject, metric, rounds)
        for (subject, metric), found in measured.items()
        if METRICS[metric].unit == "s"
        for side, rounds in found.rounds.items()
        if rounds
    )
    left_out: tuple[Tier, ...] = () if series else ("build",)
    document = {
        "machine_info": machine_info() if series else {},
        "commit_info": commit_info(project) if series else {},
        "benchmarks": [benchmark_entry(*each, figures) for each in series],
        "datetime": datetime.now(UTC).isoformat() if series else NO_TIME,
        "version": FORMAT,
        "hatch_lower": {
            "schema": SCHEMA,
            "sides": {
                name: {"distributions": list(side.distributions), **({"title": side.title} if series else {})}
                for name, side in sides.items()
            },
            "figures": list(figure_rows(figures, left_out)),
            "verdicts": [
                verdict_json(row)
                for row in sorted(rows, key=lambda row: (row.subject, row.metric))
                if METRICS[row.metric].tier not in left_out
            ],
        },
    }
    return json.dumps(plain_json(document), sort_keys=True, indent=2, allow_nan=False) + "\n"


def plain_json(value: Any) -> Any:
    """Return a value for JSON; infinity becomes text."""
    if isinstance(value, Mapping):
        return {key: plain_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def figure_rows(sides: Mapping[str, Figures], left_out: Collection[Tier]) -> Iterator[dict[str, object]]:
    for subject in sorted({subject for figures in sides.values() for subject in figures}):
        kept = {
            name: {metric: value for metric, value in figures[subject].items() if METRICS[metric].tier not in left_out}
            for name, figures in sides.items()
            if subject in figures
        }
        yield {**asdict(subject), "figures": kept}


def verdict_json(row: VerdictRow) -> dict[str, object]:
    limits = [
        {"limit": each.limit.name, "setting": each.limit.setting, "bound": each.bound, "broken": each.is_certain}
        for each in row.breaches
    ]
    ratios = {"ratio": row.ratio and asdict(row.ratio), "eager_ratio": row.eager_ratio and asdict(row.eager_ratio)}
    return {**asdict(row.subject), "metric": row.metric, "outcome": row.outcome, **ratios, "limits": limits}


def group_of(subject: FigureSubject, metric: str) -> str:
    return str(subject) if metric == "call-seconds" else f"{subject} {METRICS[metric].words}"


def benchmark_entry(
    group: str, side: str, subject: FigureSubject, metric: str, rounds: Sequence[float], figures: Mapping[str, Figures]
) -> dict[str, object]:
    name = group if side == "A" else f"{group} ({side})"
    return {
        "group": group,
        "name": name,
        "fullname": name,
        "param": subject.way or None,
        "params": {**asdict(subject), "metric": metric, "side": side},
        "extra_info": exact_of(figures.get(side, {}), subject),
        "options": {},
        "stats": stats_of(rounds),
    }


def exact_of(figures: Figures, subject: FigureSubject) -> dict[str, float]:
    """Return the exact figures of a method, its recipe, its model and the wheel."""
    found = {metric: value for each in reversed(subject.parts()) for metric, value in figures.get(each, {}).items()}
    return {metric: value for metric, value in found.items() if METRICS[metric].tier == "exact"}


def stats_of(seconds: Sequence[float]) -> dict[str, object]:
    from pytest_benchmark.stats import Stats

    make: Callable[[], Any] = Stats  # untyped
    stats = make()
    stats.data = list(seconds)
    return {**stats.as_dict(), "data": stats.data, "iterations": 1}


def machine_info() -> dict[str, object]:
    """Return pytest-benchmark's facts about a machine, without the machine's name."""
    told = ("processor", "machine", "python_compiler", "python_implementation", "python_version", "release", "system")
    return {
        **{name: getattr(platform, name)() for name in told},
        "python_implementation_version": platform.python_version(),
        "python_build": list(platform.python_build()),
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
    says: Callable[..., str] = lambda *_: ""  # noqa: E731  # without a repository or git
    with suppress(LowerError):
        says = find_repository(project, os.environ).says
    commit, time, author_time = (says("show", "-s", "--format=%H %cI %aI") or "unversioned  ").split(" ")
    return {
        "id": commit,
        "time": time or None,
        "author_time": author_time or None,
        "dirty": bool(says("status", "--porcelain", "--untracked-files=no")),
        "project": project.resolve().name,
        "branch": says("symbolic-ref", "--quiet", "--short", "HEAD") or "(unknown)",
    }
