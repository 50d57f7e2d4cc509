"""Comparing the tensors of safetensors files, in pieces.

Wheels as archives: contents, digests and attributes of their members.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hatch_lower.canonical import sha256_stream
from hatch_lower.driver.diff.difference import NOTHING, Difference, Known, compare_documents, reason_for_numbers
from hatch_lower.driver.opened_wheel import ARCHIVE_ERRORS, map_part, member_start, plain_member
from hatch_lower.errors import PackageError, ProgramError, reading_hint
from hatch_lower.format.codec import decode
from hatch_lower.format.constants import CONSTANTS_FILES, DATA_MAP_BYTES, TensorEntry, header_span, tensors_begin
from hatch_lower.format.values import DTYPES
from hatch_lower.frozen import Frozen

COMPRESSIONS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
PIECE = 1 << 20
# Attribute of a member to its text and to the likely reason of a difference
ATTRIBUTES: Mapping[str, tuple[Callable[[zipfile.ZipInfo], str], str]] = {
    "date": (
        lambda entry: "{}-{:02}-{:02} {:02}:{:02}:{:02}".format(*entry.date_time),
        "the clock or the files' times; hatchling sets a fixed date unless `reproducible = false` or "
        "SOURCE_DATE_EPOCH says otherwise",
    ),
    "permissions": (
        lambda entry: f"{entry.external_attr >> 16:o}",
        "the umask, or permissions in the source tree",
    ),
    "compression": (
        lambda entry: COMPRESSIONS[entry.compress_type],
        "another version of the build backend or of hatch-lower, or other settings",
    ),
}


class Wheel(Frozen):
    path: Path
    archive: zipfile.ZipFile  # open as long as the record lives
    members: Mapping[str, zipfile.ZipInfo]  # in the directory's order; the last member of a repeated name
    digests: Mapping[str, str]


def read_wheel(path: Path) -> Wheel:
    try:
        archive = zipfile.ZipFile(path)
        members = {entry.filename: entry for entry in archive.infolist()}
        return Wheel(path, archive, members, {name: digest_of_member(archive, name) for name in members})
    except ARCHIVE_ERRORS as error:
        raise unreadable_archive(path, error) from error


def unreadable_archive(path: Path, error: BaseException) -> PackageError:
    return PackageError(
        "the wheel cannot be read",
        where=str(path),
        found=f"{type(error).__name__}: {error}",
        hint=reading_hint(str(error), "name a complete wheel that has not changed since its build"),
    )


def digest_of_member(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(plain_member(archive, name)) as file:
        return sha256_stream(file)


def map_member(wheel: Wheel, name: str) -> memoryview:
    """Return a member's contents: a mapped part of the wheel if stored, else unpacked."""
    entry = wheel.members[name]
    if entry.compress_type == zipfile.ZIP_STORED:
        return map_part(wheel.path, member_start(wheel.path, entry), entry.file_size)
    try:
        if entry.file_size <= PIECE:
            return memoryview(wheel.archive.read(entry))
        with wheel.archive.open(entry) as file, tempfile.NamedTemporaryFile(prefix="hatch-lower-") as unpacked:
            shutil.copyfileobj(file, unpacked, PIECE)
            unpacked.flush()
            return map_part(Path(unpacked.name), 0, unpacked.tell())  # the mapping outlives the name
    except ARCHIVE_ERRORS as error:
        raise unreadable_archive(wheel.path, error) from error


def equal_bytes(first: memoryview, second: memoryview) -> bool:
    starts = range(0, len(first), PIECE)  # bytes compare faster than views
    return len(first) == len(second) and all(
        first[at : at + PIECE].tobytes() == second[at : at + PIECE].tobytes() for at in starts
    )


def compare_archives(first: Wheel, second: Wheel) -> Iterator[Difference]:
    """Yield a difference for each attribute in which members with the same name differ."""
    common = [name for name in first.members if name in second.members]
    for attribute, (text, reason) in ATTRIBUTES.items():
        values = {name: (text(first.members[name]), text(second.members[name])) for name in common}
        names = [name for name, (left, right) in values.items() if left != right]
        if names:
            members = f"of {names[0]}" if len(names) == 1 else f"of {len(names)} members, first {names[0]}"
            yield Difference("", attribute, *values[names[0]], reason, (members,))


FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
# Safetensors' name of a dtype to torch's name; a complex number is a pair of real numbers
NAMES = {stored.safetensors: name for name, stored in DTYPES.items()} | {"C64": "float32"}
COMPARED_PIECE = 1 << 20
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
    for start in range(0, end, COMPARED_PIECE):
        left, right = (bytearray(side[start : min(start + COMPARED_PIECE, end)]) for side in (first, second))
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
