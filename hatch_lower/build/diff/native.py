"""Comparing ELF files: sections, functions, linked libraries, compiler, and texts such as paths."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower.build.diff.difference import NOTHING, Difference, reason_for_texts, shortened
from hatch_lower.build.diff.texts import first_difference, printable
from hatch_lower.frozen import Frozen

MAGIC = b"\x7fELF"
FILE_LIMIT = 1 << 30  # bytes of a library that is held in memory; a larger one is compared as bytes
COMMENT = ".comment"
COMPILER = f"compiler ({COMMENT})"
BUILD_ID = ".note.gnu.build-id"
TEXTS = 3
FUNCTIONS = 12
MOST_NAMES = 16  # of a function, in the mean
IDENTIFIER = "the linker's identifier alone: it is random, or of something that is not in the file"
ORDER_OF_LINKING = "the same ones in another order, as they were given to the linker"
CODE = (
    "the compiler made other code: another compiler, other flags, another instruction set, "
    "or generated sources in another order"
)
FRAME_REASONS = {
    "machine": "built on another kind of machine",
    COMPILER: "another compiler; build with the one that the wheel was built with",
}
OTHER_LIBRARIES = "other libraries on the build machine, or other code or flags"


class Library(Frozen):
    frame: Mapping[str, tuple[str, ...]]  # machine, compiler, and what the dynamic section says of loading
    sections: Mapping[str, bytes]
    sizes: Mapping[str, int]  # of sections, of those without contents too
    functions: Mapping[str, bytes]


def read_library(data: memoryview) -> Library | None:
    if bytes(data[:4]) != MAGIC or len(data) > FILE_LIMIT:
        return None
    try:
        return parse(bytes(data))
    except Exception:  # a damaged file makes the parser raise what it likes; it is compared as bytes then
        return None


def parse(data: bytes) -> Library:
    from elftools.elf.dynamic import DynamicSection  # only wheels with native code need these
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(data))
    frame: dict[str, tuple[str, ...]] = {"machine": (str(file.header.e_machine),)}
    counts: Counter[str] = Counter()
    sections: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    left = len(data)
    for section in file.iter_sections():
        name = unique(section.name, counts)
        start, sizes[name] = int(section["sh_offset"]), int(section["sh_size"])
        if section["sh_type"] != "SHT_NOBITS":
            left -= sizes[name]
            if left < 0:  # each would be copied and compared
                raise ValueError("sections that overlap")
            sections[name] = data[start : start + sizes[name]]
        if isinstance(section, DynamicSection):
            for kind in ("needed", "runpath", "rpath", "soname"):
                tags = (str(getattr(tag, kind)) for tag in section.iter_tags(f"DT_{kind.upper()}"))
                frame[f"dynamic section, {kind}"] = tuple(tags)
    frame[COMPILER] = tuple(printable(sections.get(COMMENT, b"")))
    return Library(frame, sections, sizes, dict(functions_of(file, data)))


def functions_of(file: Any, data: bytes) -> Iterator[tuple[str, bytes]]:
    table = file.get_section_by_name(".symtab") or file.get_section_by_name(".dynsym")
    counts: Counter[str] = Counter()
    left = MOST_NAMES * len(data)
    for symbol in () if table is None else table.iter_symbols():
        index, size, address = symbol["st_shndx"], int(symbol["st_size"]), int(symbol["st_value"])
        if symbol["st_info"]["type"] == "STT_FUNC" and isinstance(index, int) and size:
            section = file.get_section(index)
            start = int(section["sh_offset"]) + address - int(section["sh_addr"])
            left -= size
            if left < 0:
                raise ValueError("functions that overlap")
            yield unique(symbol.name, counts), data[start : start + size]


def unique(name: str, counts: Counter[str]) -> str:
    """Return a name, with a number from its second time on."""
    counts[name] += 1
    return name if counts[name] == 1 else f"{name} ({counts[name]})"


def compare_libraries(member: str, first: Library, second: Library, places: Mapping[str, str]) -> list[Difference]:
    differences = [*compare_frames(member, first, second, places), *compare_data(member, first, second, places)]
    sections = dict(compare_sections(first, second))
    functions = compare_functions(first, second)
    is_told = any(difference.place == COMPILER or difference.place.startswith("text ") for difference in differences)
    code = "" if is_told or not (functions or ".text" in sections) else CODE
    if sections:
        left, right = (f"{sum(side.sizes.values())} bytes" for side in (first, second))
        reason = IDENTIFIER if [*sections] == [BUILD_ID] else code
        lines = tuple(f"{name}: {what}" for name, what in sections.items())
        differences.append(Difference(member, "sections", left, right, reason, lines))
    differences += [Difference(member, *function, code) for function in functions[:FUNCTIONS]]
    if len(functions) > FUNCTIONS:
        rest = (f"{len(functions) - FUNCTIONS} more differ",)
        differences.append(Difference(member, "functions", "", "", code, rest))
    return differences


def compare_frames(member: str, first: Library, second: Library, places: Mapping[str, str]) -> Iterator[Difference]:
    for place in sorted(first.frame.keys() | second.frame.keys()):
        ours, theirs = (side.frame.get(place, ()) for side in (first, second))
        if ours != theirs:
            left, right = (", ".join(texts) or NOTHING for texts in (list_only(ours, theirs), list_only(theirs, ours)))
            reason = ORDER_OF_LINKING if left == right else FRAME_REASONS.get(place, "")
            reason = reason or reason_for_texts(left, right, places) or OTHER_LIBRARIES
            yield Difference(member, place, shortened(left), shortened(right), reason)


def compare_data(member: str, first: Library, second: Library, places: Mapping[str, str]) -> Iterator[Difference]:
    """Yield texts in data that only one of the files has, where there is a reason for that."""
    for name in sorted(first.sections.keys() & second.sections.keys()):
        if first.sections[name] == second.sections[name] or name.startswith((".text", COMMENT)):
            continue
        ours, theirs = (printable(side.sections[name]) for side in (first, second))
        pairs = zip(list_only(ours, theirs), list_only(theirs, ours), strict=False)
        reasons = [(*pair, reason) for pair in pairs if (reason := reason_for_texts(*pair, places))]
        for left, right, reason in reasons[:TEXTS]:
            yield Difference(member, f"text in {name}", shortened(left), shortened(right), reason)


def list_only(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    there = frozenset(others)
    return [text for text in texts if text not in there]


def compare_functions(first: Library, second: Library) -> list[tuple[str, str, str]]:
    """Return functions that differ, and what is to be said of each side."""
    resized: list[tuple[str, str, str]] = []
    moved: list[tuple[str, str, str]] = []
    for name in sorted(first.functions.keys() | second.functions.keys()):
        ours, theirs = first.functions.get(name), second.functions.get(name)
        place = f"function {shortened(name)}"
        if ours is None or theirs is None or len(ours) != len(theirs):
            left, right = (NOTHING if code is None else f"{len(code)} bytes" for code in (ours, theirs))
            resized.append((place, left, right))
        elif ours != theirs:
            at = first_difference(ours, theirs)
            left, right = (f"at +{at}: {code[at : at + 8].hex(' ')}" for code in (ours, theirs))
            moved.append((place, left, right))
    # what lies behind a function of another size is at another address, so the others differ by addresses alone
    return resized or moved


def compare_sections(first: Library, second: Library) -> Iterator[tuple[str, str]]:
    for name in sorted(first.sizes.keys() | second.sizes.keys()):
        if name not in second.sizes or name not in first.sizes:
            yield name, "only in the first" if name in first.sizes else "only in the second"
        elif first.sizes[name] != second.sizes[name]:
            yield name, f"{first.sizes[name]} and {second.sizes[name]} bytes"
        elif first.sections.get(name) != second.sections.get(name):
            pair = zip(first.sections.get(name, b""), second.sections.get(name, b""), strict=False)
            yield name, f"{sum(left != right for left, right in pair)} of {first.sizes[name]} bytes differ"
