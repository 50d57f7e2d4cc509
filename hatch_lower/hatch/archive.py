"""Members of zip archives: copied byte for byte, stored while their digest is computed, or deflated (text).

`zipfile` writes the headers and the directory. `zipfile` can neither reuse a known checksum nor copy a packed member,
so this module does both.
"""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

CHUNK = 1 << 20
Date = tuple[int, int, int, int, int, int]  # of a member


def read_archive(path: Path) -> tuple[list[zipfile.ZipInfo], list[int]]:
    """Return the members of an archive in the order of their bytes, and the end offset of each member."""
    with zipfile.ZipFile(path) as file:
        members = sorted(file.infolist(), key=lambda member: member.header_offset)
        directory = file.start_dir
    return members, [*(member.header_offset for member in members[1:]), directory]


def copy_span(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    while start < end and (piece := source.read(min(CHUNK, end - start))):
        target.write(piece)
        start += len(piece)


def write_file(
    target: BinaryIO,
    name: str,
    date: Date,
    source: io.FileIO,
    size: int,
    pool: ThreadPoolExecutor | None,
    checksum: int | None = None,
) -> tuple[zipfile.ZipInfo, int, str]:
    """Append a stored member of `size` bytes; return its entry, and size and sha256 of the source's bytes."""
    entry = new_entry(target, name, date, size)
    target.write(entry.FileHeader())
    digest, computed, count = hashlib.sha256(), 0, 0
    length = min(CHUNK, max(size, 1))  # allocate no more than the file needs: most files are small
    buffers = [memoryview(bytearray(length)) for _ in range(2)]
    hashing: list[Future[None]] = []
    # read once: while the thread of `pool` hashes a piece, this thread computes the checksum and writes the piece
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
    for task in hashing:
        task.result()
    entry.CRC = computed if checksum is None else checksum  # wrong only if the sha256 is, which the caller compares
    end = target.tell()
    target.seek(entry.header_offset)
    target.write(entry.FileHeader())
    target.seek(end)
    return entry, count, digest.hexdigest()


def write_document(target: BinaryIO, name: str, date: Date, data: bytes) -> zipfile.ZipInfo:
    """Append a deflated member; return its entry."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(data) + packer.flush()
    entry = new_entry(target, name, date, len(data))
    entry.compress_type, entry.compress_size, entry.CRC = zipfile.ZIP_DEFLATED, len(packed), zlib.crc32(data)
    target.write(entry.FileHeader() + packed)
    return entry


def new_entry(target: BinaryIO, name: str, date: Date, size: int) -> zipfile.ZipInfo:
    """Return the entry of a stored regular file, mode 0644, that starts at the position of `target`."""
    entry = zipfile.ZipInfo(name, date)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.file_size = entry.compress_size = size
    entry.CRC = 0
    entry.header_offset = target.tell()
    return entry
