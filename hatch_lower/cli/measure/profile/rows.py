"""A profile: the time of a method's calls by source line, module and operation, in one or several recipes, and its
formats for viewers: Chrome's trace events and speedscope's format.

A trace has a single call with mean times: the instructions of the plan in sequence, without time between instructions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hatch_lower import __version__
from hatch_lower.format.debug_map import Origin
from hatch_lower.frozen import Frozen

PROFILE_SCHEMA = 1
PLAN = "plan"  # the engine of instructions that the plan runs itself
REST = "other work of the engine"  # time of a delegate outside of measured instructions
WHOLE = "whole delegate"  # a delegate without inner measurements


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """The time of an operation of a source line in an engine; `source` is empty if unknown."""

    source: str
    module: str
    op: str
    engine: str
    seconds: float  # of one call
    calls: int  # number of runs in all measured calls
    shared: bool = False  # part of the time is a share of the time of several operations


@dataclass(frozen=True, slots=True)
class ProfileSpan:
    """The time of an instruction of a plan or delegate in a call; spans are in sequence."""

    op: str
    engine: str
    seconds: float
    origins: tuple[Origin, ...] = ()
    parts: tuple[ProfileSpan, ...] = ()


class RecipeProfile(Frozen):
    calls: int  # that were measured
    seconds: float  # of a call with timers; the sum of all rows and `unattributed`
    overhead: float  # relative difference of calls with and without timers
    rows: tuple[ProfileRow, ...]
    spans: tuple[ProfileSpan, ...]
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
        "rows": [profile_row_json(row) for row in recipe.rows],
        "unattributed": recipe.unattributed,
        "attributed": recipe.attributed,
        "overhead": recipe.overhead,
        "notes": list(recipe.notes),
    }


def profile_row_json(row: ProfileRow) -> dict[str, object]:
    written = asdict(row)
    return written if row.shared else {name: value for name, value in written.items() if name != "shared"}


def merged(rows: Sequence[ProfileRow]) -> tuple[ProfileRow, ...]:
    """Return rows of which no two are of the same operation of the same line, the longest first."""
    found: dict[tuple[str, str, str, str], list[ProfileRow]] = {}
    for row in rows:
        found.setdefault((row.source, row.module, row.op, row.engine), []).append(row)
    added = [
        ProfileRow(
            *key, sum(row.seconds for row in same), sum(row.calls for row in same), any(row.shared for row in same)
        )
        for key, same in found.items()
    ]
    return tuple(sorted(added, key=lambda row: -row.seconds))


Format = Literal["json", "speedscope", "trace"]
LINE = re.compile(r"\d{1,9}", re.ASCII)
SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


def format_of(path: Path) -> Format:
    """Return the format of a file name: `x.trace.json`, `x.speedscope.json`, or else a profile as JSON."""
    suffixes = path.suffixes[-2:]
    return "speedscope" if ".speedscope" in suffixes else "trace" if ".trace" in suffixes else "json"


def export_text(profile: Profile, path: Path) -> str:
    form = format_of(path)
    written = {"json": Profile.to_json, "speedscope": speedscope_json, "trace": trace_json}[form](profile)
    return json.dumps(written, indent=1, ensure_ascii=False) + "\n"


def trace_json(profile: Profile) -> dict[str, object]:
    """Return trace events: a process for each recipe, an event for each instruction and its parts."""
    events: list[dict[str, object]] = []
    for number, (name, recipe) in enumerate(profile.recipes.items(), 1):
        title = {"name": f"{profile.model}.{profile.method}, {name}"}
        events.append({"name": "process_name", "ph": "M", "pid": number, "tid": 1, "args": title})
        begin = 0.0
        for span in recipe.spans:
            events += trace_events(span, number, begin)
            begin += span.seconds
    return {"displayTimeUnit": "ms", "traceEvents": events}


def trace_events(span: ProfileSpan, process: int, begin: float) -> Iterator[dict[str, object]]:
    yield {
        "name": span_title(span),
        "cat": span.engine,
        "ph": "X",
        "ts": begin * 1e6,
        "dur": span.seconds * 1e6,
        "pid": process,
        "tid": 1,
        "args": {
            "instruction": span.op,
            "sources": list(dict.fromkeys(origin.source for origin in span.origins if origin.source)),
            "modules": list(dict.fromkeys(origin.module for origin in span.origins if origin.module)),
            "operations": list(dict.fromkeys(origin.op for origin in span.origins)),
        },
    }
    for part in span.parts:
        yield from trace_events(part, process, begin)
        begin += part.seconds


def span_title(span: ProfileSpan) -> str:
    if span.parts or not span.origins:
        return span.op
    return f"{span.op}: {span.origins[0].source}" if span.origins[0].source else span.op


def speedscope_json(profile: Profile) -> dict[str, object]:
    """Return a profile for each recipe, in which each row is a sample: modules from outer to inner, then the line."""
    frames: dict[tuple[str, str, int], int] = {}
    return {
        "$schema": SPEEDSCOPE,
        "exporter": f"hatch-lower {__version__}",
        "name": f"{profile.model}.{profile.method}",
        "profiles": [sampled(name, recipe, frames) for name, recipe in profile.recipes.items()],
        "shared": {"frames": [frame_json(*frame) for frame in frames]},
    }


def sampled(name: str, recipe: RecipeProfile, frames: dict[tuple[str, str, int], int]) -> dict[str, object]:
    samples: list[list[int]] = []
    weights: list[float] = []
    for row in recipe.rows:
        file, _, line = row.source.rpartition(":")
        parts = row.module.split(".") if row.module else []
        stack = [(".".join(parts[: depth + 1]), "", 0) for depth in range(len(parts))]
        stack.append((f"{row.op} ({row.engine})", file, int(line) if LINE.fullmatch(line) else 0))
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(row.seconds)
    samples.append([frames.setdefault(("not attributed", "", 0), len(frames))])
    weights.append(max(recipe.unattributed, 0.0))
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def frame_json(name: str, file: str, line: int) -> dict[str, object]:
    return {"name": name, **({"file": file, "line": line} if file else {})}
