"""Named data of delegates, mapped into memory: each file once, read-only."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hatch_lower.errors import ProgramError
from hatch_lower.format.delegates import DataFile
from hatch_lower.format.plan import Plan

# the mapping does not need the file to stay open, and a program may have more data than files may be open
KEEP_CLOSED: Mapping[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) and os.name == "posix" else {}


def data_files(plan: Plan) -> dict[str, DataFile]:
    """Return the named data of all of a plan's delegates; a name means one file in all of them."""
    return {name: data for entry in plan.delegates for name, data in entry.data.items()}


def weight_files(plan: Plan) -> frozenset[str]:
    """Return the paths of files that hold nothing but tensors.

    They are treated as the constants are: sizes are always compared, contents only on demand. Delegates trust the
    contents of all others.
    """
    files = data_files(plan).values()
    others = {each.file for each in files if each.layout is None} | {entry.file for entry in plan.delegates}
    return frozenset(each.file for each in files) - others


def map_data(plan: Plan, folder: Path) -> Mapping[str, memoryview]:
    """Return read-only views of the named data of all of a plan's delegates, by name.

    Args:
        plan: the plan.
        folder: what the paths of the files are relative to.

    Raises:
        ProgramError: if a file cannot be mapped, or is not of the size that the plan says.
    """
    views: dict[str, memoryview] = {}
    files = data_files(plan)
    for each in files.values():
        if each.file not in views:
            views[each.file] = map_file(folder / each.file, each.size)
    return MappingProxyType({name: views[each.file] for name, each in files.items()})


def map_file(path: Path, size: int) -> memoryview:
    """Return a read-only view of a file; the mapping lives as long as a view of it."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise unusable(path, f"{found.st_size} bytes instead of {size}")
            # an empty file cannot be mapped
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **KEEP_CLOSED) if size else b""
    except (OSError, ValueError) as error:
        raise unusable(path, f"{type(error).__name__}: {error}") from error
    return memoryview(content)


def unusable(path: Path, found: str) -> ProgramError:
    """Return the error for a file of named data that is not there or not whole."""
    return ProgramError(
        "the named data of a delegate cannot be used",
        where=str(path),
        found=found,
        hint="install the distribution again; if that does not help, build its wheel again",
    )
