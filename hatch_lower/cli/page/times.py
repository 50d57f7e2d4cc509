"""Measured times of recipes for the page: the points of `lowering-times.json`, and the best points (Pareto front)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from hatch_lower.cli.page.operations import Facts
from hatch_lower.errors import ProgramError
from hatch_lower.format.evidence import Evidence, Measurement, read_evidence


def read_times(path: Path, models: Collection[str]) -> list[Facts]:
    """Return the measurements of models of the page, a group for each model, level and number of threads."""
    evidence = read_evidence(path.read_bytes(), path.name)
    groups: dict[tuple[str, str, int], list[Measurement]] = {}
    for each in evidence.measurements:
        if each.model in models:
            groups.setdefault((each.model, each.level, each.threads), []).append(each)
    if not groups:
        raise ProgramError(
            "the measured times are not of a model that is here",
            where=path.name,
            found=", ".join(sorted({each.model for each in evidence.measurements})) or "no measurements",
            hint="name the file beside the project's pyproject.toml",
        )
    return [times_data(evidence, group) for group in groups.values()]


def times_data(evidence: Evidence, group: Sequence[Measurement]) -> Facts:
    first = group[0]
    losses = [(each, loss_of(each)) for each in group]
    choice = evidence.choice(first.model, first.level)
    return {
        "model": first.model,
        "level": first.level,
        "threads": first.threads,
        "aim": "" if choice is None else choice.aim,
        "chosen": "" if choice is None else choice.recipe,
        "rows": [row_data(each) for each in sorted(group, key=lambda each: (each.call_seconds, each.recipe))],
        "fronts": {
            "size": front([(each.recipe, each.call_seconds, float(each.installed_bytes)) for each in group]),
            "accuracy": front([(each.recipe, each.call_seconds, loss) for each, loss in losses if loss is not None]),
        },
    }


def row_data(measured: Measurement) -> Facts:
    accuracy = measured.accuracy
    backends = measured.settings.get("backends")
    listed = backends if isinstance(backends, list) else []
    return {
        "recipe": measured.recipe,
        "engines": [str(each.get("name", "")) for each in listed if isinstance(each, dict)],
        "precision": str(measured.settings.get("precision", "float32")),
        "call": measured.call_seconds,
        "eager": measured.eager_ratio,
        "calls": [
            {
                "method": call.method,
                "sizes": ", ".join(f"{name}={size}" for name, size in call.sizes.items()),
                "median": call.median,
                "low": call.low,
                "high": call.high,
                "eager": call.eager,
            }
            for call in measured.calls
        ],
        "load": measured.load_seconds,
        "memory": measured.memory_bytes,
        "wheel": measured.wheel_bytes,
        "installed": measured.installed_bytes,
        "accuracy": None if accuracy is None else asdict(accuracy),
        "loss": loss_of(measured),
    }


def loss_of(measured: Measurement) -> float | None:
    """Return the error against eager, or the drop of the metric from eager; `None` if neither is known."""
    accuracy = measured.accuracy
    if accuracy is None:
        return None
    if accuracy.kind == "error":
        return accuracy.value
    return None if accuracy.eager is None else max(accuracy.eager - accuracy.value, 0.0)


def front(points: Sequence[tuple[str, float, float]]) -> list[str]:
    """Return the names of points that no other point betters in one number without being worse in the other."""
    return [
        name
        for name, first, second in sorted(points, key=lambda point: (point[1], point[2], point[0]))
        if not any(x <= first and y <= second and (x, y) != (first, second) for _, x, y in points)
    ]
