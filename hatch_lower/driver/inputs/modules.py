"""Importable modules in listings of folders: Python's own rules, without the import system.

The import system lists whole folders. Only the importable names of a listing matter: a README beside a module is no
input, a module that hides another module is.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FrozenImporter
from typing import NamedTuple

FOLDER = "/"  # stands for a suffix where a name is that of a folder
SUFFIX_RANKS = {suffix: rank for rank, suffix in enumerate((*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES))}
INITIAL = tuple(f"__init__{suffix}" for suffix in SUFFIX_RANKS)


class Listing(NamedTuple):
    names: Sequence[str]  # sorted, without `__pycache__`
    # name that can be imported → suffix of the file that would be taken, or `/` for a folder alone
    modules: dict[str, str]
    folders: frozenset[str]  # links to folders too


def list_folder(path: str) -> Listing | None:
    names, modules, folders = [], dict[str, str](), set[str]()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name == "__pycache__":
                    continue
                names.append(name)
                if is_folder(entry):
                    folders.add(name)
                stem, dot, rest = name.partition(".")
                suffix = f".{rest}"
                if not dot and name in folders:
                    modules.setdefault(name, FOLDER)
                elif stem and rank_of(suffix) < rank_of(modules.get(stem, FOLDER)):  # a name without a stem is hidden
                    modules[stem] = suffix
    except OSError:
        return None
    names.sort()
    return Listing(names, modules, frozenset(folders))


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def rank_of(suffix: str) -> int:
    # the lower the rank, the earlier the import system tries the suffix; a folder comes last, as it is no module
    return SUFFIX_RANKS.get(suffix, len(SUFFIX_RANKS))


def list_archive(path: str) -> Listing | None:
    """Return the top level of a zip archive of modules; `None` for another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    modules: dict[str, str] = {}
    for member in members:
        top, _, below = member.partition("/")
        stem, dot, rest = top.partition(".")
        if below in INITIAL and not dot:
            modules[top] = FOLDER
        elif not below and f".{rest}" in SUFFIX_RANKS:
            modules.setdefault(stem, f".{rest}")
    return Listing(sorted({member.partition("/")[0] for member in members}), modules, frozenset())


def importable_kinds(path: str, listing: Listing, *, namespaces: bool) -> list[str]:
    """Return the importable names of a folder, sorted: each name, and the kind of file that an import takes."""
    # In an entry of the search path, folders without `__init__` do not count: they hide no module there, and each top-
    # level name that was looked for is an input of its own.
    kinds = []
    for name, suffix in listing.modules.items():
        if name in listing.folders and is_package(f"{path}/{name}"):
            kinds.append(f"{name} package")
        elif suffix != FOLDER or namespaces:
            kinds.append(f"{name} {suffix}")
    return sorted(kinds)


def is_package(path: str) -> bool:
    return any(os.path.isfile(f"{path}/{name}") for name in INITIAL)


def is_built_in(name: str) -> bool:
    return name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None


def places_of(name: str, entries: Sequence[str], list_entry: Callable[[str], Listing | None]) -> list[tuple[str, str]]:
    """Return the places of a top-level module: entry and path; several for a namespace package, no place if missing."""
    portions = []
    for entry in entries:
        listing = list_entry(entry)
        suffix = listing.modules.get(name) if listing is not None else None
        if listing is None or suffix is None:
            continue
        place = f"{entry}/{name}"
        if is_package(place) if name in listing.folders else suffix == FOLDER:  # in a folder, or in an archive
            return [(entry, place)]
        if suffix != FOLDER:
            return [(entry, place + suffix)]
        portions.append((entry, place))
    return portions
