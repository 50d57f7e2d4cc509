"""The events of an export in order, and the conclusions: the files that were read, and the files that were only made.

With the preloaded library all events are records in its log: calls of the C library, here and in child processes
(`Kind` lists the kinds, with the letters of `preload.c`), and facts of the recorder alone (`Notes`). Without the
library the recorder keeps a list of the same events. A record is a kind, the state of the found file, and a path or
another text.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from hatch_lower.frozen import Frozen


class Kind(StrEnum):
    """The kind of an event, by its letter in the log; `preload.c` has the same letters.

    The names are those of the fields of `Observed`, except `INNER_KINDS`.
    """

    # noted by the library alone
    UPDATED, DENIED, LINKS, LISTED, LISTED_BY_PROGRAMS, EXECUTED, PROCESSES = "B", "D", "K", "L", "F", "X", "P"
    VARIABLES, NETWORK, BOUND = "V", "N", "U"
    # noted by the recorder alone
    LISTED_BY_IMPORT, LISTED_BY_METADATA, LISTED_BY_CODE = "A", "E", "Y"
    FOLDERS_MADE, REMOVED, VARIABLE_SET = "G", "O", "Z"
    # also noted by the recorder without the library
    OPENED, WRITTEN, MISSING, LOOKED_AT, TIMED, LINKED, INCOMPLETE = "R", "W", "M", "S", "T", "H", "I"


# small letters: the path that a link led to follows
KINDS = {kind.value: kind for kind in Kind} | {kind.lower(): kind for kind in (Kind.OPENED, Kind.UPDATED)}
OTHER_KINDS = frozenset({Kind.VARIABLES, Kind.NETWORK, Kind.INCOMPLETE, Kind.BOUND, Kind.VARIABLE_SET})  # no path
# the system's names of descriptors without a file; programs look for files with these names
NO_FILES = ("pipe:[", "socket:[", "anon_inode:")
# kinds that count at any place in the log: written files, and processes
KEPT_KINDS = frozenset({Kind.WRITTEN, Kind.PROCESSES})
INNER_KINDS = frozenset({Kind.UPDATED, Kind.BOUND, Kind.VARIABLE_SET})  # deciding about other kinds only


class Record(NamedTuple):
    kind: Kind | None  # `None` for an unknown letter
    text: str  # a path, or another name
    state: str = ""  # the state of the found file, in the form of `FileFileState.read`, if the event has a state
    target: str = ""  # the path that a link led to


class Observed(Frozen):
    """The notes of an export, each kind in the order of its first occurrence."""

    # Paths are absolute, without `.` and double slashes; `..` stays, because its meaning changes behind a link.

    opened: tuple[str, ...] = ()
    """Files whose earlier contents could be read: opened for reading, or for writing without truncation, before another
    event created the file. A folder that is opened like a file counts."""
    written: tuple[str, ...] = ()
    """Files and folders that were created, emptied, changed or renamed here."""
    missing: tuple[str, ...] = ()
    """Paths that were looked for and were not there."""
    looked_at: tuple[str, ...] = ()
    """Paths whose kind, size, times or permissions alone were asked, or that were refused for their kind."""
    links: tuple[str, ...] = ()
    """Paths whose link targets were asked: by `readlink` or `realpath`."""
    listed: tuple[str, ...] = ()
    """Folders whose names were read."""
    listed_by_programs: tuple[str, ...] = ()
    """Folders that a subprocess of the recorded program read."""
    denied: tuple[str, ...] = ()
    """Paths that could not be opened or looked at for lack of permission."""
    variables: tuple[str, ...] = ()
    """Names that were passed to `getenv`, except variables that the process had set before."""
    executed: tuple[str, ...] = ()
    """Programs that were started."""
    processes: tuple[str, ...] = ()
    """Executables of the processes that the library was in."""
    network: tuple[str, ...] = ()
    """Addresses and names of connections, messages, listeners and look-ups, except sockets on this machine that a
    recorded process had opened before."""
    incomplete: tuple[str, ...] = ()
    """The reasons why the notes are incomplete; empty if complete."""
    timed: tuple[str, ...] = ()
    """Paths whose times were asked."""
    linked: tuple[str, ...] = ()
    """States of files that got another hard link."""
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By path: the states at opens and looks, in the form of `State.read`; each state once, an empty text for a missing
    file."""
    folders_made: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """Files that were there before and were removed or renamed."""
    listed_by_import: tuple[str, ...] = ()
    """Folders that the import system listed, as far as the recorder knows the caller; likewise the two fields below."""
    listed_by_metadata: tuple[str, ...] = ()
    listed_by_code: tuple[str, ...] = ()

    def made(self) -> frozenset[str]:
        """Return paths that were written before the first read: no inputs in any later read."""
        return frozenset(self.written) - frozenset(self.opened)


def read_log(path: Path, begin: int = 0, end: int | None = None) -> Observed:
    """Return the notes of a log between two positions; a damaged or missing log is incomplete."""
    # before `begin` only the kinds count that matter for later records
    reasons: list[str] = []
    data = b""
    try:
        if path.stat().st_mode & stat.S_ISVTX:  # the library's only remaining way to report
            reasons.append("something could not be written into the log")
        data = path.read_bytes()[:end]
    except OSError as error:
        reasons.append(f"the log could not be read: {error.strerror}")
    whole, _, torn = data.rpartition(b"\0")
    if torn:
        reasons.append("the last record is torn")
    before = (record for record in records(whole[:begin]) if record.kind in KEPT_KINDS)
    observed = fold((*before, *records(whole[begin:])), reasons)
    if observed.processes:
        return observed
    return replace(observed, incomplete=(*observed.incomplete, "the preloaded library was in no process"))


def fold(events: Iterable[Record], reasons: Iterable[str] = ()) -> Observed:
    """Return the conclusions from events in order; `reasons` are known gaps."""
    findings = Findings(reasons)
    for kind, text, state, target in events:
        if kind is None or not (text or kind in OTHER_KINDS):
            findings.incomplete.setdefault("the log is damaged")
        elif not text.rpartition("/")[2].startswith(NO_FILES):
            name = text if kind in OTHER_KINDS else plain(text)
            if kind == Kind.MISSING and text.endswith("/"):  # a file was looked for like a folder
                kind = Kind.LOOKED_AT
            HANDLERS[kind](findings, kind, name, state)
            if target:
                findings.targets.setdefault(plain(target), []).append(name)
    return findings.observed()


class Findings:
    """Conclusions from the events so far: the first event of a name decides whether the name is an input."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.kinds: dict[Kind, dict[str, None]] = {kind: {} for kind in Kind}
        self.opened, self.written = self.kinds[Kind.OPENED], self.kinds[Kind.WRITTEN]
        self.incomplete = dict.fromkeys(reasons)
        self.targets: dict[str, list[str]] = {}
        self.states: dict[str, dict[str, None]] = {}

    def add(self, kind: Kind, name: str, state: str) -> None:
        self.kinds[kind][name] = None
        if state and (name not in self.written or name in self.opened):
            self.states.setdefault(name, {})[state] = None

    def add_input(self, kind: Kind, name: str, state: str) -> None:
        # a file of the export proves nothing about earlier files
        if name not in self.written or name in self.opened:
            self.add(kind, name, state)

    def add_update(self, kind: Kind, name: str, state: str) -> None:
        self.add_input(Kind.OPENED, name, state)
        self.kinds[kind][name] = None

    def add_foreign(self, kind: Kind, name: str, state: str) -> None:
        if name not in self.kinds[OWN[kind]]:
            self.add(kind, name, state)

    def add_folder(self, kind: Kind, name: str, state: str) -> None:
        self.written[name] = None
        self.add(kind, name, state)

    def add_link(self, kind: Kind, name: str, state: str) -> None:
        if state:
            self.kinds[kind][state] = None

    def observed(self) -> Observed:
        self.states |= {path: {**self.states.get(path, {}), "": None} for path in self.kinds[Kind.MISSING]}
        self.opened.update(led_elsewhere(self.opened, self.targets, self.written))
        found = {
            **self.kinds,
            Kind.WRITTEN: self.written | self.kinds[Kind.UPDATED],
            Kind.LISTED: self.kinds[Kind.LISTED] | self.kinds[Kind.LISTED_BY_PROGRAMS],
            Kind.NETWORK: dict.fromkeys(map(address_text, self.kinds[Kind.NETWORK])),
            Kind.INCOMPLETE: self.incomplete | self.kinds[Kind.INCOMPLETE],
        }
        fields = {kind.name.lower(): tuple(names) for kind, names in found.items() if kind not in INNER_KINDS}
        return Observed(**fields, states={path: tuple(texts) for path, texts in self.states.items()})


# by kind of event, the kind after which the event concerns the export's own file, variable or socket
OWN = {Kind.VARIABLES: Kind.VARIABLE_SET, Kind.NETWORK: Kind.BOUND, Kind.REMOVED: Kind.WRITTEN}
HANDLERS: Mapping[Kind, Callable[[Findings, Kind, str, str], None]] = {
    **dict.fromkeys(Kind, Findings.add),
    **dict.fromkeys((Kind.OPENED, Kind.MISSING, Kind.LOOKED_AT, Kind.LINKS, Kind.DENIED), Findings.add_input),
    **dict.fromkeys(OWN, Findings.add_foreign),
    Kind.UPDATED: Findings.add_update,
    Kind.FOLDERS_MADE: Findings.add_folder,
    Kind.LINKED: Findings.add_link,
}


def records(data: bytes) -> Iterator[Record]:
    fields = iter(os.fsdecode(data).split("\0") if data else [])
    for record in fields:
        letter, text, state = record[:1], record[1:], ""
        target = next(fields, "") if letter.islower() else ""
        kind = KINDS.get(letter)
        if kind not in OTHER_KINDS:
            state, slash, rest = text.partition("/")
            text = slash + rest
        yield Record(kind, text, state, target)


def plain(path: str) -> str:
    """Return an absolute path without `.`, double slashes and a slash at its end."""
    if "//" not in path and "/./" not in path and not path.endswith(("/", "/.")):
        return path
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def led_elsewhere(
    opened: Mapping[str, None], targets: Mapping[str, Iterable[str]], written: Mapping[str, None]
) -> dict[str, None]:
    """Return the files that were read through links which have gone since, or lead to something else."""
    left = {path: links for path, links in targets.items() if path not in opened and path not in written}
    reached = {os.path.realpath(link) for links in left.values() for link in links if link in opened}
    return dict.fromkeys(path for path in left if path not in reached)


def address_text(record: str) -> str:
    import socket

    if record.startswith("@"):
        return record[1:]
    with contextlib.suppress(ValueError, OSError):
        data = bytes.fromhex(record)
        family = int.from_bytes(data[:2], sys.byteorder)
        port = int.from_bytes(data[2:4], "big")
        if family == socket.AF_INET:
            return f"{socket.inet_ntop(family, data[4:8])}:{port}"
        if family == socket.AF_INET6:
            return f"[{socket.inet_ntop(family, data[8:24])}]:{port}"
        return os.fsdecode(data[2:].strip(b"\0")) or "a local socket"
    return "a socket"


def unrecorded_programs(observed: Observed) -> tuple[str, ...]:
    programs = []
    for path in observed.executed:
        if os.path.isdir(path):
            continue  # no program; its start failed
        try:
            program = interpreter_of(Path(path))
            if os.path.realpath(program) not in observed.processes:
                programs.append(f"{path} {why_unrecorded(program)}")
        except OSError as error:
            programs.append(f"{path} could not be read: {error.strerror}")
    return tuple(programs)


def interpreter_of(program: Path) -> Path:
    """Return the program that the kernel starts: for a script, the program in its first line."""
    for _ in range(5):  # as many as the kernel follows
        with program.open("rb") as file:
            line = file.readline(4096)
        if not line.startswith(b"#!"):
            break
        program = Path(os.fsdecode(line[2:].split(maxsplit=1)[0]))
    return program


def why_unrecorded(program: Path) -> str:
    if program.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "runs with the rights of its owner, so nothing is preloaded into it"
    if is_static(program):
        return "is linked statically, so nothing is preloaded into it"
    return "was started, and the preloaded library was not in it"


def is_static(executable: Path) -> bool:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with executable.open("rb") as file:
        try:
            return all(segment["p_type"] != "PT_INTERP" for segment in ELFFile(file).iter_segments())
        except ELFError:
            return False
