"""A wheel that is read: its directory, which may be long, is read once."""

from __future__ import annotations

import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from hatch_lower.canonical import PIECE
from hatch_lower.errors import ProgramError, reading_hint
from hatch_lower.frozen import Frozen

LOCAL_HEADER = 30
# Size of a document, above which it is not read from a wheel: a few bytes of an archive may inflate to any number
MOST_BYTES = 1 << 26
# the errors of `zipfile` for a damaged archive
ARCHIVE_ERRORS = (
    *(EOFError, KeyError, NotImplementedError, OSError, RuntimeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)


class OpenedWheel(Frozen):
    """A wheel, open while this object is referenced."""

    path: Path
    archive: zipfile.ZipFile

    def members(self) -> list[str]:
        return self.archive.namelist()

    def read(self, member: str) -> bytes:
        """Return the bytes of a document; one that is too large for a document is not inflated."""
        try:
            size = self.archive.getinfo(member).file_size
            if size > MOST_BYTES:
                raise ValueError(f"{size} bytes, where at most {MOST_BYTES} are read")
            return self.archive.read(plain_member(self.archive, member))
        except ARCHIVE_ERRORS as error:
            raise unreadable_wheel(f"{self.path.name}: {member}", error) from error

    def map(self, member: str) -> memoryview:
        """Return the contents of a member: its part of the archive if it is stored there."""
        try:
            information = self.archive.getinfo(member)
            if information.compress_type != zipfile.ZIP_STORED:
                return memoryview(self.read(member))  # hatch-lower compresses none of these
            self.archive.open(information).close()  # sees that the member begins where the directory says
            return map_part(self.path, member_start(self.path, information), information.file_size)
        except ARCHIVE_ERRORS as error:
            raise unreadable_wheel(f"{self.path.name}: {member}", error) from error

    def pieces(self, member: str) -> Iterator[bytes]:
        """Yield the contents of a member of any size, which are compared with the checksum of the archive."""
        try:
            with self.archive.open(plain_member(self.archive, member)) as file:
                while piece := file.read(PIECE):
                    yield piece
        except ARCHIVE_ERRORS as error:
            raise unreadable_wheel(f"{self.path.name}: {member}", error) from error

    def metadata(self, name: str) -> str | None:
        """Return a file of the folder `.dist-info`; `None` if it is not there."""
        for member in self.members():
            if member.endswith(f".dist-info/{name}") and member.count("/") == name.count("/") + 1:
                return self.read(member).decode(errors="replace")
        return None


def open_wheel(wheel: Path) -> OpenedWheel:
    try:
        return OpenedWheel(wheel, zipfile.ZipFile(wheel))
    except ARCHIVE_ERRORS as error:
        raise ProgramError(
            "the wheel cannot be read", where=str(wheel), found=str(error), hint=reading_hint(str(error), "")
        ) from error


def plain_member(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    information = archive.getinfo(member)
    # as wheels have them: other methods may ask for much memory
    if information.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        msg = f"the compression method {information.compress_type}"
        raise NotImplementedError(msg)
    return information


def member_start(wheel: Path, entry: zipfile.ZipInfo) -> int:
    """Return where the contents of a stored member begin: behind its header, its name and its extra fields."""
    with wheel.open("rb") as file:
        file.seek(entry.header_offset + LOCAL_HEADER - 4)
        name, extra = struct.unpack("<2H", file.read(4))
        return entry.header_offset + LOCAL_HEADER + int(name) + int(extra)


def map_part(path: Path, start: int, size: int) -> memoryview:
    if not size:
        return memoryview(b"")
    with path.open("rb") as file:
        # the pages are private, so that torch may take them for writable; a file that ends before is a ValueError
        return memoryview(mmap.mmap(file.fileno(), start + size, access=mmap.ACCESS_COPY))[start:]


def unreadable_wheel(where: str, error: Exception) -> ProgramError:
    return ProgramError(
        "a packaged program file cannot be read",
        where=where,
        found=f"{type(error).__name__}: {error}",
        hint=reading_hint(str(error), "build the wheel again"),
    )
