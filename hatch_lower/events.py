"""Progress of a build as events, sent from the child process as JSON lines, and the reporters that show events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TextIO

from hatch_lower.errors import printable, printable_lines
from hatch_lower.frozen import Frozen


class Event(Frozen):
    stage: str  # `import`, `export`, `lookup`, `decompose`, `compile`, `package`, `compare`, …
    # `start`, `end`, `going` (begun a while ago), `note` (a separate line, as for a damaged cache entry), or `live`
    # (a terminal shows the lines of `detail` until the next `live` event)
    state: str
    model: str
    recipe: str = ""  # empty where the stage serves all recipes
    method: str = ""  # empty where the stage serves all methods
    seconds: float = 0.0  # duration of the stage, so far or in all
    detail: str = ""  # further words

    def subject(self) -> str:
        name = f"{self.model}/{self.recipe}" if self.recipe else self.model
        return f"{name}.{self.method}" if self.method else name

    def ends_with(self, end: Event) -> bool:
        return (self.stage, self.model, self.recipe, self.method) == (end.stage, end.model, end.recipe, end.method)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class Reporter(Protocol):
    def report(self, event: Event) -> None: ...


class Display(Reporter, Protocol):
    """Shows events to people; `close` ends a live line."""

    def close(self) -> None: ...


class NullReporter:
    def report(self, event: Event) -> None:
        pass


def make_note_reporter(reporter: Reporter, stage: str, model: str) -> Callable[[str], None]:
    """Return a function that reports a line of a stage as a note."""
    return lambda line: reporter.report(Event(stage, "note", model, detail=line))


class SaidOnce:
    # the hook and each model's process use the same cache and the same torch, and so send the same notes
    def __init__(self, reporter: Display) -> None:
        self._reporter = reporter
        self._said: set[str] = set()

    def report(self, event: Event) -> None:
        if event.stage in ("cache", "torch") and event.state == "note":
            if event.detail in self._said:
                return
            self._said.add(event.detail)
        self._reporter.report(event)

    def close(self) -> None:
        self._reporter.close()


class LineReporter:
    # for CI logs, and for frontends that capture output
    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line

    def report(self, event: Event) -> None:
        if event.state not in ("start", "live"):
            self._write_line(finished_line(event))

    def close(self) -> None:
        pass


class LiveReporter:
    """Shows the current stage as a live line on a terminal, below a line for each finished stage."""

    # with several models at a time, the live line shows the stage that began last
    def __init__(self, stream: TextIO, write_line: Callable[[str], None], columns: int) -> None:
        self._stream = stream
        self._write_line = write_line
        self._columns = columns
        self._under_way: list[Event] = []
        self._live: list[str] = []
        self._drawn = 0  # lines

    def report(self, event: Event) -> None:
        if event.state == "start":
            self._under_way.append(event)
        elif event.state == "live":
            self._live = [printable(line) for line in event.detail.splitlines()]
        elif event.state != "going":
            if event.state == "end":
                self._under_way = [begun for begun in self._under_way if not begun.ends_with(event)]
            self.close()
            self._write_line(finished_line(event))
        self._draw()

    def close(self) -> None:
        if self._drawn:
            self._write([])

    def _draw(self) -> None:
        lines = self._live
        if not lines and self._under_way:
            event = self._under_way[-1]
            lines = [f"{event.subject()}: {event.stage} …"]
        if lines or self._drawn:
            self._write([f"  lower  {line}"[: max(self._columns - 1, 0)] for line in lines])

    def _write(self, lines: Sequence[str]) -> None:
        """Replace the live lines."""
        self._stream.write("\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._drawn - 1) + "\n".join(lines))
        self._stream.flush()
        self._drawn = len(lines)


class CollapsedOutput:
    # writes the output of the models' code to a file, and reports only the number of lines; without a writable file the
    # lines are lost
    def __init__(self, reporter: Display, path: Path | None) -> None:
        self._reporter = reporter
        self._path = path
        self._lines: Counter[str] = Counter()
        self._file: TextIO | None = None

    def report(self, event: Event) -> None:
        if event.stage != "output":
            self._reporter.report(event)
            return
        self._lines[event.model] += 1
        with suppress(OSError):
            if self._file is None and self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("w", encoding="utf-8", errors="replace")
            if self._file is not None:
                self._file.write(f"{event.model}: {event.detail}\n")

    def close(self) -> None:
        where = ""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            where = f", kept in {self._file.name}"
        for model, count in self._lines.items():
            lines = "1 line" if count == 1 else f"{count} lines"
            text = f"{lines} of output by the model's code (HATCH_VERBOSE=1 shows them{where})"
            self._reporter.report(Event("output", "note", model, detail=text))
        self._reporter.close()


def finished_line(event: Event) -> str:
    detail = f"  {event.detail}" if event.detail else ""
    line = f"lower  {event.subject():<32} {event.stage:<10} {event.seconds:6.2f} s{detail}"
    if event.state == "note":
        line = f"lower  {event.subject()}: {event.detail}"
    elif event.state == "going":
        line = f"lower  {event.subject():<32} {event.stage:<10} {event.seconds:3.0f} s so far{detail}"
    return printable_lines(line)


@contextmanager
def stage(
    reporter: Reporter, name: str, model: str, recipe: str = "", method: str = ""
) -> Iterator[Callable[[str], None]]:
    """Report the start and the end of a stage; yield a function that sets the detail of the end."""
    details: list[str] = [""]
    reporter.report(Event(name, "start", model, recipe, method))
    begin = time.perf_counter()
    yield lambda text: details.__setitem__(0, text)
    # not reached if the stage raises: the error says more
    seconds = time.perf_counter() - begin
    reporter.report(Event(name, "end", model, recipe, method, seconds, details[0]))
