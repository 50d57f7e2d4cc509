"""Comparing safetensors: which tensor differs, and how. Contents are read in pieces."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hatch_lower.build.diff.difference import NOTHING, Difference, Known
from hatch_lower.build.diff.documents import compare_documents
from hatch_lower.build.diff.reasons import reason_for_numbers, relative
from hatch_lower.build.diff.texts import first_difference
from hatch_lower.build.diff.window import Window, pieces

CONSTANTS = "/constants.safetensors"
HEADER_LIMIT = 100_000_000
FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b"}
FORMATS |= {"U64": "Q", "U32": "I", "U16": "H", "U8": "B", "BOOL": "?", "BF16": "H"}
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
SHOWN = 3
LOOKED_AT = 1 << 16
"""Bytes, from where a tensor differs, whose numbers are compared."""


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A safetensors file.

    Args:
        entries: name to `dtype`, `shape` and `data_offsets`.
        metadata: what the file says besides.
        data: where the tensors' bytes are.
    """

    entries: Mapping[str, Mapping[str, Any]]
    metadata: Any
    data: Window


def header_of(window: Window) -> tuple[Any, int] | None:
    """Return the JSON value that a file begins with, after eight bytes of its length, and where it ends."""
    size = int.from_bytes(window.read_at(0, 8), "little")
    if window.size < 10 or not 2 <= size <= min(window.size - 8, HEADER_LIMIT):
        return None
    try:
        return json.loads(window.read_at(8, size)), 8 + size
    except (ValueError, RecursionError):
        return None


def read_tensor_file(window: Window) -> TensorFile | None:
    """Return a safetensors file, or `None` if it is none."""
    found = header_of(window)
    if found is None or not isinstance(found[0], dict):
        return None
    entries = {name: entry for name, entry in found[0].items() if name != "__metadata__"}
    size = window.size - found[1]
    if not all(is_entry(each, size) for each in entries.values()):
        return None
    return TensorFile(entries, found[0].get("__metadata__"), window.part(found[1], size))


def is_entry(entry: Any, size: int) -> bool:
    """Return whether a value of a header describes a tensor in the `size` bytes behind it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return False
    natural = all(type(each) is int and each >= 0 for each in [*shape, *offsets])
    return natural and offsets[0] <= offsets[1] <= size


def compare_tensors(
    member: str, first: TensorFile, second: TensorFile, known: Known, *, drawn: bool
) -> list[Difference]:
    """Return the tensors in which two files differ.

    Args:
        member: the file.
        first: the file in one wheel.
        second: the file in the other.
        known: of the wheels.
        drawn: whether the tensors are weights, not computed from weights.
    """
    found = compare_documents(member, metadata_of(first), metadata_of(second), known)
    others = {known.digests.get(name, name): entry for name, entry in second.entries.items()}
    for name in sorted(first.entries.keys() | others.keys()):
        one, other = first.entries.get(name), others.get(name)
        place = f"tensor {known.names.get(name, name)}"
        if one is None or other is None:
            found.append(Difference(member, place, form_of(one), form_of(other)))
        elif name in known.stored and name not in second.entries and not member.endswith(CONSTANTS):
            continue  # said of the file of constants
        elif (one["dtype"], one["shape"]) != (other["dtype"], other["shape"]):
            found.append(Difference(member, place, form_of(one), form_of(other), "another model, or other settings"))
        else:
            found += compare_contents(member, place, one, other, (first.data, second.data), drawn)
    if not found and first.entries.keys() == second.entries.keys() and [*first.entries] != [*second.entries]:
        found.append(Difference(member, "order of the header", ", ".join(first.entries), ", ".join(second.entries)))
    return found


def metadata_of(file: TensorFile) -> dict[str, Any]:
    """Return what a header says besides its tensors."""
    return {} if file.metadata is None else {"__metadata__": file.metadata}


def form_of(entry: Mapping[str, Any] | None) -> str:
    """Return a tensor's dtype and shape."""
    return NOTHING if entry is None else f"{entry['dtype']} {entry['shape']}"


def compare_contents(
    member: str,
    place: str,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    data: tuple[Window, Window],
    drawn: bool,
) -> Iterator[Difference]:
    """Yield a difference if two tensors of one form have other contents; a part that differs is looked at."""
    one, other = (
        window.part(entry["data_offsets"][0], entry["data_offsets"][1] - entry["data_offsets"][0])
        for window, entry in zip(data, (first, second), strict=True)
    )
    with one, other:
        for start, left, right in pieces(one, other):
            begin = first_difference(left, right) // LOOKED_AT * LOOKED_AT
            looked_at = left[begin : begin + LOOKED_AT], right[begin : begin + LOOKED_AT]
            yield describe(member, place, str(first["dtype"]), looked_at, start + begin, drawn)
            return


def describe(member: str, place: str, dtype: str, pair: tuple[bytes, bytes], start: int, drawn: bool) -> Difference:
    """Return what is to be said of two pieces of a tensor that differ."""
    numbers = [decoded(dtype, each) for each in pair]
    different = [at for at, (one, other) in enumerate(zip(*numbers, strict=False)) if not is_equal(one, other)]
    if not different:
        texts = [each[:16].hex(" ") for each in pair]
        return Difference(member, place, texts[0], texts[1], "", ("equal numbers of other bits, or an unknown dtype",))
    count = len(different)
    largest = max(relative(float(numbers[0][at]), float(numbers[1][at])) for at in different)
    texts = [", ".join(f"{side[at]:.9g}" for at in different[:SHOWN]) + ", …" * (count > SHOWN) for side in numbers]
    looked = len(numbers[0])
    where = "elements" if start == 0 else f"elements from byte {start} on"
    line = f"{count} of {looked} {where} differ, by up to {largest:.2g} of their size"
    reason = reason_for_numbers(count / looked, largest, drawn=drawn) if dtype in FLOATS else ""
    return Difference(member, place, texts[0], texts[1], reason, (line,))


def decoded(dtype: str, data: bytes) -> list[float]:
    """Return the numbers in bytes; none for a dtype that is not known here."""
    letter = FORMATS.get(dtype)
    if letter is None:
        return []
    size = struct.calcsize(f"<{letter}")
    numbers = [each for (each,) in struct.iter_unpack(f"<{letter}", data[: len(data) // size * size])]
    if dtype == "BF16":
        return [struct.unpack("<f", struct.pack("<I", each << 16))[0] for each in numbers]
    return numbers


def is_equal(first: float, second: float) -> bool:
    """Return whether two numbers are equal, or both are none."""
    return first == second or (math.isnan(first) and math.isnan(second))
