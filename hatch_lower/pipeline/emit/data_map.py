"""The head that makes a constants file a `.ptd` file of ExecuTorch, which ExecuTorch's runtime maps by itself.

The format is `extension/flat_tensor` of ExecuTorch: a flatbuffer with a header inside, followed by segments. Here a
safetensors file follows, and the segments lie inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hatch_lower.errors import BackendError
from hatch_lower.exir.scalar_type import ScalarType
from hatch_lower.format.constants import DATA_MAP_HEADER, DATA_MAP_MAGIC
from hatch_lower.format.delegates import DataLayout
from hatch_lower.frozen import Frozen

HEADER_BYTES = 48  # of ExecuTorch's header inside the flatbuffer, with its padding


class NamedPlace(Frozen):
    """A name for bytes of a file, and the layout of the bytes as a tensor."""

    name: str
    begin: int  # in bytes from the end of the head
    end: int
    layout: DataLayout


def data_map_head(places: Sequence[NamedPlace], size: int, alignment: int) -> bytes:
    """Return the head for `size` bytes of data; its length is a multiple of `alignment`."""
    flatbuffer = write_flatbuffer(sorted(places, key=lambda place: (place.begin, place.end, place.name)))
    begin = -(-(len(flatbuffer) + HEADER_BYTES) // alignment) * alignment
    root = int.from_bytes(flatbuffer[:4], "little") + HEADER_BYTES
    facts = (HEADER_BYTES, len(flatbuffer), begin, size)
    header = DATA_MAP_HEADER.pack(DATA_MAP_MAGIC, DATA_MAP_HEADER.size, *facts).ljust(HEADER_BYTES, b"\0")
    return (root.to_bytes(4, "little") + flatbuffer[4:8] + header + flatbuffer[8:]).ljust(begin, b"\0")


def write_flatbuffer(places: Sequence[NamedPlace]) -> bytes:
    try:
        from flatbuffers import Builder
    except ModuleNotFoundError as error:
        raise BackendError(
            "named data in the constants file needs the package `flatbuffers`, which is not installed",
            found=str(error),
            hint="add the package to `[build-system] requires`, or use the extra `executorch`",
        ) from error
    builder = Builder()
    spans = list(dict.fromkeys((place.begin, place.end) for place in places))
    named = [
        table(
            builder,
            key=("UOffsetTRelative", builder.CreateString(place.name)),
            segment=("Uint32", spans.index((place.begin, place.end))),
            layout=write_layout(builder, place.layout),
        )
        for place in places
    ]
    segments = [table(builder, offset=("Uint64", begin), size=("Uint64", end - begin)) for begin, end in spans]
    root = table(
        builder,
        version=None,  # 0
        segments=("UOffsetTRelative", vector(builder, "UOffsetTRelative", 4, segments)),
        named=("UOffsetTRelative", vector(builder, "UOffsetTRelative", 4, named)),
    )
    builder.Finish(root, file_identifier=b"FT01")
    return bytes(builder.Output())


def write_layout(builder: object, layout: DataLayout) -> tuple[str, int] | None:
    number = next((kind for kind in ScalarType if kind.dtype == getattr(torch, layout.dtype)), None)
    if number is None:  # ExecuTorch lacks some dtypes
        return None
    written = table(
        builder,
        dtype=("Int8", number),
        sizes=("UOffsetTRelative", vector(builder, "Int32", 4, layout.sizes)),
        order=("UOffsetTRelative", vector(builder, "Uint8", 1, layout.dim_order)),
    )
    return "UOffsetTRelative", written


def table(builder: Any, **fields: tuple[str, int] | None) -> int:
    # fields in the order of the schema; a field that is `None` has its default
    builder.StartObject(len(fields))
    for slot, value in enumerate(fields.values()):
        if value is not None:
            kind, number = value
            getattr(builder, f"Prepend{kind}Slot")(slot, number, 0)
    end: int = builder.EndObject()
    return end


def vector(builder: Any, kind: str, size: int, items: Sequence[int]) -> int:
    builder.StartVector(size, len(items), size)
    for item in reversed(items):
        getattr(builder, f"Prepend{kind}")(item)
    end: int = builder.EndVector()
    return end
