"""Comparing ELF files: sections, functions, linked libraries, compiler, and texts such as paths."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hatch_lower.build.diff.difference import NOTHING, Difference, shortened
from hatch_lower.build.diff.reasons import reason_for_texts
from hatch_lower.build.diff.texts import first_difference, printable

MAGIC = b"\x7fELF"
COMMENT = ".comment"
COMPILER = f"compiler ({COMMENT})"
BUILD_ID = ".note.gnu.build-id"
FILE_LIMIT = 1 << 30
SECTION_LIMIT = 1 << 26
"""Bytes of a section that is held in memory; of a larger one only the size is compared here."""
TEXTS = 3
FUNCTIONS = 12
IDENTIFIER = "the linker's identifier alone: it is random, or of something that is not in the file"
ORDER_OF_LINKING = "the same ones in another order, as they were given to the linker"
CODE = (
    "the compiler made other code: another compiler, other flags, another instruction set, "
    "or generated sources in another order"
)


@dataclass(frozen=True, slots=True)
class Library:
    """An ELF file.

    Args:
        machine: `EM_X86_64`.
        sections: name to contents; a name that comes again has a number.
        sizes: name to size, for those without contents too.
        needed: entries of the dynamic section that say what is loaded, and from where.
        functions: symbol to place and size of its code in the file; a symbol that comes again has a number.
        data: the file.
    """

    machine: str
    sections: Mapping[str, bytes]
    sizes: Mapping[str, int]
    needed: Mapping[str, tuple[str, ...]]
    functions: Mapping[str, tuple[int, int]]
    data: memoryview

    def code(self, name: str) -> bytes:
        """Return the code of a function."""
        start, size = self.functions[name]
        return bytes(self.data[start : start + size])


def read_library(data: memoryview) -> Library | None:
    """Return what an ELF file holds, or `None` if it is none, or damaged."""
    if bytes(data[:4]) != MAGIC or len(data) > FILE_LIMIT:
        return None
    try:
        return parse(data)
    except Exception:  # a damaged file makes the parser raise what it likes; it is compared as bytes then
        return None


def parse(data: memoryview) -> Library:
    """Return what an ELF file holds."""
    from elftools.elf.dynamic import DynamicSection  # only wheels with native code need these
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(data))
    counts: Counter[str] = Counter()
    sections: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    needed: dict[str, tuple[str, ...]] = {}
    for section in file.iter_sections():
        name = unique(section.name, counts)
        sizes[name] = int(section["sh_size"])
        if section["sh_type"] != "SHT_NOBITS" and sizes[name] <= min(SECTION_LIMIT, len(data)):
            start = int(section["sh_offset"])
            sections[name] = bytes(data[start : start + sizes[name]])
        if isinstance(section, DynamicSection):
            for kind in ("needed", "runpath", "rpath", "soname"):
                tags: Any = section.iter_tags(f"DT_{kind.upper()}")
                needed[kind] = tuple(str(getattr(tag, kind)) for tag in tags)
    return Library(str(file.header.e_machine), sections, sizes, needed, functions_of(file), data)


def functions_of(file: Any) -> dict[str, tuple[int, int]]:
    """Return where the code of each function is that a symbol names, and its size."""
    table = file.get_section_by_name(".symtab") or file.get_section_by_name(".dynsym")
    counts: Counter[str] = Counter()
    functions: dict[str, tuple[int, int]] = {}
    for symbol in () if table is None else table.iter_symbols():
        index, size, address = symbol["st_shndx"], int(symbol["st_size"]), int(symbol["st_value"])
        if symbol["st_info"]["type"] != "STT_FUNC" or not isinstance(index, int) or not size:
            continue
        section = file.get_section(index)
        start = int(section["sh_offset"]) + address - int(section["sh_addr"])
        functions[unique(symbol.name, counts)] = start, size
    return functions


def unique(name: str, counts: Counter[str]) -> str:
    """Return a name, with a number from its second time on."""
    counts[name] += 1
    return name if counts[name] == 1 else f"{name} ({counts[name]})"


def compare_libraries(member: str, first: Library, second: Library, places: Mapping[str, str]) -> list[Difference]:
    """Return in which texts, sections and functions two ELF files differ."""
    frames = list(compare_frames(member, first, second, places))
    texts = list(compare_texts_of(member, first, second, places))
    sections = dict(compare_sections(first, second))
    functions = compare_functions(first, second)
    is_told = bool(texts) or any(each.place == COMPILER for each in frames)
    code = "" if is_told or not (functions or ".text" in sections) else CODE
    found = [*frames, *texts]
    if sections:
        one, other = (f"{sum(each.sizes.values())} bytes" for each in (first, second))
        reason = IDENTIFIER if [*sections] == [BUILD_ID] else code
        lines = tuple(f"{name}: {what}" for name, what in sections.items())
        found.append(Difference(member, "sections", one, other, reason, lines))
    found += [Difference(member, place, one, other, code) for place, one, other in functions[:FUNCTIONS]]
    if len(functions) > FUNCTIONS:
        more = f"{len(functions) - FUNCTIONS} more differ"
        found.append(Difference(member, "functions", "", "", code, (more,)))
    return found


def compare_frames(member: str, first: Library, second: Library, places: Mapping[str, str]) -> Iterator[Difference]:
    """Yield differences in machine, compiler, and linked libraries."""
    if first.machine != second.machine:
        yield Difference(member, "machine", first.machine, second.machine, "built on another kind of machine")
    comments = [" ".join(printable(each.sections.get(COMMENT, b""))) or NOTHING for each in (first, second)]
    if comments[0] != comments[1]:
        reason = "another compiler; build with the one that the wheel was built with"
        yield Difference(member, COMPILER, comments[0], comments[1], reason)
    for kind in sorted(first.needed.keys() | second.needed.keys()):
        one, other = first.needed.get(kind, ()), second.needed.get(kind, ())
        if one != other:
            left, right = (", ".join(each) or NOTHING for each in (list_only(one, other), list_only(other, one)))
            reason = ORDER_OF_LINKING if left == right else reason_for_texts(left, right, places)
            reason = reason or "other libraries on the build machine, or other code or flags"
            yield Difference(member, f"dynamic section, {kind}", shortened(left), shortened(right), reason)


def compare_texts_of(member: str, first: Library, second: Library, places: Mapping[str, str]) -> Iterator[Difference]:
    """Yield texts in data that only one of the files has, where there is a reason for that."""
    for name in sorted(first.sections.keys() & second.sections.keys()):
        one, other = first.sections[name], second.sections[name]
        if one == other or name.startswith((".text", COMMENT)):
            continue
        texts = printable(one), printable(other)
        lost, added = (list_only(texts[at], texts[1 - at]) for at in (0, 1))
        pairs = zip(lost, added, strict=False)
        told = [(*pair, reason) for pair in pairs if (reason := reason_for_texts(*pair, places))]
        for left, right, reason in told[:TEXTS]:
            yield Difference(member, f"text in {name}", shortened(left), shortened(right), reason)


def list_only(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the texts that are not among the others, in their order."""
    there = frozenset(others)
    return [text for text in texts if text not in there]


def compare_functions(first: Library, second: Library) -> list[tuple[str, str, str]]:
    """Return functions that differ, and what is to be said of each side.

    Where some have other sizes, what lies behind them is at another address, so functions of the same size differ by
    addresses alone; they are left out then.
    """
    found: list[tuple[str, str, str]] = []
    moved: list[tuple[str, str, str]] = []
    for name in sorted(first.functions.keys() | second.functions.keys()):
        one, other = first.functions.get(name), second.functions.get(name)
        place = f"function {shortened(name)}"
        if one is None or other is None:
            left, right = (NOTHING if each is None else f"{each[1]} bytes" for each in (one, other))
            found.append((place, left, right))
        elif one[1] != other[1]:
            found.append((place, f"{one[1]} bytes", f"{other[1]} bytes"))
        elif (code := first.code(name)) != (again := second.code(name)):
            at = first_difference(code, again)
            left, right = (f"at +{at}: {each[at : at + 8].hex(' ')}" for each in (code, again))
            moved.append((place, left, right))
    return found or moved


def compare_sections(first: Library, second: Library) -> Iterator[tuple[str, str]]:
    """Yield the name of each section that differs, and how."""
    for name in sorted(first.sizes.keys() | second.sizes.keys()):
        if name not in second.sizes or name not in first.sizes:
            yield name, "only in the first" if name in first.sizes else "only in the second"
        elif first.sizes[name] != second.sizes[name]:
            yield name, f"{first.sizes[name]} and {second.sizes[name]} bytes"
        elif first.sections.get(name) != second.sections.get(name):
            pair = zip(first.sections.get(name, b""), second.sections.get(name, b""), strict=False)
            yield name, f"{sum(one != other for one, other in pair)} of {first.sizes[name]} bytes differ"
