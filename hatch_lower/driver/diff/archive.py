"""Wheels as archives: contents, digests and attributes of their members."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hatch_lower.canonical import sha256_stream
from hatch_lower.driver.diff.difference import Difference
from hatch_lower.driver.opened_wheel import ARCHIVE_ERRORS, map_part, member_start, plain_member
from hatch_lower.errors import PackageError, reading_hint
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
