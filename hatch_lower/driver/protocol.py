"""The request to a child process of a build, its answer, and the error that explains a missing answer.

Request and answer are files in the model's folder.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

from hatch_lower.config.settings import Settings
from hatch_lower.errors import NO_MEMORY, LowerError, ProcessError, error_from_json
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.record import ModelReport
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.localize.finding import Localization
from hatch_lower.pipeline.precision.finding import PrecisionSearch

REQUEST = "request.json"
ANSWER = "answer.json"
UNANSWERED = 75  # the exit status of a child that could not write its answer

# `lower`: a model. `recipe`: some of its recipes, for a build that joins them. `capture`: the export alone, which the
# audit compares. `localize`: the operation that is wrong. `precision`: the layers that must stay in float32
Mode = Literal["lower", "recipe", "capture", "localize", "precision"]


class ChildRequest(Frozen):
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
    checkpoint: Path | None = None  # on this machine, for a checkpoint of the hub
    localization: Localization | None = None  # the search for a wrong operation
    search: PrecisionSearch | None = None  # mode `precision`
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


SHOWN_LINES = 20
SEARCHED_LINES = 60
OWN_CALLS = (f'File "{Path(__file__).parents[1]}{os.sep}', 'File "<frozen ')
SHOWN_CHARACTERS = 500


class KilledError(ProcessError):
    """Another process or the system (out of memory, for example) ended the process."""


class ChildExit(Frozen):
    folder: Path
    place: str  # its model, and the stage in which the child was last seen
    status: int  # a signal as a negative number
    timed_out: bool
    output: tuple[str, ...]
    metric: str = ""  # advice on the metric at work; empty in other stages


def answer_of(exited: ChildExit, timeout: float) -> Answer | LowerError:
    tail = output_tail(exited.output)

    def failure(what: str, hint: str) -> ProcessError:
        return ProcessError(what, where=exited.place, found=tail, hint=hint)

    if exited.timed_out:
        return failure(
            f"the build process took longer than its time limit of {timeout:g} s",
            "raise `timeout` in the hook's table (seconds), or look at why this stage takes so long",
        )
    answer = read_answer(exited.folder)
    if answer is not None:
        return answer
    status = exited.status
    if status == UNANSWERED:
        return failure(
            "the build process could not write its answer",
            "make room for the folder of temporary files, which `TMPDIR` names",
        )
    memory = out_of_memory_error(exited.place, tail)
    output = "\n".join(exited.output[-SEARCHED_LINES:])
    if status == -signal.SIGKILL:
        what = "the build process was killed (SIGKILL), most likely because it ran out of memory"
        return KilledError(what, where=exited.place, found=tail, hint=memory.hint)
    if NO_MEMORY.search(output):
        return memory
    if status < 0:
        return failure(
            f"the build process crashed ({signal_name(-status)})",
            exited.metric
            or "the last stage says which backend or operation was at work; lower the model without it to be sure",
        )
    return failure(
        f"the build process ended with exit status {status} and no result",
        exited.metric
        or "something in the model's code or in a backend ended the process; the stage says which was at work",
    )


def output_tail(output: Sequence[str]) -> str:
    """Return the end of a child's output, or the call in which Python crashed."""
    # of a traceback the exception alone is useful; the stage says more than our own calls
    fatal = next((i for i, line in enumerate(output) if line.startswith("Fatal Python error")), None)
    traced = next((i for i, line in enumerate(output) if line.startswith("Traceback (most recent call last)")), None)
    if fatal is not None:
        shown = [line for line in output[fatal:] if not line.lstrip().startswith(OWN_CALLS)][:SHOWN_LINES]
    elif traced is not None:
        shown = [line for line in output[traced + 1 :] if not line.startswith(" ")][-SHOWN_LINES:]
    else:
        shown = list(output[-SHOWN_LINES:])
    text = "\n".join(cut(line) for line in shown if not line.startswith("Extension modules:")).strip()
    return text.removesuffix("Stack (most recent call first):").strip()


def cut(line: str) -> str:
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]} …"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def without_errors(answers: Sequence[Answer | LowerError]) -> list[Answer]:
    """Return the answers, or raise the first error together with the other errors."""
    errors = [answer for answer in answers if isinstance(answer, LowerError)]
    if not errors:
        return [answer for answer in answers if isinstance(answer, Answer)]
    first, *others = errors
    if not others:
        raise first
    listed = "\n".join(f"{other.what} ({other.where})" for other in others)
    found = f"{first.found}\nother models failed too:\n{listed}".strip()
    raise type(first)(first.what, where=first.where, found=found, hint=first.hint)
