"""Comparing the tensors of safetensors files, in pieces."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hatch_lower.driver.diff.archive import equal_bytes
from hatch_lower.driver.diff.difference import NOTHING, Difference, Known, compare_documents, reason_for_numbers
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode
from hatch_lower.format.constants import CONSTANTS_FILES, DATA_MAP_BYTES, TensorEntry, header_span, tensors_begin
from hatch_lower.format.values import DTYPES
from hatch_lower.frozen import Frozen

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
# Safetensors' name of a dtype to torch's name; a complex number is a pair of real numbers
NAMES = {stored.safetensors: name for name, stored in DTYPES.items()} | {"C64": "float32"}
PIECE = 1 << 20
SHOWN = 3


class Header(NamedTuple):
    """The JSON value at the beginning of a file, and its span."""

    value: object
    begin: int
    end: int


class TensorFile(Frozen):
    entries: Mapping[str, TensorEntry]
    metadata: object
    data: memoryview

    def contents(self, name: str) -> memoryview:
        return self.data[slice(*self.entries[name].data_offsets)]


def header_of(data: memoryview) -> Header | None:
    # safetensors, and delegates whose files begin like safetensors
    span = header_span(data, tensors_begin(bytes(data[:DATA_MAP_BYTES])))
    if span is None:
        return None
    try:
        return Header(json.loads(bytes(data[slice(*span)])), *span)
    except (ValueError, RecursionError):
        return None


def read_tensor_file(data: memoryview) -> TensorFile | None:
    header, _, end = header_of(data) or Header(None, 0, 0)
    if not isinstance(header, dict):
        return None
    metadata = header.pop("__metadata__", None)
    try:
        entries: Mapping[str, TensorEntry] = decode(Mapping[str, TensorEntry], header, "")
    except ProgramError:  # another kind of document
        return None
    spans = (entry.data_offsets for entry in entries.values())
    whole = all(first <= last <= len(data) - end for first, last in spans)
    return TensorFile(entries, metadata, data[end:]) if whole else None


def compare_tensors(
    member: str, first: TensorFile, second: TensorFile, known: Known, *, drawn: bool
) -> list[Difference]:
    """Return the tensors in which two files differ; `drawn`: the tensors are weights."""
    differences = compare_documents(member, metadata_of(first), metadata_of(second), known)
    ours = {known.labelled(name): name for name in first.entries}
    others = {known.labelled(name, is_second=True): name for name in second.entries}
    for label in sorted(ours.keys() | others.keys()):
        name, counterpart = ours.get(label, label), others.get(label, label)
        left = first.entries[name] if label in ours else None
        right = second.entries[counterpart] if label in others else None
        place = f"tensor {known.names.get(name, name)}"
        if left is None or right is None:
            differences.append(Difference(member, place, tensor_form_text(left), tensor_form_text(right)))
        elif name in known.stored and name not in second.entries and not member.endswith(CONSTANTS_FILES):
            continue  # reported for the file of constants
        elif (left.dtype, left.shape) != (right.dtype, right.shape):
            reason = "another model, or other settings"
            differences.append(Difference(member, place, tensor_form_text(left), tensor_form_text(right), reason))
        else:
            contents = first.contents(name), second.contents(counterpart)
            differences += compare_contents(member, place, left.dtype, *contents, drawn=drawn)
    if not differences and first.entries.keys() == second.entries.keys() and [*first.entries] != [*second.entries]:
        orders = (", ".join(first.entries), ", ".join(second.entries))
        differences.append(Difference(member, "order of the header", *orders))
    return differences


def metadata_of(file: TensorFile) -> dict[str, object]:
    return {} if file.metadata is None else {"__metadata__": file.metadata}


def tensor_form_text(entry: TensorEntry | None) -> str:
    return NOTHING if entry is None else f"{entry.dtype} {list(entry.shape)}"


def compare_contents(
    member: str, place: str, dtype: str, first: memoryview, second: memoryview, *, drawn: bool
) -> Iterator[Difference]:
    if equal_bytes(first, second):
        return
    change = compare_numbers(dtype, first, second)
    if not change.different:
        left, right = (bytes(side[:16]).hex(" ") for side in (first, second))
        yield Difference(member, place, left, right, "", (change.text(),))
        return
    share = change.different / change.total
    reason = reason_for_numbers(share, change.relative, drawn=drawn) if dtype in FLOATS else ""
    yield Difference(member, place, *change.sides(), reason, (change.text(),))


@dataclass(slots=True)
class NumberChange:
    """The numbers in which two tensors of equal dtype and shape differ."""

    dtype: str  # in safetensors' spelling
    total: int = 0
    different: int = 0  # 0 if only bits differ (-0, NaN), or the dtype is unknown
    largest: float = 0.0  # the largest difference; infinite if a number is not finite
    relative: float = 0.0  # the largest difference divided by the larger number of the pair
    first: tuple[float, ...] = ()  # the first three different numbers of the first tensor
    second: tuple[float, ...] = ()

    def text(self) -> str:
        if not self.different:
            return "equal numbers with different bits, or an unknown dtype"
        return (
            f"{self.different:,} of {self.total:,} numbers differ, by up to {self.largest:.2g}, "
            f"or {self.relative:.2g} of their size"
        )

    def sides(self) -> tuple[str, str]:
        more = ", …" * (self.different > SHOWN)
        left, right = (", ".join(f"{value:.9g}" for value in side) + more for side in (self.first, self.second))
        return left, right


def compare_numbers(dtype: str, first: memoryview, second: memoryview) -> NumberChange:
    change = NumberChange(dtype)
    name = NAMES.get(dtype)
    if name is None:
        return change
    size = DTYPES[name].size
    end = min(len(first), len(second)) // size * size
    change.total = end // size
    for start in range(0, end, PIECE):
        left, right = (bytearray(side[start : min(start + PIECE, end)]) for side in (first, second))
        if left != right:
            compare_piece(name, left, right, change)
    return change


def compare_piece(name: str, first: bytearray, second: bytearray, change: NumberChange) -> None:
    import torch  # imported only if numbers differ

    exact = [torch.frombuffer(side, dtype=getattr(torch, name)) for side in (first, second)]
    left, right = (side.to(torch.float64) for side in exact)
    different = (left != right) & ~(left.isnan() & right.isnan())
    if name in ("int64", "uint64"):  # float64 cannot represent all integers
        different = exact[0] != exact[1]
    left, right = left[different], right[different]
    if not len(left):
        return
    change.different += len(left)
    missing = SHOWN - len(change.first)
    change.first += tuple(left[:missing].tolist())
    change.second += tuple(right[:missing].tolist())
    distance = (left - right).abs()
    larger = torch.maximum(left.abs(), right.abs())
    # a number that is not finite is infinitely far from every other number
    change.largest = max(change.largest, float(distance.nan_to_num(math.inf, math.inf).max()))
    change.relative = max(change.relative, float((distance / larger).nan_to_num(math.inf, math.inf).max()))
