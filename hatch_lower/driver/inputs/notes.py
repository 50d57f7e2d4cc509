"""The recorder's own notes of reads, by absolute path, and pauses without notes."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from hatch_lower.cache.stats import State
from hatch_lower.driver.inputs.log import Kind, Observed, Record, fold, read_log
from hatch_lower.driver.inputs.preload import RecordingSwitch

PATHS = (str, bytes, os.PathLike)
# the original functions: a recorder may exchange the functions of `os` for stand-ins
plain_lstat, plain_stat = os.lstat, os.stat
WITH_STATE = (Kind.READ, Kind.LOOKED, Kind.HARD_LINKED, Kind.LISTED_BY_IMPORT, Kind.LISTED_BY_CODE)


class Pauses(threading.local):
    """How many reasons there are for this thread to take no notes."""

    count = 0


class Notes:
    """The notes: events, in the preloaded library's log if there is a library, and facts without an order."""

    def __init__(self, log: Path | None) -> None:
        self._switch = RecordingSwitch()
        # a program between the build and this process may have taken the library out
        self.log = log if self._switch.is_there else None
        self._events: dict[Record, None] = {}  # without the library; a set that keeps its order
        self._began = 0
        self._ended: int | None = None
        self._pauses = 0
        self._pauses_here = Pauses()
        self.scanned: set[str] = set()  # folders that `os.scandir` listed, whose entries have times
        self.sockets: set[str] = set()  # addresses of sockets of this machine that this process opened
        self.distributions: set[str] = set()
        self.modules: set[str] = set()
        self.handed_on = False

    def begin(self) -> None:
        self._began = self._log_size()
        self._switch.forget()  # otherwise the next log would lack the earlier notes

    def end(self) -> None:
        self._ended = self._log_size()

    def observed(self) -> Observed:
        with self.silent():
            return fold(tuple(self._events)) if self.log is None else read_log(self.log, self._began, self._ended)

    @property
    def paused(self) -> bool:
        """Whether this thread notes only writes; the preloaded library follows."""
        return self._pauses > 0 or self._pauses_here.count > 0

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Take no notes of the recorder's own reads, in this thread."""
        self._pauses_here.count += 1
        try:
            with self._switch.quiet():
                yield
        finally:
            self._pauses_here.count -= 1

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Note only writes, in all threads."""
        self._pauses += 1
        try:
            with self._switch.quiet(everywhere=True):
                yield
        finally:
            self._pauses -= 1

    def absolute(self, path: object) -> str:
        """Return a path, or a descriptor's path, as absolute text; empty for other values."""
        try:
            if isinstance(path, int):
                target = os.readlink(f"/proc/self/fd/{path}")
                return target if target.startswith("/") else ""  # `pipe:[123]`, `socket:[123]`
            text = os.path.join(os.getcwd(), os.fsdecode(path)) if isinstance(path, PATHS) else ""
        except (OSError, TypeError, ValueError):
            return ""
        if ".." not in text.split("/") and not text.startswith("/proc/self/fd/"):
            return os.path.normpath(text) if text else ""
        with self.silent():  # `..` has another meaning behind a link
            return os.path.realpath(text)

    def is_there(self, path: object) -> bool:
        try:
            with self.silent():
                plain_lstat(path if isinstance(path, PATHS) else "")
        except (OSError, ValueError, TypeError):
            return False
        return True

    def _log_size(self) -> int:
        try:
            with self.silent():
                return plain_stat(self.log).st_size if self.log is not None else 0
        except OSError:
            return 0

    def note(self, kind: Kind, path: object) -> None:
        """Note an event of a path, unless this thread takes no notes."""
        if not self.paused:
            self.note_change(kind, path)

    def note_change(self, kind: Kind, path: object) -> None:
        """Note that the process writes or removes a file: a later read is no input."""
        if text := self.absolute(path):
            self._add(kind, text)

    def note_written(self, path: object) -> None:
        """Note a file that a call is about to make or to empty; the library tells itself whether a call worked."""
        if self.log is None or not self.is_there(path):
            self.note_change(Kind.WRITTEN, path)

    def note_variable_set(self, name: str) -> None:
        self._add(Kind.VARIABLE_SET, name)

    def note_scan(self, path: object) -> None:
        if not self.paused and (text := self.absolute(path)):
            self.scanned.add(text)

    def note_distribution(self, name: object) -> None:
        if not self.paused and isinstance(name, str):
            self.distributions.add(re.sub(r"[-_.]+", "-", name).lower())

    def doubt(self, reason: str) -> None:
        if not self.paused:
            self._add(Kind.INCOMPLETE, reason.replace("\0", " "))

    def _add(self, kind: Kind, text: str) -> None:
        if kind in (Kind.READ, Kind.LOOKED) and not self.is_there(text):
            kind = Kind.MISSING  # a file that is made later is no input
        if self.log is not None:
            self._switch.note(kind, text)
            return
        state = state_of(text, kind) if kind in WITH_STATE else ""
        self._events.setdefault(Record(kind, text, state))
        if kind in (Kind.READ, Kind.LOOKED) and not state:  # a link that leads nowhere
            self._events.setdefault(Record(Kind.MISSING, text))


def state_of(path: str, kind: Kind) -> str:
    """Return the state of a path; empty if missing or not permitted."""
    look = plain_lstat if kind == Kind.HARD_LINKED else plain_stat
    try:
        return State.of(look(path)).text()
    except (OSError, ValueError):
        return ""
