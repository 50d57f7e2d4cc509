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
from typing import IO

from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.protocol import REQUEST, Answer, ChildExit, ChildRequest, answer_of, cut, without_errors
from hatch_lower.errors import LowerError, ProcessError, ProgramError, by_hand_hint
from hatch_lower.events import Event, Reporter
from hatch_lower.format.codec import decode, write_record

GRACE_SECONDS = 3.0  # the time for a child to remove its temporary files after a signal
METRIC_STAGES = ("metric", "gate")  # in which the function of the setting `metric` runs
TICK_SECONDS = 0.2
SHORT_TICK_SECONDS = 0.01
LONG_SECONDS = 10.0  # between two lines about a long stage: some frontends show no other progress for minutes
TAIL_LINES = 200
# The longest line that is kept whole: an endless line must not fill the parent's memory
LINE_BYTES = 1 << 16
# the limit of a pipe's rest after the child's end: a process that the child left behind may print for ever
REST_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Child:
    request: ChildRequest
    process: subprocess.Popen[bytes]
    events: IO[bytes]
    began: float
    open_stages: list[Event] = field(default_factory=list)
    output: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    rests: dict[IO[bytes], bytes] = field(default_factory=dict)
    timed_out: bool = False
    heard: float = 0.0
    told: float = 0.0

    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdout is not None
        return self.events, self.process.stdout

    def close(self) -> None:
        with self.events, self.process:
            pass

    def exit(self) -> ChildExit:
        place, metric = f"model `{self.request.model}`", ""
        if self.open_stages:
            event = self.open_stages[-1]
            place += f", stage `{event.stage}` of `{event.subject()}`"
            if event.stage in METRIC_STAGES:
                (model,) = (each for each in self.request.settings.models if each.name == self.request.model)
                place += f", `metric = {model.metric}`"
                metric = f"the metric ended the process; {by_hand_hint(model.metric, model.name, event.recipe)}"
        status, output = self.process.returncode, tuple(self.output)
        return ChildExit(self.request.folder, place, status, self.timed_out, output, metric)


def run_children(
    context: BuildContext, requests: Sequence[ChildRequest], poll: Callable[[], None] = lambda: None
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
                    for pipe in child.pipes():
                        os.set_blocking(pipe.fileno(), False)
                        selector.register(pipe, selectors.EVENT_READ, (child, pipe))
                closing = any(child.events not in selector.get_map() for child in running)
                for key, _ in selector.select(SHORT_TICK_SECONDS if closing else TICK_SECONDS):
                    child, pipe = key.data
                    if read_some(child, pipe, reporter) == 0:
                        selector.unregister(pipe)
                for child in list(running):
                    tell_of_long_stage(child, reporter)
                    if not child.timed_out and time.monotonic() - child.began > timeout:
                        child.timed_out = True
                        end([child])
                    if is_over(child.process):
                        reap(child.process)
                        answers[child.request.model] = close(child, selector, reporter, timeout)
                        running.remove(child)
                        if isinstance(answers[child.request.model], LowerError):
                            waiting.clear()  # the running children go on: their results are kept in the cache
        finally:
            end(running)
            for child in running:
                child.close()
    return without_errors([answers[request.model] for request in requests if request.model in answers])


def start(request: ChildRequest, environment: Mapping[str, str]) -> Child:
    read_end, write_end = os.pipe()
    events = io.FileIO(read_end)
    path = request.folder / REQUEST
    request = replace(request, events=write_end)
    try:
        write_record(path, request)
        process = subprocess.Popen(
            [sys.executable, "-m", "hatch_lower.driver.worker", str(path)],
            bufsize=0,
            cwd=request.folder,
            env={**environment, **request.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except OSError as error:
        events.close()
        raise ProcessError(
            "the build process could not be started",
            where=f"model `{request.model}`",
            found=f"{type(error).__name__}: {error}",
            hint="end other programs, or raise the limits of memory, disk and processes that this build runs under",
        ) from error
    finally:
        os.close(write_end)
    return Child(request, process, events, time.monotonic())


def read_some(child: Child, pipe: IO[bytes], reporter: Reporter) -> int | None:
    """Read the available bytes of a child's pipe; return their number: 0 at the end of the pipe, `None` before."""
    data = pipe.read(LINE_BYTES)
    if data is None:
        return None
    *lines, rest = (child.rests.pop(pipe, b"") + data).split(b"\n")
    if data and len(rest) <= LINE_BYTES:
        child.rests[pipe] = rest
    elif rest:
        lines.append(rest)
    take = take_event if pipe is child.events else take_output
    for line in lines:
        take(child, line, reporter)
    return len(data)


def take_output(child: Child, line: bytes, reporter: Reporter) -> None:
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


def ended_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process without reaping, so that its group can still be signalled by id."""
    deadline = time.monotonic() + seconds
    while not is_over(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(SHORT_TICK_SECONDS)
    return True


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def reap(process: subprocess.Popen[bytes]) -> None:
    """Kill all remaining processes of a process's session, and release the process id."""
    if process.returncode is None:
        signal_group(process, signal.SIGKILL)
        process.wait()


def end(children: Sequence[Child]) -> None:
    """End children and their processes, gently first, and wait for their ends."""
    alive = [child.process for child in children if not is_over(child.process)]
    for process in alive:
        signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for process in alive:
            ended_within(process, deadline - time.monotonic())
    finally:
        for child in children:
            reap(child.process)


def close(child: Child, selector: selectors.BaseSelector, reporter: Reporter, timeout: float) -> Answer | LowerError:
    for pipe in child.pipes():
        if pipe in selector.get_map():
            selector.unregister(pipe)
        left = REST_BYTES
        while left > 0 and (count := read_some(child, pipe, reporter)):
            left -= count
    child.close()
    return answer_of(child.exit(), timeout)
