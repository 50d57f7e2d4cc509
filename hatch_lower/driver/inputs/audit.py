"""Notes from Python's audit events: files, folders, modules, processes and the network.

`CLibrary` covers functions of the C library that `ctypes` can reach past the preloaded library. The preloaded library
comes first when a program looks a name up among all loaded libraries, but a look-up in the C library itself finds the
original function.

`Notes` holds the reads by absolute path, and the pauses of the recorder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from hatch_lower.cache.stats import FileState
from hatch_lower.driver.inputs.log import Kind, Observed, Record, fold, read_log
from hatch_lower.driver.inputs.preload import RecordingSwitch

PATHS = (str, bytes, os.PathLike)
NETWORK_USED = "the network was used: "  # with the host or the address
# the original functions: a recorder may exchange the functions of `os` for stand-ins
plain_lstat, plain_stat = os.lstat, os.stat
WITH_STATE = (Kind.OPENED, Kind.LOOKED_AT, Kind.LINKED, Kind.LISTED_BY_IMPORT, Kind.LISTED_BY_CODE)


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
        if kind in (Kind.OPENED, Kind.LOOKED_AT) and not self.is_there(text):
            kind = Kind.MISSING  # a file that is made later is no input
        if self.log is not None:
            self._switch.note(kind, text)
            return
        state = path_state(text, kind) if kind in WITH_STATE else ""
        self._events.setdefault(Record(kind, text, state))
        if kind in (Kind.OPENED, Kind.LOOKED_AT) and not state:  # a link that leads nowhere
            self._events.setdefault(Record(Kind.MISSING, text))


def path_state(path: str, kind: Kind) -> str:
    """Return the state of a path; empty if missing or not permitted."""
    look = plain_lstat if kind == Kind.LINKED else plain_stat
    try:
        return FileState.of(look(path)).text()
    except (OSError, ValueError):
        return ""


IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
METADATA_READERS = ("/importlib/metadata/", "/importlib_metadata/", "/pkg_resources/")
ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
NO_FOLDER = -1  # the place of a folder's descriptor in an event without a folder
NAME = "libc.so.6"
# functions that the preloaded library does not wrap, and that can read
NEVER_SEEN = frozenset({"syscall", "environ", "_environ", "__environ", "dlsym", "dlvsym"})
# Functions about loaded libraries, which are inputs already: torch with CUDA calls them at import
OF_LOADED = frozenset({"dlerror", "dlinfo"})


class AuditEvents:
    """Takes notes of audit events while active."""

    def __init__(self, notes: Notes) -> None:
        self.active = False
        self._notes = notes
        self._c_library = CLibrary(notes.log is not None)
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._on_open,
            "os.listdir": self._on_list,
            "os.scandir": self._on_list,
            "os.mkdir": self._on_mkdir,
            "os.remove": self._on_remove,
            "os.rename": self._on_rename,
            "os.link": self._on_link,
            "import": lambda name, *_: notes.modules.add(name.partition(".")[0]),
            "ctypes.dlopen": self._on_dlopen,
            "ctypes.dlsym": self._on_dlsym,
            "ctypes.dlsym/handle": self._on_dlsym,
            "sqlite3.connect": self._on_sqlite,
            "subprocess.Popen": self._on_start,
            "os.posix_spawn": self._on_start,
            "os.exec": self._on_exec,
            "os.system": lambda *_: self._on_start("/bin/sh"),
            "os.fork": self._on_fork,
            "os.forkpty": self._on_fork,
            "socket.bind": self._on_bind,
            "socket.connect": self._on_connect,
            "socket.sendto": self._on_connect,
            "socket.getaddrinfo": self._on_host,
            "socket.gethostbyname": self._on_host,
            "socket.gethostbyaddr": self._on_host,
            "socket.gethostname": lambda *_: notes.doubt("the machine's name was asked for"),
            "urllib.Request": self._on_request,
        }

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.active and event in self._handlers:
            self._handlers[event](*arguments)

    def _on_open(self, path: object, mode: object, flags: int, *_: object) -> None:
        access = flags & ACCESS
        # `os.open` can take a folder to which its path is relative, but the event does not name the folder
        doubtful = mode is None and isinstance(path, str | bytes | os.PathLike) and not os.path.isabs(path)
        # The library's own note comes after the call, and cannot say that a new file for appending was empty. This note
        # comes first.
        creates = flags & (os.O_TRUNC | os.O_CREAT) and not self._notes.is_there(path)
        if creates or (flags & os.O_TRUNC and not doubtful):
            self._notes.note_written(path)
        elif access != os.O_WRONLY:
            self._notes.note(Kind.OPENED, path)

    def _on_list(self, path: object, *_: object) -> None:
        lister = outside(sys._getframe(1)).f_code.co_filename
        if lister == IMPORT_SYSTEM:
            kind = Kind.LISTED_BY_IMPORT
        elif any(reader in lister for reader in METADATA_READERS):
            kind = Kind.LISTED_BY_METADATA
        else:
            kind = Kind.LISTED_BY_CODE
        self._notes.note(kind, "." if path is None else path)

    def _on_mkdir(self, path: object, mode: object, folder: int = NO_FOLDER) -> None:
        if folder == NO_FOLDER and not self._notes.is_there(path):
            self._notes.note_change(Kind.FOLDERS_MADE, path)

    def _on_remove(self, path: object, folder: int = NO_FOLDER) -> None:
        if folder == NO_FOLDER and self._notes.is_there(path):
            self._notes.note_change(Kind.REMOVED, path)

    def _on_rename(self, source: object, target: object, *folders: int) -> None:
        if set(folders) <= {NO_FOLDER} and self._notes.is_there(source):  # otherwise the call fails
            self._notes.note(Kind.OPENED, source)
            self._notes.note_change(Kind.REMOVED, source)
            self._notes.note_written(target)

    def _on_link(self, source: object, target: object, *folders: int) -> None:
        if set(folders) <= {NO_FOLDER} and not self._notes.is_there(target):  # otherwise the call fails
            self._notes.note(Kind.OPENED, source)
            self._notes.note_change(Kind.WRITTEN, target)
            if self._notes.log is None:  # otherwise the library takes the note
                self._notes.note_change(Kind.LINKED, source)

    def _on_dlopen(self, name: object, *_: object) -> None:
        if "/" in argument_text(name):  # the list of mapped libraries has libraries without a path
            self._notes.note(Kind.OPENED, name)

    def _on_dlsym(self, library: object, name: object) -> None:
        if self._c_library.is_unseen(library, name):
            self._notes.doubt(f"the C library was called past the recording: {argument_text(name)}")

    def _on_sqlite(self, database: object, *_: object) -> None:
        text = os.fsdecode(database) if isinstance(database, PATHS) else ""
        if text.startswith("file:"):
            text = urllib.parse.unquote(urllib.parse.urlsplit(text).path)
        if text and text != ":memory:":
            for path in (text, f"{text}-wal", f"{text}-journal"):
                if self._notes.is_there(path):
                    self._notes.note(Kind.OPENED, path)
                elif path == text:
                    self._notes.note_change(Kind.WRITTEN, path)

    def _on_exec(self, path: object, *_: object) -> None:
        self._notes.doubt(f"the process became another: {os.path.basename(argument_text(path))}")

    def _on_fork(self, *_: object) -> None:
        if self._notes.log is None:
            self._notes.doubt("a subprocess ran: a fork of the build's process")
        self._notes.handed_on = self._notes.handed_on or not self._notes.paused

    def on_fork_exec(self, arguments: object) -> None:
        """Take notes of a process that is started without an event."""
        if isinstance(arguments, Sequence):
            self._on_start(arguments[0])

    def _on_start(self, executable: object, *_: object) -> None:
        if not self._notes.paused:
            self._notes.handed_on = True
            if self._notes.log is None:
                self._notes.doubt(f"a subprocess ran: {os.path.basename(argument_text(executable))}")

    def _on_bind(self, socket: object, address: object) -> None:
        if not isinstance(address, tuple):
            self._notes.sockets.add(argument_text(address))

    def _on_connect(self, socket: object, address: object) -> None:
        is_local = isinstance(address, (str, bytes))
        # which process has opened the other end, the preloaded library knows
        if is_local and (self._notes.log is not None or argument_text(address) in self._notes.sockets):
            return
        if isinstance(address, tuple) and len(address) > 1:
            host = argument_text(address[0])
            address = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
        self._notes.doubt(f"{NETWORK_USED}{argument_text(address)}")

    def _on_host(self, host: object, *_: object) -> None:
        self._notes.doubt(f"{NETWORK_USED}{argument_text(host)}")

    def _on_request(self, url: object, *_: object) -> None:
        parts = urllib.parse.urlsplit(argument_text(url))
        if parts.scheme != "file":
            self._notes.doubt(f"{NETWORK_USED}{parts.hostname or url}")


def argument_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def outside(frame: FrameType) -> FrameType:
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


class CLibrary:
    """Tells which functions of the C library are called without a note."""

    def __init__(self, preloaded: bool) -> None:
        self._preloaded = preloaded
        loaded = ctypes.PyDLL(None)
        self._everything = loaded._handle
        self._own = handle_of(NAME) or self._everything
        self._find = loaded.dlsym  # not `_ctypes.dlsym`, which raises an audit event
        self._find.argtypes, self._find.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p

    def is_unseen(self, library: object, name: object) -> bool:
        """Return whether the function may read without a note."""
        symbol = name.encode() if isinstance(name, str) else name
        handle = library if isinstance(library, int) else getattr(library, "_handle", None)
        if not isinstance(symbol, bytes) or not handle or symbol.startswith((b"Py", b"_Py")):
            return False
        if symbol.decode() in OF_LOADED:
            return False
        address, own_address = self._find(handle, symbol), self._find(self._own, symbol)
        if address is None or address != own_address:
            return False
        return (
            not self._preloaded or symbol.decode() in NEVER_SEEN or self._find(self._everything, symbol) != own_address
        )


def handle_of(name: str) -> int:
    """Return the handle of a library; 0 if the library is missing."""
    try:
        return int(ctypes.PyDLL(name)._handle)
    except OSError:
        return 0
