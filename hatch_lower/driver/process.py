"""The child processes of a build: start children, show their events, and end children."""

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hatch_lower.driver.child_exit import ChildExit, answer_of, cut, without_errors
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.protocol import REQUEST, Answer, Request
from hatch_lower.errors import LowerError, ProcessError, ProgramError
from hatch_lower.events import Event, Reporter
from hatch_lower.format.codec import decode, write_record

GRACE_SECONDS = 3.0  # the time for a child to remove its temporary files after a signal
TICK_SECONDS = 0.2
LONG_SECONDS = 10.0  # between two lines about a long stage: some frontends show no other progress for minutes
TAIL_LINES = 200
# The longest line that is kept whole: an endless line must not fill the parent's memory
LINE_BYTES = 1 << 16
# the limit of a pipe's rest after the child's end: a process that the child left behind may print for ever
REST_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Child:
    request: Request
    process: subprocess.Popen[bytes]
    events: io.FileIO
    began: float
    open_stages: list[Event] = field(default_factory=list)
    output: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    rests: dict[int, bytearray] = field(default_factory=dict)
    timed_out: bool = False
    heard: float = 0.0
    told: float = 0.0

    def descriptors(self) -> tuple[int, int]:
        assert self.process.stdout is not None
        return self.events.fileno(), self.process.stdout.fileno()

    def place(self) -> str:
        where = f"model `{self.request.model}`"
        if not self.open_stages:
            return where
        event = self.open_stages[-1]
        return f"{where}, stage `{event.stage}` of `{event.subject()}`"

    def exit(self) -> ChildExit:
        status = self.process.returncode
        return ChildExit(self.request.folder, self.place(), status, self.timed_out, tuple(self.output))


def run_children(
    context: BuildContext, requests: Sequence[Request], poll: Callable[[], None] = lambda: None
) -> list[Answer]:
    """Run a child process for each request, as many at once as the settings allow; return the answers in order."""
    # an exception of `poll` ends the children
    jobs, timeout, reporter = context.settings.jobs, context.settings.timeout, context.reporter
    waiting = deque(requests)
    running: list[Child] = []
    answers: dict[str, Answer | LowerError] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                poll()
                while waiting and len(running) < jobs:
                    child = start(waiting.popleft(), context.environment)
                    running.append(child)
                    for descriptor in child.descriptors():
                        selector.register(descriptor, selectors.EVENT_READ, child)
                closing = any(child.events.fileno() not in selector.get_map() for child in running)
                for key, _ in selector.select(TICK_SECONDS / 20 if closing else TICK_SECONDS):
                    if not read_some(key.data, key.fd, reporter):
                        selector.unregister(key.fd)
                for child in list(running):
                    tell_of_long_stage(child, reporter)
                    if not child.timed_out and time.monotonic() - child.began > timeout:
                        child.timed_out = True
                        end([child])
                    if is_over(child.process):
                        reap(child)
                        answers[child.request.model] = close(child, selector, reporter, timeout)
                        running.remove(child)
                        if isinstance(answers[child.request.model], LowerError):
                            waiting.clear()  # the running children go on: their results are kept in the cache
        finally:
            end(running)
            for child in running:
                close_pipes(child)
    return without_errors([answers[request.model] for request in requests if request.model in answers])


def start(request: Request, environment: Mapping[str, str]) -> Child:
    read_end, write_end = os.pipe()
    events = io.FileIO(read_end, "rb")
    try:
        request = replace(request, events=write_end)
        path = request.folder / REQUEST
        write_record(path, request)
        process = subprocess.Popen(
            [sys.executable, "-m", "hatch_lower.driver.worker", str(path)],
            cwd=request.folder,
            env={**environment, **request.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except BaseException as error:
        events.close()
        if not isinstance(error, OSError):
            raise
        raise ProcessError(
            "the build process could not be started",
            where=f"model `{request.model}`",
            found=f"{type(error).__name__}: {error}",
            hint="end other programs, or raise the limits of memory, disk and processes that this build runs under",
        ) from error
    finally:
        os.close(write_end)
    child = Child(request, process, events, time.monotonic())
    for descriptor in child.descriptors():
        os.set_blocking(descriptor, False)
    return child


def read_some(child: Child, descriptor: int, reporter: Reporter) -> int:
    """Read the available bytes of a child's pipe; return their number, or 0 at the end of the pipe."""
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
    if descriptor == child.events.fileno():
        take_event(child, line, reporter)
        return
    text = cut(as_on_a_terminal(line.decode("utf-8", "replace")))
    child.output.append(text)
    reporter.report(Event("output", "note", child.request.model, detail=text))


def as_on_a_terminal(line: str) -> str:
    # a progress bar overwrites its line: the last visible text counts
    return next((part for part in reversed(line.rstrip().split("\r")) if part.strip()), "").rstrip()


def take_event(child: Child, line: bytes, reporter: Reporter) -> None:
    if (event := read_event(line)) is None:
        return
    child.heard = time.monotonic()
    if event.state == "start":
        child.open_stages.append(event)
    elif event.state == "end":
        child.open_stages = [stage for stage in child.open_stages if not stage.ends_with(event)]
    reporter.report(event)


def tell_of_long_stage(child: Child, reporter: Reporter) -> None:
    now = time.monotonic()
    if child.open_stages and now - max(child.heard, child.told) >= LONG_SECONDS:
        child.told = now
        reporter.report(replace(child.open_stages[-1], state="going", seconds=now - child.heard))


def read_event(line: bytes) -> Event | None:
    # a crashed child leaves half a line, and other code may write to the pipe
    try:
        event: Event = decode(Event, json.loads(line), "an event")
    except (ValueError, RecursionError, ProgramError):
        return None
    return event


def is_over(process: subprocess.Popen[bytes]) -> bool:
    # the process id is not released yet, because the id still names the group
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reap(child: Child) -> None:
    """Kill all remaining processes of a child's session, and release the process id."""
    if child.process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()


def end(children: Sequence[Child]) -> None:
    """End children and their processes, gently first, and wait for their ends."""
    alive = [child for child in children if not is_over(child.process)]
    for child in alive:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        while time.monotonic() < deadline and not all(is_over(child.process) for child in alive):
            time.sleep(TICK_SECONDS / 20)
    finally:
        for child in children:
            reap(child)


def close(child: Child, selector: selectors.BaseSelector, reporter: Reporter, timeout: float) -> Answer | LowerError:
    for descriptor in child.descriptors():
        if descriptor in selector.get_map():
            selector.unregister(descriptor)
            left = REST_BYTES
            while left > 0 and readable(descriptor) and (count := read_some(child, descriptor, reporter)):
                left -= count
    close_pipes(child)
    return answer_of(child.exit(), timeout)


def close_pipes(child: Child) -> None:
    for stream in (child.events, child.process.stdin, child.process.stdout):
        if stream is not None:
            stream.close()


def readable(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))
