"""Messages between the build's parent and a child process, in files of the model's folder."""

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
from hatch_lower.pipeline.localize.finding import Localization

REQUEST = "request.json"
ANSWER = "answer.json"
UNANSWERED = 75  # the exit status of a child that could not write its answer

# `lower`: a model. `recipe`: some of its recipes, for a build that joins them. `capture`: the export alone, which the
# audit compares. `localize`: the operation that is wrong
Mode = Literal["lower", "recipe", "capture", "localize"]


class Request(Frozen):
    settings: Settings
    model: str
    folder: Path  # for the model's files and the answer
    mode: Mode
    search_path: tuple[Path, ...] = ()  # directories for the front of `sys.path`: the project as if it were installed
    import_roots: tuple[Path, ...] = ()  # the search paths with the user's own code
    later_hooks: tuple[str, ...] = ()  # build hooks that run after this one
    events: int = -1  # the descriptor of the pipe for events, once the pipe exists
    # components of the `ManifestKey` of the result; empty if the result is not kept
    manifest: Mapping[str, object] = field(default_factory=dict)
    # mode `recipe`: by recipe, the components of the key for the recorded inputs
    units: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    # `sys.path` of the child process, without folders of this build: the roots of recorded inputs
    recorded_path: tuple[Path, ...] = ()
    work: Path | None = None
    log: Path | None = None  # of the preloaded library; `None` without the library
    # additions to the environment, which preload the library
    variables: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()  # variables of the user that are missing, or have other values, here
    # recorded when the project's metadata is read
    project: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[LocalSource, ...] = ()  # files with weights
    localization: Localization | None = None  # the search for a wrong operation
    outbox: Path | None = None  # lists the entries that are kept for another build; `None` without another build


class Answer(Frozen):
    report: ModelReport
    unknown: tuple[str, ...] = ()  # reasons why the next build exports again in any case
    recipes: Mapping[str, str] = field(default_factory=dict)  # mode `recipe`: by recipe, the key of the kept record


def write_answer(folder: Path, answer: Answer | LowerError) -> None:
    """Write a child's answer or error. The parent sees the whole file or no file."""
    value = {"error": answer.to_json()} if isinstance(answer, LowerError) else encode(answer)
    temporary = folder / f"{ANSWER}.part"
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(folder / ANSWER)


def read_answer(folder: Path) -> Answer | LowerError | None:
    """Read a child's answer; `None` if the child wrote no file."""
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
