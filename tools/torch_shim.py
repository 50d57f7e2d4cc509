"""Make the table of the C functions between compiled partitions and libtorch, from released wheels of torch.

    pip download --no-deps --dest WHEELS torch==2.13.0        # and every other version that is to be in the table
    python tools/torch_shim.py WHEELS/torch-*.whl

Nothing is installed. Signatures are read from the headers in the wheels, what there is from libtorch itself. Without a
wheel among the arguments, a minor version stays in the table as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile

from hatch_lower.backends.aoti.versions import TABLE
from hatch_lower.canonical import sha256_file

MACHINE = "x86_64"
HEADERS = re.compile(
    r"torch/include/(?:sleef|torch/csrc/inductor/aoti_torch/(?:c/\w+|generated/c_shim_(?:aten|cpu|cuda))"
    r"|torch/csrc/inductor/aoti_runtime/(?:interface|utils)|torch/csrc/stable/c/shim)\.h"
)
OTHER_DEVICES = re.compile(r"_(?:mps|xpu)\.h")
LIBTORCH = "torch/lib/libtorch_cpu.so"
LIBTORCH_CUDA = "torch/lib/libtorch_cuda.so"  # absent from builds for the CPU, which have its headers
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
ALIAS = re.compile(r"\busing (\w+) = ([^;]+);|\btypedef ([^;{}()]+?)\s*\b(\w+);")
STRUCT = re.compile(r"\bstruct (\w+) (\{[^{}]*\});")
FUNCTION = re.compile(r"\b(?:AOTI_TORCH_EXPORT|AOTI_API)\s+([^();{}]+?)\b(\w+)\(([^{};]*)\)\s*;")
# Functions on vectors: those of one machine, for any of its instruction sets
VECTORS = re.compile(
    r"\bSLEEF_IMPORT (?:SLEEF_CONST )?([^();]*__m\d+\w*) (Sleef_[a-z0-9]+?[fd](?:2|4|8|16)(?:_u\d+)?)\(([^{};]*)\);"
)
TOKEN = re.compile(r"\w+(?:::\w+)*|\S")
TYPE_WORDS = frozenset(
    ["bool", "char", "const", "double", "float", "int", "long", "short", "signed", "struct", "unsigned", "void"]
)
QUALIFIERS = frozenset(["const", "struct"])
# Names that libtorch looks up in a library
LOOKED_UP = re.compile(rb"(?<=\0)AOTInductor\w+(?=\0)")


@dataclass(frozen=True, slots=True)
class Release:
    """What one wheel says."""

    version: str
    wheel: str
    sha256: str
    functions: Mapping[str, str]  # that libtorch has, to their signatures
    interface: Mapping[str, str]  # that a library has, to their signatures
    looked_up: frozenset[str]  # what its loader asks a library for


def read_release(path: Path) -> Release:
    with ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        headers = [
            wheel.read(name).decode()
            for name in sorted(wheel.namelist())
            if HEADERS.fullmatch(name) and not OTHER_DEVICES.search(name)
        ]
        libtorch = Path(wheel.extract(LIBTORCH, folder))
        exported, looked_up = exported_names(libtorch), set(LOOKED_UP.findall(libtorch.read_bytes()))
        has_cuda = LIBTORCH_CUDA in wheel.namelist()
        exported |= exported_names(Path(wheel.extract(LIBTORCH_CUDA, folder))) if has_cuda else set()
    declared = signatures(headers)
    exported |= set() if has_cuda else {name for name in declared if "_cuda_" in name}
    version = path.name.split("-")[1]
    return Release(
        version=version.partition("+")[0],
        wheel=path.name,
        sha256=sha256_file(path),
        functions={name: text for name, text in declared.items() if name in exported},
        interface={name: text for name, text in declared.items() if name.startswith("AOTInductor")},
        looked_up=frozenset(name.decode() for name in looked_up),
    )


def exported_names(library: Path) -> set[str]:
    # pyelftools would take minutes for half a million symbols
    with library.open("rb") as stream:
        file: Any = ELFFile(stream)
        symbols = file.get_section_by_name(".dynsym").data()
        names = file.get_section_by_name(".dynstr").data()
    found = set()
    for place, _info, _other, section, _value, _size in struct.iter_unpack("<IBBHQQ", symbols):
        if section and names.startswith((b"aoti_", b"torch_", b"Sleef_"), place):
            found.add(names[place : names.index(b"\0", place)].decode())
    return found


def signatures(headers: Iterable[str]) -> dict[str, str]:
    """Return the functions that headers declare, to return type and parameter types without any name."""
    text = "\n".join(DIRECTIVE.sub("", COMMENT.sub("", header)) for header in headers)
    types = {name or other: value or old for name, value, old, other in ALIAS.findall(text)}
    types |= {name: f"struct {' '.join(body.split())}" for name, body in STRUCT.findall(text)}
    found: dict[str, str] = {}
    for result, name, parameters in FUNCTION.findall(text) + VECTORS.findall(text):
        listed = [resolved(type_of(parameter), types) for parameter in split(parameters)]
        signature = f"{resolved(TOKEN.findall(result), types)}({', '.join(listed)})"
        if found.setdefault(name, signature) != signature:
            sys.exit(f"{name} is declared twice: {found[name]} and {signature}")
    return found


def split(parameters: str) -> Iterator[str]:
    depth, start = 0, 0
    for place, character in enumerate(parameters):
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and not depth:
            yield parameters[start:place]
            start = place + 1
    if parameters[start:].strip() not in ("", "void"):
        yield parameters[start:]


def type_of(parameter: str) -> list[str]:
    tokens = TOKEN.findall(parameter.partition("=")[0])
    is_named = "(" not in tokens and tokens[-1].isidentifier() and tokens[-1] not in TYPE_WORDS
    return tokens[:-1] if is_named and set(tokens[:-1]) - QUALIFIERS else tokens


def resolved(tokens: Iterable[str], types: Mapping[str, str]) -> str:
    """Return a type with what its names stand for, as far as the headers say it: a changed `struct` is another type."""
    found = [
        resolved(TOKEN.findall(types[token]), {name: text for name, text in types.items() if name != token})
        if token in types
        else token
        for token in tokens
    ]
    return " ".join(found)


def make_table(releases: Iterable[Release], before: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return what changed from one minor version to the next; what differs within one is known of none of its.

    Minor versions of the table `before` stay as they are, unless a release of theirs is given.
    """
    minors: dict[str, list[Release]] = {}
    for release in releases:
        minors.setdefault(minor_of(release.version), []).append(release)
    kept = [minor for minor in before.get("versions", ()) if minor not in minors]
    wheels = {name: digest for name, digest in before.get("wheels", {}).items() if minor_of(name.split("-")[1]) in kept}
    wheels |= {release.wheel: release.sha256 for group in minors.values() for release in group}
    looked_up = {minor: before["looked up"][minor] for minor in kept}
    looked_up |= {
        minor: sorted(frozenset[str]().union(*(each.looked_up for each in group))) for minor, group in minors.items()
    }
    versions = sorted([*minors, *kept], key=by_number)
    functions = {minor: digests_at(before, "functions", minor) for minor in kept}
    interface = {minor: digests_at(before, "interface", minor) for minor in kept}
    for minor, group in minors.items():
        functions[minor] = digests([each.functions for each in group])
        interface[minor] = digests([each.interface for each in group])
    return {
        "machine": MACHINE,
        "versions": versions,
        "wheels": dict(
            sorted(wheels.items(), key=lambda entry: [int(part) for part in re.findall(r"\d+", entry[0].split("-")[1])])
        ),
        "functions": changes({minor: functions[minor] for minor in versions}),
        "interface": changes({minor: interface[minor] for minor in versions}),
        "looked up": {minor: looked_up[minor] for minor in versions},
    }


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


def numbers_of(wheel: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", wheel.split("-")[1])))


def by_number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def digests(group: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the digests of signatures that are the same in all releases of a minor version."""
    first, *others = group
    return {
        name: digest_of_signature(text)
        for name, text in first.items()
        if all(other.get(name) == text for other in others)
    }


def digests_at(table: Mapping[str, Any], part: str, minor: str) -> dict[str, str]:
    """Return the digests of signatures in a part of a table, `functions` or `interface`, for a minor version."""
    known = {}
    for name, entries in table[part].items():
        before = [digest for since, digest in entries if by_number(since) <= by_number(minor)]
        if before and before[-1] is not None:
            known[name] = before[-1]
    return known


def changes(minors: Mapping[str, Mapping[str, str]]) -> dict[str, list[tuple[str, str | None]]]:
    found: dict[str, list[tuple[str, str | None]]] = {}
    for name in sorted({name for known in minors.values() for name in known}):
        before = None
        for minor, known in minors.items():
            digest = known.get(name)
            if digest != before:
                found.setdefault(name, []).append((minor, digest))
            before = digest
    return found


def digest_of_signature(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def written(table: Mapping[str, Any]) -> str:
    """Return the table as JSON with one line for each function."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    table = make_table(map(read_release, map(Path, sys.argv[1:])), json.loads(TABLE.read_text(encoding="utf-8")))
    TABLE.write_text(written(table), encoding="utf-8", newline="\n")
