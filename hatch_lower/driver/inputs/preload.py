"""The preloaded library: notes of native code and child processes.

Python's audit events miss the reads of C, C++ and Rust, every `stat`, and other processes. `preload.c` is compiled
once into the cache and loaded with `LD_PRELOAD`; the library writes a log (`log`). Without a C compiler or the GNU C
library there is no library, and an export with reads that the audit events do not cover cannot be reused.

The library misses: system calls past the C library (some Go programs, io_uring), programs without the C library (found
by `unrecorded_programs`), files that the C library itself opens (locale, time zone, name service, shared memory),
variables read from `environ` without `getenv`, and reads without a file: clocks, random numbers, the processor.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hatch_lower.cache.locks import held_folder, remove_abandoned
from hatch_lower.canonical import digest_of, sha256_file
from hatch_lower.driver.inputs.log import Kind, read_log
from hatch_lower.driver.inputs.machine import libc_version

SOURCE = Path(__file__).with_name("preload.c")
RECORD = "HATCH_LOWER_RECORD"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared")
SECONDS_TO_COMPILE = 120
UNFINISHED = "unfinished-"  # folders of processes that compile the library
SEPARATORS = frozenset(": \t\n$")  # characters that a path in `LD_PRELOAD` cannot have


def find_c_compiler(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the command of a C compiler, first the command in `CC`; `None` without a compiler."""
    try:
        named = shlex.split(environment.get("CC", ""))
    except ValueError:  # a quotation without an end
        named = []
    for command in ([*named], *([name] for name in COMPILERS)):
        executable = shutil.which(command[0], path=environment.get("PATH")) if command else None
        if executable:
            return (executable, *command[1:])
    return None


def built_library(cache_folder: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the library for this machine, compiled and tried at the first call; `None` if that fails."""
    # The file's name has its sha256: somebody who exchanged the library could hide reads.
    folder = cache_folder.absolute() / "v1" / "preload"
    library_version = libc_version() if sys.platform == "linux" else ""
    compiler = find_c_compiler(environment)
    if not library_version or not compiler or SEPARATORS & set(str(folder)):
        return None
    try:
        remove_abandoned(folder, f"{UNFINISHED}*")
        name = digest_of([SOURCE.read_text(), compiler, FLAGS, platform.machine(), library_version])
        path = next(
            (path for path in sorted(folder.glob(f"{name}-*.so")) if is_own_library(path) and is_whole_library(path)),
            None,
        )
        if path is None:
            for new_folder in (cache_folder, folder.parent, folder):
                # `mkdir` gives the mode to the last folder alone
                new_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with held_folder(UNFINISHED, folder) as temporary:
                made = temporary / "preload.so"
                command = [*compiler, *FLAGS, "-o", str(made), str(SOURCE), "-ldl"]
                run_compiler(command, {**environment, "TMPDIR": str(temporary)})
                try_library(made, environment)
                made.chmod(0o700)
                path = folder / f"{name}-{sha256_file(made)}.so"
                os.replace(made, path)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return path


def is_own_library(library: Path) -> bool:
    """Return whether a library is there, and is a file that nobody but this user or root can have written."""
    try:
        status = library.lstat()
    except FileNotFoundError:
        return False
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and status.st_uid in (os.getuid(), 0) and not writable


def is_whole_library(library: Path) -> bool:
    try:
        return library.name == f"{library.name.partition('-')[0]}-{sha256_file(library)}.so"
    except OSError:
        return False


def run_compiler(command: Sequence[str], environment: Mapping[str, str]) -> None:
    subprocess.run(
        command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS_TO_COMPILE, env=environment
    )


def try_library(library: Path, environment: Mapping[str, str]) -> None:
    """Start an interpreter with the library; raise `ValueError` if its log lacks an expected event."""
    log = library.with_suffix(".log")
    command = [sys.executable, "-I", "-S", "-c", f"open({str(SOURCE)!r}).close()"]
    run_compiler(command, {**environment, **preload_environment(library, log, environment)})
    observed = read_log(log)
    if observed.incomplete or str(SOURCE) not in observed.opened:
        raise ValueError("the preloaded library does not see opened files")


def preload_environment(library: Path, log: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that load the library into a process and its subprocesses."""
    preloaded = environment.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library), RECORD: str(log.absolute())}


class RecordingSwitch:
    """Controls the preloaded library in this process; without the library, all calls do nothing."""

    # A process notes an event once. So the recorder's own reads must not be noted: cut out of the log afterwards, they
    # would be missing when the model's code reads the same files later.

    def __init__(self) -> None:
        library = ctypes.PyDLL(None) if sys.platform == "linux" else None
        self._library = library if hasattr(library, "hatch_lower_note") else None

    @property
    def is_there(self) -> bool:
        return self._library is not None

    @contextlib.contextmanager
    def quiet(self, *, everywhere: bool = False) -> Iterator[None]:
        """Inside the block, note only writes and processes: of this thread, or `everywhere` in this process."""
        self._step(1, everywhere)
        try:
            yield
        finally:
            self._step(-1, everywhere)

    def _step(self, step: int, everywhere: bool) -> None:
        if self._library is not None:
            self._library.hatch_lower_quiet(step, int(everywhere))

    def note(self, kind: Kind, text: str) -> None:
        """Write a fact into the log that the library cannot know."""
        # no path has a zero byte, but a name that was asked for may have one
        if self._library is not None and "\0" not in text:
            self._library.hatch_lower_note(ord(kind), os.fsencode(text))

    def forget(self) -> None:
        """Note repeated events again from now on: for a log whose earlier part is not read."""
        if self._library is not None:
            self._library.hatch_lower_forget()
