"""Flatbuffers, read from their bytes: tables by the numbers of their fields."""

from __future__ import annotations

import struct
from collections.abc import Iterator


class Table:
    """One table; a field that it lacks is empty or zero."""

    def __init__(self, data: bytes | memoryview, position: int) -> None:
        self._data = data
        self._position = position

    @classmethod
    def root(cls, data: bytes | memoryview) -> Table:
        return cls(data, struct.unpack_from("<I", data)[0])

    def number(self, field: int, form: str) -> int:
        """Return a number of the form of `struct`: `i`, `Q`."""
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(f"<{form}", self._data, place)[0])

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def text(self, field: int) -> str:
        place = self._target(field)
        if place is None:
            return ""
        (size,) = struct.unpack_from("<I", self._data, place)
        return bytes(self._data[place + 4 : place + 4 + size]).decode(errors="replace")

    def table(self, field: int) -> Table | None:
        place = self._target(field)
        return None if place is None else Table(self._data, place)

    def tables(self, field: int) -> Iterator[Table]:
        place = self._target(field)
        if place is None:
            return
        (count,) = struct.unpack_from("<I", self._data, place)
        for entry in range(place + 4, place + 4 + 4 * count, 4):
            yield Table(self._data, entry + struct.unpack_from("<I", self._data, entry)[0])

    def _place(self, field: int) -> int | None:
        layout = self._position - struct.unpack_from("<i", self._data, self._position)[0]
        (size,) = struct.unpack_from("<H", self._data, layout)
        if 4 + 2 * field >= size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, layout + 4 + 2 * field)
        return self._position + offset if offset else None

    def _target(self, field: int) -> int | None:
        place = self._place(field)
        return None if place is None else place + int(struct.unpack_from("<I", self._data, place)[0])
