"""Zip archives, written piece by piece: members kept byte for byte, new ones stored without compression."""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

ZIP64_LIMIT = 0xFFFFFFFF
"""Sizes and offsets from here on need 8 bytes."""
CHUNK = 1 << 20
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
CENTRAL_ENTRY = struct.Struct("<4s6H3L5H2L")
END_RECORD = struct.Struct("<4s4H2LH")
ZIP64_END_RECORD = struct.Struct("<4sQ2H2L4Q")
ZIP64_END_LOCATOR = struct.Struct("<4sLQL")
ZIP64_EXTRA_ID = 1
UTF8_NAME = 0x800


class Archive(Frozen):
    """What is in an archive: members in the order of their bytes, and where each one's bytes end."""

    members: tuple[zipfile.ZipInfo, ...]
    ends: tuple[int, ...]


def read_archive(path: Path) -> Archive:
    """Read an archive's directory."""
    with zipfile.ZipFile(path) as file:
        members = sorted(file.infolist(), key=lambda member: member.header_offset)
        directory = file.start_dir
    return Archive(tuple(members), (*(member.header_offset for member in members[1:]), directory))


def copy_span(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    """Append the bytes from `start` to `end` of `source` to `target`."""
    source.seek(start)
    while start < end and (piece := source.read(min(CHUNK, end - start))):
        target.write(piece)
        start += len(piece)


def write_bytes(target: BinaryIO, name: str, date: tuple[int, int, int, int, int, int], data: bytes) -> zipfile.ZipInfo:
    """Append a deflated member and return its entry for the directory."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(data) + packer.flush()
    entry = new_entry(target, name, date, len(data))
    entry.compress_type, entry.compress_size, entry.CRC = zipfile.ZIP_DEFLATED, len(packed), zlib.crc32(data)
    target.write(local_header(entry, ZIP64_LIMIT) + packed)
    return entry


def write_file(
    target: BinaryIO,
    name: str,
    date: tuple[int, int, int, int, int, int],
    source: io.FileIO,
    size: int,
    pool: ThreadPoolExecutor | None,
    zip64_limit: int = ZIP64_LIMIT,
    checksum: int | None = None,
) -> tuple[zipfile.ZipInfo, int, str]:
    """Append a stored member of `size` bytes.

    The source is read once: while a thread of `pool` (which must have only one) hashes a piece, this one computes its
    checksum and writes it. Without a pool this thread does both.

    Args:
        target: the archive, where the member begins.
        name: of the member.
        date: of the member.
        source: its bytes.
        size: how many they should be.
        pool: see above.
        zip64_limit: sizes from here on are written in 8 bytes.
        checksum: CRC-32 of what has the sha256 that is wanted, if it is known; it takes longer than the sha256 does.

    Returns:
        The member's entry for the directory, the number of bytes that the source had, and their sha256.
    """
    entry = new_entry(target, name, date, size)
    target.write(local_header(entry, zip64_limit))
    digest, computed, count = hashlib.sha256(), 0, 0
    length = min(CHUNK, max(size, 1))  # most files are small, and so much memory is not had for nothing
    buffers = [memoryview(bytearray(length)) for _ in range(2)]
    hashing: list[Future[None]] = []
    while read := source.readinto(buffers[0]):
        piece = buffers[0][:read]
        if pool is None:
            digest.update(piece)
        else:
            hashing.append(pool.submit(digest.update, piece))
        if checksum is None:
            computed = zlib.crc32(piece, computed)
        target.write(piece)
        count += read
        buffers.reverse()
        if len(hashing) > 1:
            hashing.pop(0).result()
    for each in hashing:
        each.result()
    entry.CRC = computed if checksum is None else checksum
    end = target.tell()
    target.seek(entry.header_offset)
    target.write(local_header(entry, zip64_limit))
    target.seek(end)
    return entry, count, digest.hexdigest()


def write_directory(target: BinaryIO, entries: Sequence[zipfile.ZipInfo], zip64_limit: int = ZIP64_LIMIT) -> None:
    """Append the central directory and the records that end an archive."""
    start = target.tell()
    for entry in entries:
        target.write(central_entry(entry, zip64_limit))
    end = target.tell()
    count, size = len(entries), end - start
    if count >= 0xFFFF or size >= zip64_limit or start >= zip64_limit:
        target.write(ZIP64_END_RECORD.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start))
        target.write(ZIP64_END_LOCATOR.pack(b"PK\x06\x07", 0, end, 1))
        count, size, start = min(count, 0xFFFF), fitting(size, zip64_limit), fitting(start, zip64_limit)
    target.write(END_RECORD.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0))


def new_entry(target: BinaryIO, name: str, date: tuple[int, int, int, int, int, int], size: int) -> zipfile.ZipInfo:
    """Return the entry of a stored regular file, mode 0644, that starts where `target` stands."""
    entry = zipfile.ZipInfo(name, date)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.flag_bits = 0 if name.isascii() else UTF8_NAME
    entry.file_size = entry.compress_size = size
    entry.CRC = 0
    entry.header_offset = target.tell()
    return entry


def local_header(entry: zipfile.ZipInfo, zip64_limit: int) -> bytes:
    """Return the header that precedes a new member's bytes."""
    name = encoded_name(entry)
    large = entry.file_size >= zip64_limit or entry.compress_size >= zip64_limit
    extra = struct.pack("<2H2Q", ZIP64_EXTRA_ID, 16, entry.file_size, entry.compress_size) if large else b""
    head = LOCAL_HEADER.pack(
        b"PK\x03\x04",
        45 if large else 20,
        entry.flag_bits,
        entry.compress_type,
        *dos_time(entry),
        entry.CRC,
        ZIP64_LIMIT if large else entry.compress_size,
        ZIP64_LIMIT if large else entry.file_size,
        len(name),
        len(extra),
    )
    return head + name + extra


def central_entry(entry: zipfile.ZipInfo, zip64_limit: int) -> bytes:
    """Return a member's entry in the central directory."""
    name = encoded_name(entry)
    fields = (entry.file_size, entry.compress_size, entry.header_offset)
    large = [value for value in fields if value >= zip64_limit]
    extra = without_zip64(entry.extra)
    if large:
        extra = struct.pack(f"<2H{len(large)}Q", ZIP64_EXTRA_ID, 8 * len(large), *large) + extra
    head = CENTRAL_ENTRY.pack(
        b"PK\x01\x02",
        entry.create_version + (entry.create_system << 8),
        max(entry.extract_version, 45) if large else entry.extract_version,
        entry.flag_bits,
        entry.compress_type,
        *dos_time(entry),
        entry.CRC,
        fitting(entry.compress_size, zip64_limit),
        fitting(entry.file_size, zip64_limit),
        len(name),
        len(extra),
        len(entry.comment),
        0,
        entry.internal_attr,
        entry.external_attr,
        fitting(entry.header_offset, zip64_limit),
    )
    return head + name + extra + entry.comment


def fitting(value: int, zip64_limit: int) -> int:
    """Return `value` for a field of 4 bytes: all ones where the value stands in 8 bytes elsewhere."""
    return value if value < zip64_limit else ZIP64_LIMIT


def encoded_name(entry: zipfile.ZipInfo) -> bytes:
    """Return a member's name as its flags say that it is encoded."""
    return entry.filename.encode("utf-8" if entry.flag_bits & UTF8_NAME else "cp437")


def dos_time(entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Return a member's time and date as MS-DOS packs them."""
    year, month, day, hour, minute, second = entry.date_time
    return hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day


def without_zip64(extra: bytes) -> bytes:
    """Return the extra fields of a directory entry without the one that holds large sizes."""
    kept, rest = b"", extra
    while len(rest) >= 4:
        kind, size = struct.unpack("<2H", rest[:4])
        if kind != ZIP64_EXTRA_ID:
            kept += rest[: 4 + size]
        rest = rest[4 + size :]
    return kept
