"""What the build's parent and a child process tell each other, in files of the model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from hatch_lower.config.settings import Settings
from hatch_lower.errors import LowerError, ProcessError, error_from_json
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.record import ModelReport
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.localise.finding import Localisation

REQUEST = "request.json"
ANSWER = "answer.json"
UNANSWERED = 75  # the exit status of a child that could not write its answer

# `lower`: a model. `recipe`: some of its recipes, for a build that joins them. `capture`: the export alone, which the
# audit compares. `localise`: the operation that is wrong
Mode = Literal["lower", "recipe", "capture", "localise"]


class Request(Frozen):
    settings: Settings
    model: str
    folder: Path  # where it writes the model's files, and the answer
    mode: Mode
    search_path: tuple[Path, ...] = ()  # directories for the front of `sys.path`: the project as if it were installed
    import_roots: tuple[Path, ...] = ()  # those of them that hold the user's own code
    later_hooks: tuple[str, ...] = ()  # build hooks that run after this one
    events: int = -1  # the descriptor of the pipe for them, once there is one
    # components of the `ManifestKey` under which the result is remembered; empty if it is not
    manifest: Mapping[str, object] = field(default_factory=dict)
    # mode `recipe`: recipe to the components of the key under which it is remembered that its record holds
    units: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    # `sys.path` of the child process by which its inputs are located, without folders of this build
    recorded_path: tuple[Path, ...] = ()
    work: Path | None = None
    log: Path | None = None  # what the preloaded library writes; `None` if there is no such library
    # of the environment, which put that library into the process
    variables: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()  # variables that are set for whoever builds, and are not, or others, here
    # what is recorded of the project's metadata where it is read
    project: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[LocalSource, ...] = ()  # files in which weights are looked for
    localisation: Localisation | None = None  # what to look at where something wrong is looked for
    outbox: Path | None = None  # where it is noted what is kept for others; `None` if nobody asks


class Answer(Frozen):
    report: ModelReport
    unknown: tuple[str, ...] = ()  # why the next build exports again whatever has changed
    recipes: Mapping[str, str] = field(default_factory=dict)  # mode `recipe`: the keys of the records that there are


def write_answer(folder: Path, answer: Answer | LowerError) -> None:
    """Write a child's answer, or the error that it ended with; the parent sees all of it or nothing."""
    value = {"error": answer.to_json()} if isinstance(answer, LowerError) else encode(answer)
    temporary = folder / f"{ANSWER}.part"
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(folder / ANSWER)


def read_answer(folder: Path) -> Answer | LowerError | None:
    """Return what a child wrote; `None` if it wrote nothing."""
    path = folder / ANSWER
    if not path.exists():
        return None
    value = json.loads(path.read_text(encoding="utf-8"))
    if "error" in value:
        return error_from_json(value["error"])
    answer: Answer = decode(Answer, value, "the answer")
    return answer


def out_of_memory_error(where: str, found: str) -> ProcessError:
    return ProcessError(
        "the build process ran out of memory",
        where=where,
        found=found,
        hint="set `jobs = 1`, so that models are lowered one after the other; use smaller example inputs; or build on a"
        " machine with more memory",
    )
