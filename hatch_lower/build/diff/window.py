"""A part of a file as a file of its own: members that are stored need no unpacking, however large they are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

PIECE = 1 << 20


class Window(io.RawIOBase):
    """The bytes of a file from a position on, to be read and sought in; it holds the file open until it is closed."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._start = start
        self._position = 0
        self.size = size

    def part(self, start: int, size: int) -> Window:
        """Return a part of this window as one of its own."""
        return Window(self._path, self._start + start, min(size, self.size - start))

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be sought in."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read up to the end of the window."""
        count = min(len(buffer), max(self.size - self._position, 0))
        self._file.seek(self._start + self._position)
        read = self._file.readinto(memoryview(buffer)[:count]) or 0
        self._position += read
        return read

    def read_at(self, start: int, size: int) -> bytes:
        """Return bytes; fewer at the end of the window."""
        self.seek(start)
        return self.read(min(size, max(self.size - start, 0))) or b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def pieces(first: Window, second: Window) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the position and the two pieces of 1 MiB wherever two windows differ, the longer one's rest included."""
    for start in range(0, max(first.size, second.size), PIECE):
        one, other = first.read_at(start, PIECE), second.read_at(start, PIECE)
        if one != other:
            yield start, one, other
