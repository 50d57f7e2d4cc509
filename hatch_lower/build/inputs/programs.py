"""Programs that an export started without the preloaded library in them: what they read is not known."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hatch_lower.build.inputs.preload import Observed


def unrecorded_programs(observed: Observed) -> tuple[str, ...]:
    """Return, for each program that was started without the library in it, its path and why."""
    found = []
    for path in observed.executed:
        if os.path.isdir(path):
            continue  # no program; its start failed
        try:
            program = interpreter_of(Path(path))
            if os.path.realpath(program) not in observed.processes:
                found.append(f"{path} {why_unrecorded(program)}")
        except OSError as error:
            found.append(f"{path} could not be read: {error.strerror}")
    return tuple(found)


def interpreter_of(program: Path) -> Path:
    """Return the program that the kernel starts: of a script the one in its first line."""
    for _ in range(5):  # as many as the kernel follows
        with program.open("rb") as file:
            line = file.readline(4096)
        if not line.startswith(b"#!"):
            break
        program = Path(os.fsdecode(line[2:].split(maxsplit=1)[0]))
    return program


def why_unrecorded(program: Path) -> str:
    """Return why the library was not in a program that is no script."""
    if program.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "runs with the rights of its owner, so nothing is preloaded into it"
    if is_static(program):
        return "is linked statically, so nothing is preloaded into it"
    return "was started, and the preloaded library was not in it"


def is_static(executable: Path) -> bool:
    """Return whether an executable asks for no dynamic linker, so that nothing can be preloaded into it.

    Raises:
        OSError: if it cannot be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with executable.open("rb") as file:
        try:
            return all(segment["p_type"] != "PT_INTERP" for segment in ELFFile(file).iter_segments())
        except ELFError:
            return False
