"""Notes of what a process asks for, by absolute path, and how not to take any for a while."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from hatch_lower.build.inputs.preload import RecordingSwitch
from hatch_lower.cache.stats import State

PATHS = (str, bytes, os.PathLike)
# The functions themselves: those of `os` may be exchanged for ones that take notes
plain_lstat, plain_stat = os.lstat, os.stat


class Pauses(threading.local):
    """How many reasons there are for this thread to take no notes."""

    count = 0


class Notes:
    """What was noted; mappings to nothing are sets that keep their order."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self._switch = RecordingSwitch()
        self._pauses = 0
        self._pauses_here = Pauses()
        self.read: dict[str, None] = {}
        self.looked: dict[str, None] = {}
        self.listed: dict[str, None] = {}
        self.listed_by_import: dict[str, None] = {}
        self.listed_by_metadata: set[str] = set()
        self.made: set[str] = set()
        self.created: set[str] = set()  # files among them of which nothing was there before
        self.folders_made: set[str] = set()
        self.removed: set[str] = set()
        self.timed: dict[str, None] = {}
        self.scanned: set[str] = set()  # folders that were listed by `os.scandir`, whose entries tell times
        self.linked: set[str] = set()  # states of files that were given one more name
        # path → what was found there, as `State.text` writes it; empty where nothing was
        self.states: dict[str, dict[str, None]] = {}
        self.sockets: set[str] = set()  # addresses of sockets of this machine that this process opened
        self.distributions: set[str] = set()
        self.modules: set[str] = set()
        self.unknown: set[str] = set()
        self.handed_on = False

    def begin(self) -> int:
        """Return where in the preloaded library's log the part of interest begins."""
        begin = self.log_size()
        self._switch.forget()  # else what was noted before would be missing in what follows
        return begin

    @property
    def paused(self) -> bool:
        """Whether this thread takes no notes but of what is written; the preloaded library then does not, either."""
        return self._pauses > 0 or self._pauses_here.count > 0

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Take no notes of what the recorder itself looks at, in this thread."""
        self._pauses_here.count += 1
        try:
            with self._switch.quiet():
                yield
        finally:
            self._pauses_here.count -= 1

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Take no notes in any thread, but of what is written."""
        self._pauses += 1
        try:
            with self._switch.quiet(everywhere=True):
                yield
        finally:
            self._pauses -= 1

    def absolute(self, path: object) -> str:
        """Return a path, or that of a descriptor, as absolute text; empty for what is none."""
        try:
            if isinstance(path, int):
                target = os.readlink(f"/proc/self/fd/{path}")
                return target if target.startswith("/") else ""  # `pipe:[123]`, `socket:[123]`
            text = os.path.join(os.getcwd(), os.fsdecode(path)) if isinstance(path, PATHS) else ""
        except (OSError, TypeError, ValueError):
            return ""
        if ".." not in text.split("/"):
            return os.path.normpath(text) if text else ""
        with self.silent():  # behind a link it means something else
            return os.path.realpath(text)

    def is_there(self, path: object) -> bool:
        try:
            with self.silent():
                plain_lstat(path if isinstance(path, PATHS) else "")
        except (OSError, ValueError, TypeError):
            return False
        return True

    def log_size(self) -> int:
        try:
            with self.silent():
                return plain_stat(self.log).st_size if self.log is not None else 0
        except OSError:
            return 0

    def note_read(self, path: object) -> None:
        self._note(path, self.read)

    def note_look(self, path: object) -> None:
        self._note(path, self.looked)

    def _note(self, path: object, place: dict[str, None]) -> None:
        text = "" if self.paused else self.absolute(path)
        if text and text not in self.made:
            self.note_list(text, place)

    def note_list(self, path: str, place: dict[str, None]) -> None:
        place.setdefault(path)
        self._note_state(path)

    def note_time(self, path: object) -> None:
        text = "" if self.paused else self.absolute(path)
        if text and self._switch.is_there:
            self._switch.note_time(text)
        elif text:
            self.timed.setdefault(text)

    def note_scan(self, path: object) -> None:
        text = "" if self.paused else self.absolute(path)
        if text:
            self.scanned.add(text)

    def note_link(self, path: object) -> None:
        text = self.absolute(path)
        with contextlib.suppress(OSError), self.silent():
            self.linked.add(State.of(plain_lstat(text)).text())

    def _note_state(self, path: str) -> None:
        if self._switch.is_there:
            return
        try:
            state = State.of(plain_stat(path)).text()
        except (OSError, ValueError):
            state = ""
        self.states.setdefault(path, {})[state] = None

    def note_distribution(self, name: object) -> None:
        if not self.paused and isinstance(name, str):
            self.distributions.add(re.sub(r"[-_.]+", "-", name).lower())

    def note_made(self, path: object, *, created: bool = False) -> None:
        """Note that the process writes a file without reading it, or makes a folder."""
        text = self.absolute(path)
        if text and text not in self.read:
            self.made.add(text)
            if created:  # nothing was there, though the way of opening it would have kept it
                self.created.add(text)

    def doubt(self, reason: str) -> None:
        if not self.paused:
            self.unknown.add(reason)
