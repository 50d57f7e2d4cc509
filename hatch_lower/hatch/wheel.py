"""Writing of the payload into a finished wheel, before the metadata, and of weight files beside the wheel. Members
of the archive are copied byte for byte, stored while their digest is computed, or deflated (text). `zipfile`
writes the headers and the directory, but can neither reuse a known checksum nor copy a packed member. The time of
the files is the time that `SOURCE_DATE_EPOCH` sets.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hatch_lower.cache.locks import make_held, remove_abandoned
from hatch_lower.canonical import PIECE, digest_of, is_file_of, open_file, recorded_digest, sha256_bytes
from hatch_lower.errors import ConfigError, PackageError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from hatch_lower.cache.store import Store
    from hatch_lower.format.results import PayloadFile


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


def write_stored_member(
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


def write_deflated_member(target: BinaryIO, name: str, date: Date, data: bytes) -> zipfile.ZipInfo:
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


DOCUMENT = ".json"  # suffix of plans, debug maps and other documents
TEMPORARY_SUFFIX = ".hatch-lower-tmp"
LARGE = 16 << 20  # bytes of a payload that is worth a second thread, and of a file that is worth a note in the cache


def append_payload(wheel: Path, payload: Sequence[PayloadFile], store: Store | None = None) -> None:
    """Add the payload to a wheel that hatchling has finished; after any exception the wheel is removed."""
    try:
        fill_wheel(wheel, wheel, payload, store)
    except BaseException:
        wheel.unlink(missing_ok=True)
        raise


def fill_wheel(wheel: Path, path: Path, payload: Sequence[PayloadFile], store: Store | None) -> None:
    """Write a wheel with the payload to `path`, completely or not at all; raise `PackageError` if that fails."""
    try:
        with replacing_file(path, stat.S_IMODE(wheel.stat().st_mode)) as target, wheel.open("rb") as source:
            write_wheel(wheel, source, target, sorted(payload, key=lambda file: file.path), store)
    except OSError as error:
        what = "the payload could not be written into the wheel"
        lost = any(str(file.source) == error.filename for file in payload) and not os.path.exists(error.filename)
        hint = "build again: the file was removed while this build ran" if lost else "make space on the disk"
        raise PackageError(what, where=path.name, found=str(error), hint=hint) from error


def remove_temporaries(directory: Path) -> None:
    """Remove temporary files of killed builds from `directory`."""
    for path in sorted(directory.glob(f"*{TEMPORARY_SUFFIX}")):
        path.unlink(missing_ok=True)


@contextmanager
def replacing_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Yield a temporary file beside `path`, which replaces `path` at the end, or is removed after an exception."""
    # temporary files of killed builds of the same file
    remove_abandoned(path.parent, f"{escape(path.name)}.*{TEMPORARY_SUFFIX}")
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    number = make_held(temporary)
    try:
        # held until renamed: another build would remove a file without a holder
        with os.fdopen(number, "w+b", closefd=False) as target:
            yield target
        temporary.chmod(mode)
        # The wheel without payload is removed first: an interruption here leaves no wheel at all, and some file systems
        # write a file to the disk before replacing another file (0.3 s for 1 GiB).
        path.unlink(missing_ok=True)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(number)


def write_wheel(
    wheel: Path, source: BinaryIO, target: BinaryIO, payload: Sequence[PayloadFile], store: Store | None
) -> None:
    # Members before the metadata are kept byte for byte. The payload is stored without compression, so that files can
    # be mapped; only plans and debug maps are deflated, to a tenth. Metadata comes last, as the specification of wheels
    # recommends, kept byte for byte except for RECORD.
    members, ends = read_archive(wheel)
    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info/"
    record = next((member for member in members if member.filename == f"{metadata}RECORD"), None)
    if record is None:
        what = "the payload cannot be added to a wheel without a RECORD"
        raise PackageError(what, where=wheel.name, hint=f"see which build hook removes `{metadata}RECORD`")
    check_paths({member.filename for member in members}, payload)
    first = next(i for i, member in enumerate(members) if member.filename.startswith(metadata))
    with zipfile.ZipFile(source) as file:
        rows = add_rows(file.read(record).decode(), metadata, payload)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        # `written` lists members that were copied, and writes the directory when closed
        written.filelist += members[:first]
        copy_span(source, target, 0, members[first].header_offset)
        with hashing_thread(payload) as pool:
            written.filelist += [write_payload(target, file, record.date_time, pool, store) for file in payload]
        for member, end in zip(members[first:], ends[first:], strict=True):
            if member is not record:
                start, member.header_offset = member.header_offset, target.tell()
                copy_span(source, target, start, end)
                written.filelist.append(member)
        written.start_dir = target.tell()
        written.writestr(new_entry(target, record.filename, record.date_time, 0), rows, zipfile.ZIP_DEFLATED)


def check_paths(taken: set[str], payload: Sequence[PayloadFile]) -> None:
    for file in payload:
        if file.path in taken:
            what = f"the wheel already has a file `{file.path}`, which is the path of a lowered program"
            hint = (
                f'add `"{file.path}"`, as it is called in the source tree, to `exclude` '
                "under `[tool.hatch.build.targets.wheel]`, or take it out of `force-include`"
            )
            raise PackageError(what, where="tool.hatch.build.targets.wheel", hint=hint)
        taken.add(file.path)


def hashing_thread(payload: Sequence[PayloadFile]) -> AbstractContextManager[ThreadPoolExecutor | None]:
    if sum(file.size for file in payload) < LARGE:
        return nullcontext()  # starting a thread takes longer than hashing a small payload
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1)


def write_payload(
    target: BinaryIO, file: PayloadFile, date: Date, pool: ThreadPoolExecutor | None, store: Store | None
) -> zipfile.ZipInfo:
    """Append a payload file, and compare its size and digest with the lowered file."""
    if store is not None and file.source != store.blob_path(file.sha256):
        store = None
    noted = store is not None and file.size >= LARGE
    # a checksum from an earlier build is right if the sha256 is, and computing takes longer than a look-up
    key = digest_of(["crc32", file.sha256])
    known = store.find(key, shared=False) if store is not None and noted else None
    checksum = int(known["crc32"]) if known is not None and "crc32" in known else None
    before, began_ns = file.source.stat(), time.time_ns()
    with file.source.open("rb", buffering=0) as source:
        if file.path.endswith(DOCUMENT):
            data = source.readall()
            entry, size, digest = write_deflated_member(target, file.path, date, data), len(data), sha256_bytes(data)
        else:
            entry, size, digest = write_stored_member(target, file.path, date, source, file.size, pool, checksum)
    if (size, digest) != (file.size, file.sha256):
        what = f"the file for `{file.path}` is no longer the lowered file: the cache is damaged"
        found = f"{size} bytes with sha256 {digest} instead of {file.size} bytes with sha256 {file.sha256}"
        hint = (
            "build again: the damaged file was removed" if discard(store, file) else "delete this file and build again"
        )
        raise PackageError(what, where=str(file.source), found=found, hint=hint)
    if store is not None and noted:
        store.note_whole(file.sha256, before, began_ns)  # so the next build does not read the file twice
        if checksum is None:
            store.put(key, {"checksum of": file.sha256}, {"crc32": entry.CRC}, shared=False)
    return entry


def discard(store: Store | None, file: PayloadFile) -> bool:
    """Remove a damaged file from the cache; return whether the file is gone."""
    return store is not None and not store.holds(file.sha256) and not file.source.exists()


def add_rows(record: str, metadata: str, payload: Sequence[PayloadFile]) -> bytes:
    """Return RECORD with a row for each payload file, before the rows of the metadata."""
    rows = list(csv.reader(io.StringIO(record, newline="")))
    place = next(i for i, row in enumerate(rows) if row and row[0].startswith(metadata))
    rows[place:place] = [[file.path, recorded_digest(file.sha256), str(file.size)] for file in payload]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


# wheels that never got their payload are removed, unless the process is killed


def list_wheels(directory: Path) -> dict[str, tuple[int, int]]:
    wheels = {}
    for path in directory.glob("*.whl"):
        status = path.stat()
        wheels[path.name] = (status.st_ino, status.st_mtime_ns)
    return wheels


def remove_unfinished(directory: Path, project: str, before: Mapping[str, tuple[int, int]], member: str) -> None:
    """Remove the wheels of a project that were made since `before` and that lack the payload."""
    # hatchling may copy a wheel to a full disk, or another hook may fail before the hook `lower` finishes
    for name, status in list_wheels(directory).items():
        if name.startswith(f"{project}-") and before.get(name) != status and not has_member(directory / name, member):
            (directory / name).unlink(missing_ok=True)


def has_member(wheel: Path, member: str) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return member in archive.NameToInfo
    except (OSError, zipfile.BadZipFile):
        return False


# weight files beside the wheel, for uploading: the wheel has only their names and digests


def write_beside(wheel: Path, files: Sequence[PayloadFile]) -> list[Path]:
    """Write files into the folder of a wheel, each completely or not at all; return the paths."""
    folder = wheel.parent
    try:
        mode = stat.S_IMODE(wheel.stat().st_mode)
        for file in files:
            if not is_file_of(folder / file.path, file.size, file.sha256):
                copy_payload_file(folder / file.path, file, mode)
    except OSError as error:
        raise PackageError(
            "weights could not be written beside the wheel",
            where=str(error.filename or folder),
            found=error.strerror or str(error),
            hint="make space on the disk, and build again",
        ) from error
    return [folder / file.path for file in files]


def copy_payload_file(target: Path, file: PayloadFile, mode: int) -> None:
    digest = hashlib.sha256()
    with replacing_file(target, mode) as written, open_file(file.source) as source:
        while piece := source.read(PIECE):
            digest.update(piece)
            written.write(piece)
        if digest.hexdigest() != file.sha256:
            raise PackageError(
                f"the file for `{file.path}` is no longer the lowered file: the cache is damaged",
                where=str(file.source),
                hint="delete this file and build again",
            )


VARIABLE = "SOURCE_DATE_EPOCH"
LAST = 2**32 - 1  # seconds since 1970: the last time that the head of a gzip file can hold


def check_fixed_time(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a time that hatchling could not write."""
    text = environment.get(VARIABLE)
    if text is None or (text.isascii() and text.isdecimal() and int(text) <= LAST):
        return
    raise ConfigError(
        "the time of the build is not a number of seconds since 1970",
        where=f"environment variable `{VARIABLE}`",
        found=f"`{text}`",
        hint=f"set a whole number up to {LAST}, like `{VARIABLE}=$(git log -1 --format=%ct)`, or unset the variable",
    )


def fixed_time(environment: Mapping[str, str]) -> int | None:
    """Return the time of the build in seconds since 1970, if the environment sets a time."""
    text = environment.get(VARIABLE)
    return None if text is None else int(text)
