"""The versions of torch that a compiled library runs with, from the functions that it and libtorch call in each other.

A library calls C functions of libtorch, and libtorch looks up and calls C functions of the library. `shim.json` lists
the functions of each minor version with their signatures; `tools/torch_shim.py` makes the file from the headers of
released wheels. A version is stated only where all these functions are as in the version that compiled the library.
"""

from __future__ import annotations

import io
import json
import platform
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from hatch_lower.runtime.torch_private.unimported import numbers

TABLE = Path(__file__).with_name("shim.json")
RELEASE = re.compile(r"(\d+)\.(\d+)\.\d+(?:\+[a-z0-9.]+)?")
# Symbols that compilers refer to in every library, and that libraries may lack
NOT_NEEDED = frozenset(["_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"])

# functions that do more from a version on, with the same signature: torch 2.11 multiplies no unsigned bytes
GROWN = {"aoti_torch_cpu__int_mm_out": (2, 12)}

# first minor version of each signature, and the signature's digest; `None`: the function is absent
Changes = Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Shim:
    """The C interfaces of released versions of torch."""

    machine: str
    versions: Sequence[str]  # minor versions, oldest first
    functions: Mapping[str, Changes]  # of libtorch
    interface: Mapping[str, Changes]  # of a library that the version compiled
    looked_up: Mapping[str, Sequence[str]]  # minor version to the functions that its libtorch looks up in a library

    def versions_alike(self, built: str, library: LibrarySymbols | None) -> list[str]:
        """Return the minor versions around `built` whose libtorch runs a library of `built`; `None` is any library."""
        if built not in self.versions:
            return [built]
        place, is_alike = self.versions.index(built), partial(self._is_alike, built, library)
        older = takewhile(is_alike, reversed(self.versions[:place]))
        return [*reversed([*older]), built, *takewhile(is_alike, self.versions[place + 1 :])]

    def signature(self, table: Mapping[str, Changes], name: str, version: str) -> str | None:
        """Return the digest of a function's signature in a version; `None` if the function is absent."""
        known = self.versions[: self.versions.index(version) + 1]
        return next((signature for since, signature in reversed(table.get(name, ())) if since in known), None)

    def _is_alike(self, built: str, library: LibrarySymbols | None, other: str) -> bool:
        if library is None:
            return True
        grown = [GROWN[name] for name in sorted(library.imported & GROWN.keys())]
        if any((numbers(built) < since) != (numbers(other) < since) for since in grown):
            return False
        return all(self._is_same(self.functions, name, built, other) for name in library.imported) and all(
            name in library.exported and self._is_callable(name, built, other) for name in self.looked_up[other]
        )

    def _is_callable(self, name: str, built: str, other: str) -> bool:
        # a library answers lookups of functions unknown to its builder's torch with "not supported"
        is_unknown = self.signature(self.interface, name, built) is None
        return is_unknown or self._is_same(self.interface, name, built, other)

    def _is_same(self, table: Mapping[str, Changes], name: str, built: str, other: str) -> bool:
        signature = self.signature(table, name, built)
        return signature is not None and signature == self.signature(table, name, other)


@dataclass(frozen=True, slots=True)
class LibrarySymbols:
    """The symbols that a shared library exports, and the libraries and symbols that it needs."""

    libraries: Sequence[str]  # linked libraries
    undefined: Set[str]
    imported: Set[str]  # symbols without a version: all but those of the system
    exported: Set[str]


def read_symbols(library: bytes) -> LibrarySymbols:
    file: Any = ELFFile(io.BytesIO(library))
    needed = [str(tag.needed) for tag in file.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    versions = file.get_section_by_name(".gnu.version")
    undefined, imported, exported = set(), set(), set()
    for place, symbol in enumerate(file.get_section_by_name(".dynsym").iter_symbols()):
        name = str(symbol.name)
        if not name:
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.add(name)
            continue
        undefined.add(name)
        if versions is None or isinstance(versions.get_symbol(place)["ndx"], str):
            imported.add(name)
    return LibrarySymbols(needed, undefined, imported - NOT_NEEDED, exported)


@cache
def read_shim() -> Shim:
    data = json.loads(TABLE.read_bytes())
    return Shim(data["machine"], data["versions"], data["functions"], data["interface"], data["looked up"])


def torch_requirement(version: str, library: LibrarySymbols | None) -> str:
    """Return the requirement of a library compiled with a version of torch: `torch>=2.11,<2.16` or a minor version."""
    built = ".".join(map(str, numbers(version)))
    shim = read_shim()
    # the headers are of releases, and the lookups were recorded on a single kind of machine
    is_known = RELEASE.fullmatch(version) is not None and platform.machine() == shim.machine
    minors = shim.versions_alike(built, library) if is_known else [built]
    if len(minors) == 1:
        return f"torch=={minors[0]}.*"
    major, minor = map(int, minors[-1].split("."))
    return f"torch>={minors[0]},<{major}.{minor + 1}"


def later_functions(defined: str) -> list[str]:
    """Return the symbols that a version of libtorch looks up in a library but that this source does not define."""
    names = {name for names in read_shim().looked_up.values() for name in names}
    return sorted(name for name in names if not re.search(rf"\b{name}\(", defined))
