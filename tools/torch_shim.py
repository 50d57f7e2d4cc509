"""Make the table of the C functions between compiled partitions and libtorch, from released wheels of torch.

    pip download --no-deps --dest WHEELS torch==2.13.0        # and every other version that is to be in the table
    python tools/torch_shim.py WHEELS/torch-*.whl

Nothing is installed. Signatures are read from the headers in the wheels, what there is from libtorch itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile

from hatch_lower.backends.aoti.versions import TABLE
from hatch_lower.canonical import sha256_file

MACHINE = "x86_64"
HEADERS = re.compile(
    r"torch/include/(?:sleef|torch/csrc/inductor/aoti_torch/(?:c/\w+|generated/c_shim_(?:aten|cpu))"
    r"|torch/csrc/inductor/aoti_runtime/(?:interface|utils)|torch/csrc/stable/c/shim)\.h"
)
OTHER_DEVICES = re.compile(r"_(?:cuda|mps|xpu)\.h")
LIBTORCH = "torch/lib/libtorch_cpu.so"
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
    declared = signatures(headers)
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


def make_table(releases: Iterable[Release]) -> dict[str, Any]:
    """Return what changed from one minor version to the next; what differs within one is known of none of its."""
    minors: dict[str, list[Release]] = {}
    for release in sorted(releases, key=lambda each: tuple(map(int, each.version.split(".")))):
        minors.setdefault(".".join(release.version.split(".")[:2]), []).append(release)
    every = [release for group in minors.values() for release in group]
    return {
        "machine": MACHINE,
        "versions": list(minors),
        "wheels": {release.wheel: release.sha256 for release in every},
        "functions": changes({minor: [each.functions for each in group] for minor, group in minors.items()}),
        "interface": changes({minor: [each.interface for each in group] for minor, group in minors.items()}),
        "looked up": {
            minor: sorted(frozenset[str]().union(*(each.looked_up for each in group)))
            for minor, group in minors.items()
        },
    }


def changes(minors: Mapping[str, list[Mapping[str, str]]]) -> dict[str, list[tuple[str, str | None]]]:
    found: dict[str, list[tuple[str, str | None]]] = {}
    for name in sorted({name for group in minors.values() for release in group for name in release}):
        before = None
        for minor, group in minors.items():
            texts = {release.get(name) for release in group}
            text = texts.pop() if len(texts) == 1 else None
            if text != before:
                found.setdefault(name, []).append((minor, None if text is None else digest_of_signature(text)))
            before = text
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
    TABLE.write_text(written(make_table(map(read_release, map(Path, sys.argv[1:])))), encoding="utf-8", newline="\n")
