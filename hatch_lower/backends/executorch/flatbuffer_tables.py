"""Tables of flatbuffers by the numbers of their fields: ExecuTorch brings the library, no classes of its schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatbuffers import encode, number_types, packer, table

FLAGS = {
    "B": number_types.Uint8Flags,
    "i": number_types.Int32Flags,
    "I": number_types.Uint32Flags,
    "Q": number_types.Uint64Flags,
}


class Table:
    """A table; an absent field is empty or zero."""

    def __init__(self, data: bytes | memoryview, position: int) -> None:
        self._data = data
        self._table: Any = table.Table(data, position)

    @classmethod
    def root(cls, data: bytes | memoryview) -> Table:
        return cls(data, encode.Get(packer.uoffset, data, 0))

    def number(self, field: int, form: str) -> int:
        """Return a number of the form of `struct`: `i`, `Q`."""
        return int(self._table.GetSlot(4 + 2 * field, 0, FLAGS[form]))

    def text(self, field: int) -> str:
        place = self._place(field)
        return "" if place is None else self._table.String(place).decode(errors="replace")

    def table(self, field: int) -> Table | None:
        place = self._place(field)
        return None if place is None else Table(self._data, self._table.Indirect(place))

    def tables(self, field: int) -> Iterator[Table]:
        offset = self._table.Offset(4 + 2 * field)
        if offset:
            first = self._table.Vector(offset)
            for index in range(self._table.VectorLen(offset)):
                yield Table(self._data, self._table.Indirect(first + 4 * index))

    def _place(self, field: int) -> int | None:
        offset = self._table.Offset(4 + 2 * field)
        return self._table.Pos + offset if offset else None
