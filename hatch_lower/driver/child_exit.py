"""The end of a build's child process: its answer, or an error that explains the missing answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from hatch_lower.driver.protocol import UNANSWERED, Answer, out_of_memory_error, read_answer
from hatch_lower.errors import NO_MEMORY, LowerError, ProcessError
from hatch_lower.frozen import Frozen

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
            "the last stage says which backend or operation was at work; lower the model without it to be sure",
        )
    return failure(
        f"the build process ended with exit status {status} and no result",
        "something in the model's code or in a backend ended the process; the stage says which was at work",
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
