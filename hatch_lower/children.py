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
from typing import Any

from hatch_lower.errors import LowerError, ProcessError, error_from_json
from hatch_lower.events import Event, Reporter, event_from_json
from hatch_lower.records import ModelReport, Request, decode, write_record
from hatch_lower.worker import ANSWER, out_of_memory_error

__all__ = ["Answer", "run_children"]

GRACE_SECONDS = 3.0
"""How long a child may take to remove its temporary files when it is told to end."""
TICK_SECONDS = 0.2
TAIL_LINES = 200
SHOWN_LINES = 20


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
    rests: dict[int, bytes] = field(default_factory=dict)
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
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    child = Child(request, process, io.FileIO(read_end, "rb"), time.monotonic())
    for descriptor in child.descriptors():
        os.set_blocking(descriptor, False)
    return child


def read_some(child: Child, descriptor: int, reporter: Reporter) -> bool:
    """Take what has arrived on one of a child's pipes; return whether more can come."""
    try:
        data = os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return True
    lines = (child.rests.pop(descriptor, b"") + data).split(b"\n")
    if data:
        child.rests[descriptor] = lines.pop()
    for line in lines:
        if descriptor == child.events.fileno():
            take_event(child, line, reporter)
        elif data or line:
            text = line.decode("utf-8", "replace").rstrip()
            child.output.append(text)
            reporter.report(Event("output", "note", child.request.model, detail=text))
    return bool(data)


def take_event(child: Child, line: bytes, reporter: Reporter) -> None:
    """Show an event, and remember which stages have begun and not ended."""
    try:
        event = event_from_json(json.loads(line))
    except (ValueError, TypeError):  # the half of a line, from a child that crashed
        return
    if event.state == "start":
        child.open_stages.append(event)
    elif event.state == "end":
        child.open_stages = [each for each in child.open_stages if not each.ends_with(event)]
    reporter.report(event)


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
            while read_some(child, descriptor, reporter) and readable(descriptor):
                pass
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
    if status == -signal.SIGKILL:
        error = out_of_memory_error(child.request.model, tail)
        what = "the build process was killed (SIGKILL), most likely because it ran out of memory"
        return ProcessError(what, where=child.place(), found=tail, hint=error.hint)
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
        hint="something in the model's code or in a backend ended the process; its last words are above",
    )


def last_words(output: Sequence[str]) -> str:
    """Return the end of what a child printed, or where Python says in which call it crashed."""
    fatal = next((i for i, line in enumerate(output) if line.startswith("Fatal Python error")), None)
    shown = output[-SHOWN_LINES:] if fatal is None else output[fatal : fatal + SHOWN_LINES]
    return "\n".join(line for line in shown if not line.startswith("Extension modules:")).strip()


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
