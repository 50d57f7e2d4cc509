"""A profile in the formats of viewers: Chrome's trace events, which Perfetto opens, and speedscope's format.

A trace has a single call with mean times: the instructions of the plan in sequence, without time between instructions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hatch_lower import __version__
from hatch_lower.cli.measure.profile.rows import Profile, RecipeProfile, Span

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


def trace_events(span: Span, process: int, begin: float) -> Iterator[dict[str, object]]:
    yield {
        "name": title_of(span),
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


def title_of(span: Span) -> str:
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
