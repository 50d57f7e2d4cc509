"""The child processes of a build: start them, show what they report, end them, and make sense of how they ended."""

from __future__ import annotations

import io
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hatch_lower.errors import LowerError, ProcessError, error_from_json
from hatch_lower.events import Event, Reporter, event_from_json
from hatch_lower.records import ModelReport, Request, decode, write_record
from hatch_lower.worker import ANSWER, UNANSWERED, out_of_memory_error

__all__ = ["Answer", "run_children"]

GRACE_SECONDS = 3.0
"""How long a child may take to remove its temporary files when it is told to end."""
TICK_SECONDS = 0.2
TAIL_LINES = 200
SHOWN_LINES = 20
SEARCHED_LINES = 60
OWN_CALLS = (f'File "{Path(__file__).parent}{os.sep}', 'File "<frozen ')
SHOWN_CHARACTERS = 500
LINE_BYTES = 1 << 16
"""The longest line that is kept whole: what is printed without an end must not fill the parent's memory."""
REST_BYTES = 1 << 20
"""What is read at most of a pipe once its child has ended: what it left behind may print for ever."""
NO_MEMORY = ("MemoryError", "std::bad_alloc", "DefaultCPUAllocator: ", "Cannot allocate memory", "out of memory")
"""What a process that ran out of memory says when it ends."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child process answers.

    Args:
        report: of its model.
        unknown: reasons why what the export read is not known completely, so that the next build exports again.
    """

    report: ModelReport
    unknown: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Child:
    """A running child process."""

    request: Request
    process: subprocess.Popen[bytes]
    events: io.FileIO
    began: float
    open_stages: list[Event] = field(default_factory=list)
    output: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    rests: dict[int, bytearray] = field(default_factory=dict)
    timed_out: bool = False

    def descriptors(self) -> tuple[int, int]:
        """Return the reading ends of its pipes: events, and what it prints."""
        assert self.process.stdout is not None
        return self.events.fileno(), self.process.stdout.fileno()

    def place(self) -> str:
        """Return the model, and the stage in which it was last seen."""
        where = f"model `{self.request.model}`"
        if not self.open_stages:
            return where
        event = self.open_stages[-1]
        return f"{where}, stage `{event.stage}` of `{event.subject()}`"


def run_children(
    requests: Sequence[Request],
    *,
    jobs: int,
    timeout: float,
    environment: Mapping[str, str],
    reporter: Reporter,
) -> list[Answer]:
    """Run a child process for each request, up to `jobs` at once, and return their answers in order.

    After a failure no other child is started, but those that run are waited for, as what they finish is kept in the
    cache. No child outlives this call, whatever ends it.

    Args:
        requests: what each child does; its `events` are set here.
        jobs: how many run at once.
        timeout: seconds that one child may take.
        environment: of the children.
        reporter: is told of their events, and of each line that they print, as a note of the stage `output`.

    Raises:
        LowerError: the first error in the order of the requests; it lists the others.
    """
    waiting = deque(requests)
    running: list[Child] = []
    answers: dict[str, Answer | LowerError] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    child = start(waiting.popleft(), environment)
                    running.append(child)
                    for descriptor in child.descriptors():
                        selector.register(descriptor, selectors.EVENT_READ, child)
                closing = any(child.events.fileno() not in selector.get_map() for child in running)
                for key, _ in selector.select(TICK_SECONDS / 20 if closing else TICK_SECONDS):
                    if not read_some(key.data, key.fd, reporter):
                        selector.unregister(key.fd)
                for child in list(running):
                    if not child.timed_out and time.monotonic() - child.began > timeout:
                        child.timed_out = True
                        end([child])
                    if has_ended(child):
                        reap(child)
                        answers[child.request.model] = close(child, selector, reporter, timeout)
                        running.remove(child)
                        if isinstance(answers[child.request.model], LowerError):
                            waiting.clear()
        finally:
            end(running)
            for child in running:
                close_pipes(child)
    return without_errors([answers[each.model] for each in requests if each.model in answers])


def start(request: Request, environment: Mapping[str, str]) -> Child:
    """Start a child in a session of its own, so that it can be ended together with the compilers that it runs."""
    read_end, write_end = os.pipe()
    try:
        request = replace(request, events=write_end)
        path = request.folder / "request.json"
        write_record(path, request)
        process = subprocess.Popen(
            [sys.executable, "-m", "hatch_lower.worker", str(path)],
            cwd=request.folder,
            env={**environment, **request.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(read_end)
        raise ProcessError(
            "the build process could not be started",
            where=f"model `{request.model}`",
            found=f"{type(error).__name__}: {error}",
            hint="end other programs, or raise the limits of memory, disk and processes that this build runs under",
        ) from error
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    child = Child(request, process, io.FileIO(read_end, "rb"), time.monotonic())
    for descriptor in child.descriptors():
        os.set_blocking(descriptor, False)
    return child


def read_some(child: Child, descriptor: int, reporter: Reporter) -> int:
    """Take what has arrived on one of a child's pipes; return how much that was: nothing if no more can come."""
    try:
        data = os.read(descriptor, LINE_BYTES)
    except BlockingIOError:
        return 1
    rest = child.rests.setdefault(descriptor, bytearray())
    *lines, last = data.split(b"\n")
    for line in lines:
        take_line(child, descriptor, bytes(rest) + line, reporter)
        rest.clear()
    rest += last
    if len(rest) > LINE_BYTES or (rest and not data):
        take_line(child, descriptor, bytes(rest), reporter)
        rest.clear()
    return len(data)


def take_line(child: Child, descriptor: int, line: bytes, reporter: Reporter) -> None:
    """Take one line of a child's events, or of what it prints."""
    if descriptor == child.events.fileno():
        take_event(child, line, reporter)
        return
    text = cut(as_on_a_terminal(line.decode("utf-8", "replace")))
    child.output.append(text)
    reporter.report(Event("output", "note", child.request.model, detail=text))


def as_on_a_terminal(line: str) -> str:
    """Return what is last seen of a line that overwrites itself, as a progress bar does."""
    return next((part for part in reversed(line.rstrip().split("\r")) if part.strip()), "").rstrip()


def take_event(child: Child, line: bytes, reporter: Reporter) -> None:
    """Show an event, and remember which stages have begun and not ended."""
    event = read_event(line)
    if event is None:
        return
    if event.state == "start":
        child.open_stages.append(event)
    elif event.state == "end":
        child.open_stages = [each for each in child.open_stages if not each.ends_with(event)]
    reporter.report(event)


def read_event(line: bytes) -> Event | None:
    """Return the event of a line, or `None`: half of one from a child that crashed, or what other code wrote there."""
    try:
        fields = json.loads(line)
        event = event_from_json(fields)
    except (ValueError, TypeError, RecursionError):
        return None
    well_typed = isinstance(event.seconds, float) and all(
        isinstance(value, str) for name, value in fields.items() if name != "seconds"
    )
    return event if well_typed else None


def has_ended(child: Child) -> bool:
    """Return whether a child has exited, without giving its process id back yet: it still names its group."""
    if child.process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return child.process.poll() is not None
    return os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(child: Child) -> None:
    """Kill whatever is left of a child's session, and give its process id back."""
    if child.process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()


def end(children: Sequence[Child]) -> None:
    """End children and all that they started, gently first, and wait for them."""
    alive = [child for child in children if not has_ended(child)]
    for child in alive:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        while time.monotonic() < deadline and not all(has_ended(child) for child in alive):
            time.sleep(TICK_SECONDS / 20)
    finally:
        for child in children:
            reap(child)


def close(child: Child, selector: selectors.BaseSelector, reporter: Reporter, timeout: float) -> Answer | LowerError:
    """Read the rest of a child's pipes, close them, and return its answer."""
    for descriptor in child.descriptors():
        if descriptor in selector.get_map():
            selector.unregister(descriptor)
            left = REST_BYTES
            while left > 0 and readable(descriptor) and (count := read_some(child, descriptor, reporter)):
                left -= count
    close_pipes(child)
    return answer_of(child, timeout)


def close_pipes(child: Child) -> None:
    """Close the parent's ends of a child's pipes."""
    for stream in (child.events, child.process.stdin, child.process.stdout):
        assert stream is not None
        stream.close()


def readable(descriptor: int) -> bool:
    """Return whether a read would not have to wait."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))


def answer_of(child: Child, timeout: float) -> Answer | LowerError:
    """Return a child's answer, or the error that says why there is none."""
    tail = last_words(list(child.output))
    if child.timed_out:
        return ProcessError(
            f"the build process took longer than its time limit of {timeout:g} s",
            where=child.place(),
            found=tail,
            hint="raise `timeout` in the hook's table (seconds), or look at why this stage takes so long",
        )
    path = child.request.folder / ANSWER
    if path.exists():
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "error" in answer:
            return error_from_json(answer["error"])
        return Answer(decode(ModelReport, answer["report"]), tuple(answer["unknown"]))
    status = child.process.returncode
    if status == UNANSWERED:
        return ProcessError(
            "the build process could not write its answer",
            where=child.place(),
            found=tail,
            hint="make room for the folder of temporary files, which `TMPDIR` names",
        )
    memory = out_of_memory_error(child.request.model, tail)
    said = "\n".join(list(child.output)[-SEARCHED_LINES:])
    if status == -signal.SIGKILL:
        what = "the build process was killed (SIGKILL), most likely because it ran out of memory"
        return ProcessError(what, where=child.place(), found=tail, hint=memory.hint)
    if any(words in said for words in NO_MEMORY):
        return ProcessError(memory.what, where=child.place(), found=tail, hint=memory.hint)
    if status < 0:
        return ProcessError(
            f"the build process crashed ({signal_name(-status)})",
            where=child.place(),
            found=tail,
            hint="the last stage says which backend or operation was at work; lower the model without it to be sure",
        )
    return ProcessError(
        f"the build process ended with exit status {status} and no result",
        where=child.place(),
        found=tail,
        hint="something in the model's code or in a backend ended the process; the stage says which was at work",
    )


def last_words(output: Sequence[str]) -> str:
    """Return the end of what a child printed, or where Python says in which call it crashed.

    Of a traceback only the exception is of use, and of the calls only those that are not this package's own: the stage
    says more of those.
    """
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
    """Return a line as far as anybody reads it."""
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]} …"


def signal_name(number: int) -> str:
    """Return `SIGSEGV`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def without_errors(answers: Sequence[Answer | LowerError]) -> list[Answer]:
    """Return the answers, or raise the first error with the others listed in it."""
    errors = [each for each in answers if isinstance(each, LowerError)]
    if not errors:
        return [each for each in answers if isinstance(each, Answer)]
    first, *others = errors
    if not others:
        raise first
    listed = "\n".join(f"{each.what} ({each.where})" for each in others)
    found = f"{first.found}\nother models failed too:\n{listed}".strip()
    raise type(first)(first.what, where=first.where, found=found, hint=first.hint)
