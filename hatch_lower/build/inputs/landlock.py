"""`strict = true`: the kernel refuses to read what is not declared.

Landlock (Linux 5.13) lets a process without privileges give up rights for good, for itself and all that it starts.
Here it gives up opening files for reading and folders for listing outside of declared places. Writing, executing and
`stat` stay as they were. Libraries and modules are read like any other file: `READABLE_SYSTEM`, the interpreter's
prefixes, the import path, the folder for temporary files, and the preloaded library with its log have to be among what
is allowed.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hatch_lower.build.inputs.preload import read_log

SYSTEM_NAMES = ("bin", "dev", "etc", "gnu/store", "lib", "lib32", "lib64", "nix/store", "proc", "sbin", "sys", "usr")
READABLE_SYSTEM = tuple(Path("/", name) for name in SYSTEM_NAMES)
"""Folders without which no program starts; what is in them is no model's input."""

# the same numbers on every architecture
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
SET_NO_NEW_PRIVS = 38
"""The option of `prctl`; the kernel wants it set before a process without privileges restricts itself."""


def is_available() -> bool:
    """Return whether this kernel has Landlock and lets this process use it."""
    return sys.platform == "linux" and system_call(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION) >= 1


def restrict_reads(allowed: Sequence[Path], listable: Sequence[Path] = ()) -> bool:
    """Refuse this thread, and all threads and processes that it starts later, to read anything else.

    Threads that are there already are not restricted: call it before anything is imported that starts some (torch).
    Files that are open already can still be read. It cannot be undone.

    Args:
        allowed: files, and folders with all that is in them; a link means what it leads to now. What is not there, or
            cannot be opened, is passed over: it stays forbidden if it appears later.
        listable: folders that may be listed, with all below them, but not read.

    Returns:
        False where the kernel has no Landlock; then nothing is restricted.
    """
    if not is_available():
        return False
    handled = struct.pack("=Q", READ_FILE | READ_DIR)
    rules = system_call(CREATE_RULESET, handled, len(handled), 0)
    if rules < 0:
        return False
    try:
        for path in allowed:
            allow(rules, path, READ_FILE | READ_DIR)
        for path in listable:
            allow(rules, path, READ_DIR)
        library = ctypes.CDLL(None, use_errno=True)
        return library.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and system_call(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def allow(rules: int, path: Path, rights: int) -> None:
    """Add a path to a set of rules; a file has no right to be listed."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights &= READ_FILE | (READ_DIR if stat.S_ISDIR(os.fstat(descriptor).st_mode) else 0)
        system_call(ADD_RULE, rules, RULE_PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Call the kernel; the result is negative if it refuses."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(library.syscall(ctypes.c_long(number), *converted))


def denied_paths(error: BaseException, log: Path | None) -> tuple[str, ...]:
    """Return the paths that could not be read, as far as an error or the preloaded library's log names them.

    Args:
        error: what the model's code raised; what it was raised from is looked at too.
        log: the log of the preloaded library, which knows what native code and other processes were refused. It is
            asked only if the error names no path; it also has what was refused without harm.
    """
    named = dict.fromkeys(os.fsdecode(path) for each in chain(error) for path in refused(each))
    if not named and log is not None:
        named = dict.fromkeys(read_log(log).denied)
    return tuple(named)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came from, each once."""
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [cause for cause in (each.__context__, each.__cause__) if cause is not None]


def refused(error: BaseException) -> Iterator[str | bytes]:
    """Yield the paths that an error for lack of permission names."""
    if isinstance(error, PermissionError):
        yield from (path for path in (error.filename, error.filename2) if isinstance(path, str | bytes))
