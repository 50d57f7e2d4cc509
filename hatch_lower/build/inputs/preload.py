"""The preloaded library: native code and child processes say what they look at, too.

Python's audit events miss what C, C++ and Rust read, every `stat`, and other processes. `preload.c` is compiled once
into the cache and loaded with `LD_PRELOAD`; it writes a log that `read_log` understands. Without a C compiler or the
GNU C library there is no such library, and an export whose reads the audit events do not cover cannot be reused.

What escapes it: system calls that do not go through the C library (some Go programs, io_uring), programs without it
(`programs` finds them), what the C library itself opens (locale, time zone, name service, shared memory), variables
read from `environ` without `getenv`, and what is no file: clocks, random numbers, the processor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hatch_lower.canonical import digest_of, sha256_file

SOURCE = Path(__file__).with_name("preload.c")
RECORD = "HATCH_LOWER_RECORD"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared")
SECONDS_TO_COMPILE = 120
SEPARATORS = frozenset(": \t\n$")
"""Characters that a path in `LD_PRELOAD` cannot have."""

PATH_KINDS = frozenset("RWBMDSKLFXPTH")
OTHER_KINDS = frozenset("VNIU")
NO_FILES = ("pipe:[", "socket:[", "anon_inode:")
"""How the system calls what a descriptor stands for where it is no file; programs look for files of that name."""
KEPT_KINDS = frozenset("WP")
"""Kinds that count wherever they stand in the log: what was written, and which processes there were."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the preloaded library wrote down, each in the order of its first occurrence.

    Paths are absolute, without `.` and double slashes; `..` is kept, for it means something else behind a link.
    """

    opened: tuple[str, ...] = ()
    """Files whose contents from before could be read: opened for reading, or for writing without being emptied, before
    anything else created them here. A folder opened like a file is among them."""
    written: tuple[str, ...] = ()
    """Files that were created, emptied, changed or renamed here."""
    missing: tuple[str, ...] = ()
    """Paths that were looked for and were not there."""
    looked_at: tuple[str, ...] = ()
    """Paths of which only kind, size, times or permissions were asked, or that were refused for what they are."""
    links: tuple[str, ...] = ()
    """Paths of which it was asked where they lead: by `readlink` or `realpath`."""
    listed: tuple[str, ...] = ()
    """Folders whose names were read."""
    listed_by_programs: tuple[str, ...] = ()
    """Those that a program read which was started by the recorded one, whatever that read itself."""
    denied: tuple[str, ...] = ()
    """Paths that could not be opened or looked at for lack of permission."""
    variables: tuple[str, ...] = ()
    """Names given to `getenv`."""
    executed: tuple[str, ...] = ()
    """Programs that were started."""
    processes: tuple[str, ...] = ()
    """Executables of the processes that the library was in."""
    network: tuple[str, ...] = ()
    """Addresses and names that were connected to, sent to, listened at or looked up, but for sockets on this machine
    that a recorded process had opened before."""
    incomplete: tuple[str, ...] = ()
    """Why the log does not say all that the library could have said; empty if it does."""
    timed: tuple[str, ...] = ()
    """Paths of which the time was asked."""
    linked: tuple[str, ...] = ()
    """States of files that were given one more name: a hard link."""
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Path → what was found there when it was opened or looked at, as `State.read` reads it; each state once."""


def find_compiler(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the command of a C compiler, the one that `CC` names first, or `None` if there is none."""
    try:
        named = shlex.split(environment.get("CC", ""))
    except ValueError:  # a quotation without an end
        named = []
    for command in ([*named], *([each] for each in COMPILERS)):
        found = shutil.which(command[0], path=environment.get("PATH")) if command else None
        if found:
            return (found, *command[1:])
    return None


def built_library(cache_folder: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the library for this machine, compiled and tried when it is first asked for.

    Args:
        cache_folder: the folder of the cache; the library is kept in `v1/preload`, under a name that says its sha256.
        environment: where `CC` and `PATH` come from.

    Returns:
        `None` where it cannot be built or does not work: no Linux, another C library than GNU's, no compiler, a cache
        that cannot be written, a path that `LD_PRELOAD` cannot name.
    """
    folder = cache_folder.absolute() / "v1" / "preload"
    library_version = gnu_library_version()
    compiler = find_compiler(environment)
    if not library_version or not compiler or SEPARATORS & set(str(folder)):
        return None
    try:
        name = digest_of([SOURCE.read_text(), compiler, FLAGS, platform.machine(), library_version])
        path = next((path for path in sorted(folder.glob(f"{name}-*.so")) if is_own(path) and is_whole(path)), None)
        if path is None:
            for each in (cache_folder, folder.parent, folder):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)  # which is not the mode of those above it
            with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=folder) as temporary:
                made = Path(temporary, "preload.so")
                compile_library(compiler, made, environment)
                try_library(made, environment)
                made.chmod(0o700)
                path = folder / f"{name}-{sha256_file(made)}.so"
                os.replace(made, path)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return path


def is_own(library: Path) -> bool:
    """Return whether a library is there, and is a file that nobody but this user or root can have written."""
    try:
        found = library.lstat()
    except FileNotFoundError:
        return False
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(found.st_mode) and found.st_uid in (os.getuid(), 0) and not writable


def is_whole(library: Path) -> bool:
    """Return whether a library has the contents that its name says."""
    try:
        return library.name == f"{library.name.partition('-')[0]}-{sha256_file(library)}.so"
    except OSError:
        return False


def gnu_library_version() -> str:
    """Return the name and version of the C library if it is GNU's on Linux, else nothing."""
    if sys.platform != "linux":
        return ""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""


def compile_library(compiler: tuple[str, ...], target: Path, environment: Mapping[str, str]) -> None:
    """Compile the library; raises what `subprocess.run` raises."""
    subprocess.run(
        [*compiler, *FLAGS, "-o", str(target), str(SOURCE), "-ldl"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS_TO_COMPILE,
        env={**environment, "TMPDIR": str(target.parent)},
    )


def try_library(library: Path, environment: Mapping[str, str]) -> None:
    """Start an interpreter with the library.

    Raises:
        ValueError: if the library did not see what it should.
        subprocess.SubprocessError: if the interpreter failed.
    """
    log = library.with_suffix(".log")
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"open({str(SOURCE)!r}).close()"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS_TO_COMPILE,
        env={**environment, **preload_environment(library, log, environment)},
    )
    observed = read_log(log)
    if observed.incomplete or str(SOURCE) not in observed.opened:
        raise ValueError("the preloaded library does not see what is opened")


def preload_environment(library: Path, log: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that put the library into a process and those that it starts.

    Args:
        library: what `built_library` returned.
        log: the file to write; it need not be there. Several processes may share it.
        environment: what the process is given otherwise; libraries that it preloads already still are.
    """
    preloaded = environment.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library), RECORD: str(log.absolute())}


class RecordingSwitch:
    """Steers the preloaded library in this process; where it is not there, this does nothing.

    A process notes nothing twice. What the recorder itself looks at must therefore not be noted at all: cut out of the
    log afterwards, it would be missing when the model's code looks at it later.
    """

    __slots__ = ("_library", "is_there")

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(None) if sys.platform == "linux" else None
        self.is_there = hasattr(self._library, "hatch_lower_quiet")

    @contextlib.contextmanager
    def quiet(self, *, everywhere: bool = False) -> Iterator[None]:
        """Note only what is written, and processes, inside: of this thread, or `everywhere` in this process."""
        self._step(1, everywhere)
        try:
            yield
        finally:
            self._step(-1, everywhere)

    def _step(self, step: int, everywhere: bool) -> None:
        if self._library is not None and self.is_there:
            self._library.hatch_lower_quiet(step, int(everywhere))

    def note_time(self, path: str) -> None:
        """Note in the log that the time of what is at a path was asked for: a fork of this process has no other way."""
        if self._library is not None and self.is_there:
            self._library.hatch_lower_timed(os.fsencode(path))

    def forget(self) -> None:
        """Note again from here on what was noted before: for a log of which only the rest is read."""
        if self._library is not None and self.is_there:
            self._library.hatch_lower_forget()


def read_log(path: Path, begin: int = 0, end: int | None = None) -> Observed:
    """Return what a log says; a damaged or missing one says that it is incomplete, and no error is raised.

    Args:
        path: the log.
        begin: where in it the part of interest begins, in bytes; of what is before, only what was written and which
            processes there were counts.
        end: where that part ends; `None`: with the log.
    """
    reasons: list[str] = []
    data = b""
    try:
        if path.stat().st_mode & stat.S_ISVTX:
            reasons.append("something could not be written into the log")
        data = path.read_bytes()[:end]
    except OSError as error:
        reasons.append(f"the log could not be read: {error.strerror}")
    whole, _, torn = data.rpartition(b"\0")
    if torn:
        reasons.append("the last record is torn")
    kinds: dict[str, dict[str, None]] = {kind: {} for kind in sorted(PATH_KINDS | OTHER_KINDS)}
    opened: dict[str, None] = {}
    targets: dict[str, list[str]] = {}
    states: dict[str, dict[str, None]] = {}
    linked: dict[str, None] = {}
    before = (record for record in records(whole[:begin]) if record[0] in KEPT_KINDS)
    for kind, text, target in (*before, *records(whole[begin:])):
        state = ""
        if kind in PATH_KINDS:
            state, slash, rest = text.partition("/")
            text = slash + rest
        if kind not in kinds or (kind in PATH_KINDS and not text):
            reasons.append("the log is damaged")
            continue
        if text.rpartition("/")[2].startswith(NO_FILES):
            continue
        named = plain(text) if kind in PATH_KINDS else text
        if kind == "M" and text.endswith("/"):  # a file was looked for like a folder
            kind = "S"
        if kind in "RB" and named not in kinds["W"]:
            opened[named] = None
        if kind == "N" and text in kinds["U"]:
            continue
        if target:
            targets.setdefault(plain(target), []).append(named)
        if kind == "H":
            linked[state] = None
        elif state:
            states.setdefault(named, {})[state] = None
        kinds[kind][named] = None
    if not kinds["P"]:
        reasons.append("the preloaded library was in no process")
    opened.update(led_elsewhere(opened, targets, kinds["W"]))
    return Observed(
        opened=tuple(opened),
        written=tuple(kinds["W"] | kinds["B"]),
        missing=tuple(kinds["M"]),
        looked_at=tuple(kinds["S"]),
        links=tuple(kinds["K"]),
        listed=tuple(kinds["L"] | kinds["F"]),
        listed_by_programs=tuple(kinds["F"]),
        denied=tuple(kinds["D"]),
        variables=tuple(kinds["V"]),
        executed=tuple(kinds["X"]),
        processes=tuple(kinds["P"]),
        network=tuple(dict.fromkeys(address_text(each) for each in kinds["N"])),
        incomplete=tuple(dict.fromkeys([*reasons, *kinds["I"]])),
        timed=tuple(kinds["T"]),
        linked=tuple(linked),
        states={path: tuple(found) for path, found in states.items()},
    )


def records(data: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the text, and the path that a link led to, of each record."""
    fields = iter(os.fsdecode(data).split("\0") if data else [])
    for record in fields:
        kind = record[:1]
        yield kind.upper(), record[1:], next(fields, "") if kind in ("r", "b") else ""


def plain(path: str) -> str:
    """Return an absolute path without `.`, double slashes and a slash at its end."""
    if "//" not in path and "/./" not in path and not path.endswith(("/", "/.")):
        return path
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def led_elsewhere(
    opened: Mapping[str, None], targets: Mapping[str, Iterable[str]], written: Mapping[str, None]
) -> dict[str, None]:
    """Return the files that were read through links which have gone since, or lead to something else.

    Args:
        opened: paths that were read.
        targets: where links led to → the paths that led there.
        written: paths that were created here.
    """
    left = {path: links for path, links in targets.items() if path not in opened and path not in written}
    reached = {os.path.realpath(link) for links in left.values() for link in links if link in opened}
    return dict.fromkeys(path for path in left if path not in reached)


def address_text(record: str) -> str:
    """Return a recorded name, or the text of a socket's address: `192.0.2.1:80`, `[2001:db8::1]:80`, a path."""
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
