"""The events of an export in order, and the conclusions: the files that were read, and the files that were only made.

With the preloaded library all events are records in its log: calls of the C library, here and in child processes
(`preload.c` lists the kinds), and facts of the recorder alone (`Notes`). Without the library the recorder keeps a list
of the same events. A record is a kind, the state of the found file, and a path or another text.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

from hatch_lower.frozen import Frozen

# Kinds that only the library notes
UPDATED, DENIED, LINK, LISTED, LISTED_BY_PROGRAM, EXECUTED, PROCESS = "B", "D", "K", "L", "F", "X", "P"
VARIABLE, NETWORK, BOUND = "V", "N", "U"
# Kinds that only the recorder notes
LISTED_BY_IMPORT, LISTED_BY_METADATA, LISTED_BY_CODE = "A", "E", "Y"
FOLDER_MADE, REMOVED, VARIABLE_SET = "G", "O", "Z"
# kinds that the recorder also notes without the library
READ, WRITTEN, MISSING, LOOKED, TIMED, HARD_LINKED, INCOMPLETE = "R", "W", "M", "S", "T", "H", "I"
OTHER_KINDS = frozenset({VARIABLE, NETWORK, INCOMPLETE, BOUND, VARIABLE_SET})  # their text is no path
LOOKS = frozenset({MISSING, LOOKED, LINK, DENIED})
LISTINGS = frozenset({LISTED, LISTED_BY_PROGRAM, LISTED_BY_IMPORT, LISTED_BY_METADATA, LISTED_BY_CODE})
CHANGES = frozenset({WRITTEN, UPDATED, FOLDER_MADE, REMOVED})
PATH_KINDS = LOOKS | LISTINGS | CHANGES | {READ, EXECUTED, PROCESS, TIMED, HARD_LINKED}
# the system's names of descriptors without a file; programs look for files with these names
NO_FILES = ("pipe:[", "socket:[", "anon_inode:")
# kinds that count at any place in the log: written files, and processes
KEPT_KINDS = frozenset({WRITTEN, PROCESS})


class Record(NamedTuple):
    kind: str
    text: str  # a path, or another name
    state: str = ""  # the state of the found file, in the form of `State.read`, if the event has a state
    target: str = ""  # the path that a link led to


class Observed(Frozen):
    """The notes of an export, each kind in the order of its first occurrence."""

    # Paths are absolute, without `.` and double slashes; `..` stays, because its meaning changes behind a link.

    # Files whose earlier contents could be read: opened for reading, or for writing without truncation, before another
    # event created the file. A folder that is opened like a file counts.
    opened: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # files and folders that were created, emptied, changed or renamed here
    missing: tuple[str, ...] = ()  # paths that were looked for and were not there
    # paths whose kind, size, times or permissions alone were asked, or that were refused for their kind
    looked_at: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # paths whose link targets were asked: by `readlink` or `realpath`
    listed: tuple[str, ...] = ()  # folders whose names were read
    # folders that a subprocess of the recorded program read
    listed_by_programs: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()  # paths that could not be opened or looked at for lack of permission
    # names that were passed to `getenv`, except variables that the process had set before
    variables: tuple[str, ...] = ()
    executed: tuple[str, ...] = ()  # programs that were started
    processes: tuple[str, ...] = ()  # executables of the processes that the library was in
    # addresses and names of connections, messages, listeners and look-ups, except sockets on this machine that a
    # recorded process had opened before
    network: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()  # the reasons why the notes are incomplete; empty if complete
    timed: tuple[str, ...] = ()  # paths whose times were asked
    linked: tuple[str, ...] = ()  # states of files that got another hard link
    # by path: the states at opens and looks, in the form of `State.read`; each state once, an empty text for a missing
    # file
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folders_made: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # files that were there before and were removed or renamed
    # the callers that listed a folder, if the recorder knows the caller
    listed_by_import: tuple[str, ...] = ()
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
    kinds: dict[str, dict[str, None]] = {kind: {} for kind in sorted(PATH_KINDS | OTHER_KINDS)}
    incomplete = dict.fromkeys(reasons)
    opened: dict[str, None] = {}
    removed: dict[str, None] = {}
    targets: dict[str, list[str]] = {}
    states: dict[str, dict[str, None]] = {}
    linked: dict[str, None] = {}
    written = kinds[WRITTEN]
    for kind, text, state, target in events:
        if kind not in kinds or (kind in PATH_KINDS and not text):
            incomplete.setdefault("the log is damaged")
            continue
        if text.rpartition("/")[2].startswith(NO_FILES):
            continue
        named = plain(text) if kind in PATH_KINDS else text
        if kind == MISSING and text.endswith("/"):  # a file was looked for like a folder
            kind = LOOKED
        # files that the export made are no inputs, and variables that the export set are no variables of its
        # surroundings: the first event decides
        if kind in (READ, UPDATED) and named not in written:
            opened[named] = None
        elif kind == REMOVED and named not in written:
            removed[named] = None
        elif kind == FOLDER_MADE:
            written[named] = None
        elif (kind == VARIABLE and text in kinds[VARIABLE_SET]) or (kind == NETWORK and text in kinds[BOUND]):
            continue
        made = named in written and named not in opened
        if made and kind in LOOKS:
            continue  # a file of the export proves nothing about earlier files
        if target:
            targets.setdefault(plain(target), []).append(named)
        if state and kind == HARD_LINKED:
            linked[state] = None
        elif state and not made:
            states.setdefault(named, {})[state] = None
        kinds[kind][named] = None
    for path in kinds[MISSING]:
        states.setdefault(path, {})[""] = None
    opened.update(led_elsewhere(opened, targets, written))
    return replace(
        observed_of(kinds),
        opened=tuple(opened),
        removed=tuple(removed),
        linked=tuple(linked),
        states={path: tuple(texts) for path, texts in states.items()},
        incomplete=tuple(incomplete | kinds[INCOMPLETE]),
    )


def observed_of(kinds: Mapping[str, dict[str, None]]) -> Observed:
    return Observed(
        written=tuple(kinds[WRITTEN] | kinds[UPDATED]),
        missing=tuple(kinds[MISSING]),
        looked_at=tuple(kinds[LOOKED]),
        links=tuple(kinds[LINK]),
        listed=tuple(kinds[LISTED] | kinds[LISTED_BY_PROGRAM]),
        listed_by_programs=tuple(kinds[LISTED_BY_PROGRAM]),
        denied=tuple(kinds[DENIED]),
        variables=tuple(kinds[VARIABLE]),
        executed=tuple(kinds[EXECUTED]),
        processes=tuple(kinds[PROCESS]),
        network=tuple(dict.fromkeys(address_text(address) for address in kinds[NETWORK])),
        timed=tuple(kinds[TIMED]),
        folders_made=tuple(kinds[FOLDER_MADE]),
        listed_by_import=tuple(kinds[LISTED_BY_IMPORT]),
        listed_by_metadata=tuple(kinds[LISTED_BY_METADATA]),
        listed_by_code=tuple(kinds[LISTED_BY_CODE]),
    )


def records(data: bytes) -> Iterator[Record]:
    fields = iter(os.fsdecode(data).split("\0") if data else [])
    for record in fields:
        kind, text, state = record[:1], record[1:], ""
        target = next(fields, "") if kind in ("r", "b") else ""
        kind = kind.upper()
        if kind in PATH_KINDS:
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
