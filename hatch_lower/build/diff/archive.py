"""Wheels as archives: their members' contents, and what an archive says of a member besides its contents."""

from __future__ import annotations

import io
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from hatch_lower.build.diff.difference import NOTHING, ORDER, Difference, shortened
from hatch_lower.build.diff.texts import PIECE
from hatch_lower.build.opened_wheel import ARCHIVE_ERRORS, map_part, member_start, plain_member
from hatch_lower.canonical import sha256_stream
from hatch_lower.errors import PackageError, reading_hint
from hatch_lower.frozen import Frozen

END_RECORD = 22
TAIL = END_RECORD + 0xFFFF
COMPRESSIONS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
MEMBERS = 3
REASONS = {
    "date": "the clock or the files' times; hatchling sets a fixed date unless `reproducible = false` or "
    "SOURCE_DATE_EPOCH says otherwise",
    "permissions": "the umask, or permissions in the source tree",
    "compression": "another version of the build backend or of hatch-lower, or other settings",
    "compressed size": "another zlib, or another level of compression",
}


class Wheel(Frozen):
    path: Path
    members: Mapping[str, zipfile.ZipInfo]  # in the directory's order; of two of one name the last
    digests: Mapping[str, str]
    repeated: frozenset[str]  # names that are there more than once


def read_wheel(path: Path) -> Wheel:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            counts = Counter(entry.filename for entry in entries)
            members = {entry.filename: entry for entry in entries}
            digests = {name: digest_of_member(archive, name) for name in members}
            repeated = frozenset(name for name, number in counts.items() if number > 1)
            return Wheel(path, members, digests, repeated)
    except ARCHIVE_ERRORS as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> PackageError:
    return PackageError(
        "the wheel cannot be read",
        where=str(path),
        found=f"{type(error).__name__}: {error}",
        hint=reading_hint(str(error), "see that it is a wheel, whole and not changed since it was built"),
    )


def digest_of_member(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(plain_member(archive, name)) as file:
        return sha256_stream(file)


def map_member(wheel: Wheel, name: str) -> memoryview:
    """Return a member's contents: a part of the wheel if it is stored, a temporary file otherwise."""
    entry = wheel.members[name]
    if entry.compress_type == zipfile.ZIP_STORED:
        return map_part(wheel.path, member_start(wheel.path, entry), entry.file_size)
    if entry.file_size <= PIECE:
        with wheel.path.open("rb") as file, io.BytesIO() as small:
            inflate(wheel, entry, file, small)
            return memoryview(small.getvalue())
    with tempfile.NamedTemporaryFile(prefix="hatch-lower-") as unpacked:
        with wheel.path.open("rb") as file:
            inflate(wheel, entry, file, unpacked)
        unpacked.flush()
        return map_part(Path(unpacked.name), 0, unpacked.tell())  # the pages stay when the name is gone


def inflate(wheel: Wheel, entry: zipfile.ZipInfo, source: IO[bytes], target: IO[bytes]) -> None:
    """Write a deflated member's contents; `zipfile` would read the names of all members for each."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        source.seek(member_start(wheel.path, entry))
        left = entry.compress_size
        while left and (data := source.read(min(left, PIECE))):
            left -= len(data)
            while data:
                target.write(inflater.decompress(data, PIECE))
                data = inflater.unconsumed_tail
        target.write(inflater.flush())
    except ARCHIVE_ERRORS as error:
        raise unreadable(wheel.path, error) from error


def compare_archives(first: Wheel, second: Wheel) -> Iterator[Difference]:
    """Yield what differs besides the members' contents and has a likely reason; the archives' bytes tell the rest."""
    for name in sorted({*first.repeated, *second.repeated}):
        left, right = ("several times" if name in wheel.repeated else "at most once" for wheel in (first, second))
        yield Difference(name, "", left, right, "another tool wrote the archive")
    common = [name for name in first.members if name in second.members]
    yield from compare_orders(first, second, common)
    changes: dict[tuple[str, str, str], list[str]] = {}
    for name in common:
        sides = [attributes_of(wheel.members[name]) for wheel in (first, second)]
        for kind in sides[0]:
            same_contents = first.digests[name] == second.digests[name]
            if sides[0][kind] != sides[1][kind] and (same_contents or kind != "compressed size"):
                changes.setdefault((kind, sides[0][kind], sides[1][kind]), []).append(name)
    for (kind, left, right), names in changes.items():
        which = ", ".join(names[:MEMBERS]) + f" and {len(names) - MEMBERS} more" * (len(names) > MEMBERS)
        lines = ("each member in both wheels" if len(names) == len(common) > 1 else f"of {which}",)
        yield Difference("", kind, left, right, REASONS.get(kind, ""), lines)
    left, right = surplus_of(first), surplus_of(second)
    if left != right:
        reason = "something was added to the wheel after the build, or another tool wrote it"
        yield Difference("", "bytes outside the members", left, right, reason)


def compare_orders(first: Wheel, second: Wheel, common: list[str]) -> Iterator[Difference]:
    orders = [sorted(common, key=lambda name: wheel.members[name].header_offset) for wheel in (first, second)]
    for at, pair in enumerate(zip(*orders, strict=True)):
        if pair[0] != pair[1]:
            left, right = (f"{at + 1}. {name}" for name in pair)
            yield Difference("", "order of the members", left, right, ORDER)
            return


def attributes_of(entry: zipfile.ZipInfo) -> dict[str, str]:
    return {
        "date": "{}-{:02}-{:02} {:02}:{:02}:{:02}".format(*entry.date_time),
        "permissions": f"{entry.external_attr >> 16:o}",
        "compression": COMPRESSIONS[entry.compress_type],
        "compressed size": f"{entry.compress_size} bytes",
        "extra fields": shortened(entry.extra.hex(" ")) or NOTHING,
        "comment": entry.comment.decode("utf-8", "replace") or NOTHING,
    }


def surplus_of(wheel: Wheel) -> str:
    size = wheel.path.stat().st_size
    with zipfile.ZipFile(wheel.path) as archive, wheel.path.open("rb") as file:
        comment = archive.comment
        start = max(size - TAIL, 0)
        file.seek(start)
        end = start + file.read().rfind(b"PK\x05\x06") + END_RECORD + len(comment)
    before = min((entry.header_offset for entry in wheel.members.values()), default=0)
    surplus = {"before the members": before, "in a comment": len(comment), "behind the directory": size - end}
    return ", ".join(f"{number} bytes {where}" for where, number in surplus.items() if number) or NOTHING
