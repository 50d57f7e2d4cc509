"""What a recorder has seen, and what the interpreter itself can tell of it in the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observations:
    """What was asked for, by absolute path, in the order in which it was first asked for."""

    read: tuple[str, ...]
    """Files that were opened to be read, or mapped, whether they were there or not."""
    loaded: tuple[str, ...]
    """Files from which modules and native libraries were loaded."""
    looked: tuple[str, ...]
    """Paths of which only was asked what is there."""
    listed: tuple[str, ...]
    """Folders that were listed, but for those that the import system or a reader of metadata listed."""
    listed_by_import: tuple[str, ...]
    made: frozenset[str]
    """Files and folders that the process wrote or created before it read them."""
    folders_made: frozenset[str]
    """Those of them that are folders."""
    removed: frozenset[str]
    """Files that were there before and were removed or renamed."""
    modules: tuple[str, ...]
    """Top-level modules that were imported or looked for, sorted."""
    distributions: tuple[str, ...]
    """Normalised names of distributions that were asked for by name, sorted."""
    environment: Mapping[str, str]
    """All variables as they were in the beginning."""
    variables: Mapping[str, bool]
    """Variables that were read → whether the project's own code read them."""
    globs: Mapping[str, bool]
    """Globs of which all variables were asked for → whether the project's own code asked."""
    handed_on: bool
    """Whether a recorded process was started, which may read any variable."""
    commands: tuple[str, ...]
    """Executables that were run: absolute paths, sorted."""
    unknown: tuple[str, ...]
    """Reasons why this is not everything, sorted."""
    timed: tuple[str, ...]
    """Paths of which the time was asked."""
    linked: frozenset[tuple[int, int]]
    """Device and inode of each file that was given one more name, which changes its time of change."""
    states: Mapping[str, tuple[str, ...]]
    """Path → what was found there at each look, as `State.read` reads it; empty where nothing was there."""


def loaded_modules() -> tuple[set[str], list[str]]:
    """Return the top-level names of all modules, and the files that they were loaded from."""
    files: list[str] = []
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        origins = (getattr(spec, "origin", None), getattr(module, "__file__", None))
        files.extend(path for path in origins if isinstance(path, str) and os.path.isabs(path))
    return {name.partition(".")[0] for name in list(sys.modules)}, list(dict.fromkeys(files))


def mapped_libraries() -> list[str]:
    """Return the native libraries that are mapped now."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            fields = [line.rstrip("\n").split(None, 5) for line in maps]
    except OSError:
        return []
    found = dict.fromkeys(each[5] for each in fields if len(each) == 6 and each[5].startswith("/"))
    return [path for path in found if ".so" in os.path.basename(path) and not path.endswith(" (deleted)")]


def folders_of_finders() -> list[str]:
    """Return the folders in which the import system has looked for modules."""
    finders = [finder for finder in list(sys.path_importer_cache.values()) if finder is not None]
    folders = [getattr(finder, "path", None) for finder in finders if getattr(finder, "_path_mtime", -1) != -1]
    return sorted({os.path.abspath(folder) for folder in folders if isinstance(folder, str)})
