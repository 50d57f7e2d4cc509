"""Zip archives that are written piece by piece, read back by Python's own reader."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from hatch_lower.hatch.wheel import CHUNK, copy_span, read_archive, write_stored_member

DATE = (2020, 2, 2, 12, 30, 58)
DATA = bytes(range(256)) * 10_000
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 12_345]


def write_directory(target: BinaryIO, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Let `zipfile` end an archive, behind one member of its own, as a wheel's RECORD is."""
    begin = target.tell()
    with zipfile.ZipFile(target, "w") as archive:
        archive.filelist += entries
        archive.start_dir = begin
        archive.writestr(zipfile.ZipInfo("RECORD", DATE), b"")


def write_archive(path: Path, files: dict[str, bytes], threads: int = 0) -> None:
    """Write an archive of stored members, and an empty `RECORD`."""
    source = path.with_suffix(".source")
    pool = ThreadPoolExecutor(1) if threads else None
    with path.open("w+b") as target:
        entries = []
        for name, data in files.items():
            source.write_bytes(data)
            with io.FileIO(source) as file:
                entry, size, digest = write_stored_member(target, name, DATE, file, len(data), pool)
            assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
            entries.append(entry)
        write_directory(target, entries)
    if pool is not None:
        pool.shutdown()


def read_back(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist() if name != "RECORD"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [0, 1])
def test_files_of_any_size_are_stored_with_their_checksums(tmp_path: Path, size: int, threads: int) -> None:
    data = os.urandom(size)
    write_archive(tmp_path / "a.zip", {"one": data, "two": data[::-1]}, threads=threads)
    assert read_back(tmp_path / "a.zip") == {"one": data, "two": data[::-1]}


def test_a_file_is_read_once_from_beginning_to_end(tmp_path: Path) -> None:
    data = os.urandom(3 * CHUNK + 5)
    reader, writer = os.pipe()  # which cannot be read twice

    def feed() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)

    with ThreadPoolExecutor(1) as feeder, (tmp_path / "a.zip").open("w+b") as target:
        feeding = feeder.submit(feed)
        with io.FileIO(reader) as source, ThreadPoolExecutor(1) as hashing:
            entry, size, digest = write_stored_member(target, "weights", DATE, source, len(data), hashing)
        feeding.result()
        write_directory(target, [entry])
    assert (size, digest, entry.CRC) == (len(data), hashlib.sha256(data).hexdigest(), zlib.crc32(data))
    assert read_back(tmp_path / "a.zip") == {"weights": data}


def test_with_and_without_a_thread_the_bytes_are_the_same(tmp_path: Path) -> None:
    for threads in (0, 1):
        write_archive(tmp_path / f"{threads}.zip", {"a": DATA, "b": b""}, threads=threads)
    assert (tmp_path / "0.zip").read_bytes() == (tmp_path / "1.zip").read_bytes()


def test_members_are_regular_files_that_their_owner_may_write_with_the_given_date(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_archive(tmp_path / "a.zip", {"a": b"1", "größe": b"2"})
    finally:
        os.umask(old)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["a", "größe", "RECORD"]
        for entry in archive.infolist()[:2]:
            assert (entry.date_time, entry.create_system, entry.compress_type) == (DATE, 3, zipfile.ZIP_STORED)
            assert entry.external_attr >> 16 == stat.S_IFREG | 0o644


@pytest.mark.parametrize("limit", [0, 1_000, len(DATA) + 10])
def test_what_is_over_the_limit_of_four_bytes_is_read_back(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes in the headers, which are written here, and offsets in the directory, which `zipfile` writes."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    files = {"small": b"1", "empty": b"", "large": DATA, "after": b"1"}
    write_archive(tmp_path / "a.zip", files)
    assert read_back(tmp_path / "a.zip") == files
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        for entry in archive.infolist():
            over = entry.file_size > limit or entry.header_offset > limit
            assert entry.extract_version == (45 if over else 20), entry


def test_members_are_copied_without_being_packed_again(tmp_path: Path) -> None:
    old, new = tmp_path / "old.zip", tmp_path / "new.zip"
    with zipfile.ZipFile(old, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b", "c"):
            archive.writestr(name, name.encode() * 100_000)
    members, ends = read_archive(old)
    with old.open("rb") as source, new.open("w+b") as target:
        entries = []
        for member, end in zip(members[1:], ends[1:], strict=True):
            start, member.header_offset = member.header_offset, target.tell()
            copy_span(source, target, start, end)
            entries.append(member)
        write_directory(target, entries)
    assert read_back(new) == {name: name.encode() * 100_000 for name in ("b", "c")}
    begin, end = members[0].header_offset, ends[0]
    assert new.read_bytes().startswith(old.read_bytes()[end : ends[2]])
    assert end > begin


def test_a_member_that_had_eight_bytes_keeps_one_zip64_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at the same entry, as when a payload is added to a wheel that has large members already."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    path = tmp_path / "a.zip"
    write_archive(path, {"large": DATA})
    members, ends = read_archive(path)
    with path.open("rb") as source, (tmp_path / "b.zip").open("w+b") as target:
        copy_span(source, target, 0, ends[0])
        write_directory(target, members[:-1])
    assert (tmp_path / "b.zip").read_bytes() == path.read_bytes()
