"""The text and the JSON of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hatch_lower.cli.matrix.rows import TriedEngine
from hatch_lower.cli.output import count
from hatch_lower.hatch.terminal import table_lines

HEADING = ("engine", "version", "model", "recipe", "method", "result", "largest difference", "reason")
SHORT = ("refused", "not compared", "not installable")  # results with their reason in the table


def matrix_json(wheel: str, tried: Sequence[TriedEngine]) -> dict[str, Any]:
    return {
        "wheel": wheel,
        "engines": [
            {"name": each.engine.name, "requirement": each.engine.requirement, "source": each.engine.source}
            for each in tried
        ],
        "rows": [
            {
                **{name: getattr(row, name) for name in ("engine", "model", "recipe", "method", "result", "detail")},
                "version": str(row.version),
                "largest_error": row.largest_error,
                "failure": each.is_failure(row),
                "installed": dict(row.installed),
            }
            for each in tried
            for row in each.rows
        ],
    }


def matrix_lines(tried: Sequence[TriedEngine]) -> Iterator[str]:
    table = [HEADING]
    for each in tried:
        for row in each.rows:
            largest = "" if row.largest_error is None else f"{float(row.largest_error):.3g}"
            reason = row.detail.partition("\n")[0] if row.result in SHORT else ""
            place = (row.engine, str(row.version), row.model, row.recipe, row.method)
            table.append((*place, row.result, largest, reason))
    yield from table_lines(table)
    for each in tried:
        for row in each.rows:
            if each.is_failure(row):
                name = ", ".join(
                    part for part in (f"{row.engine} {row.version}", row.model, row.recipe, row.method) if part
                )
                yield ""
                yield from f"{name}: {row.detail}".split("\n")
    yield ""
    for each in tried:
        yield summary(each)


def summary(tried: TriedEngine) -> str:
    verdicts = list(tried.versions().values())
    total = count(len(verdicts), "version")
    numbers = [(verdicts.count(True), "passed"), (verdicts.count(False), "failed"), (verdicts.count(None), "not tried")]
    parts = ", ".join(f"{number} {word}" for number, word in numbers if number)
    return f"{tried.engine.requirement} ({tried.engine.source}): {total}, {parts}"
