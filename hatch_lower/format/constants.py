"""Constants of a plan: views of one-dimensional storages in the constants file."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hatch_lower.canonical import sha256_bytes
from hatch_lower.format.codec import Damage
from hatch_lower.format.values import DTYPES, Dtype, Natural, Text

# A constants file with named data of delegates is also an ExecuTorch `.ptd` file. This header follows the first 8
# bytes: magic, length of the header, offset and length of the flatbuffer, offset and length of the data.
DATA_MAP_MAGIC = b"FH01"
DATA_MAP_HEADER = struct.Struct("<4sIQQQQ")
DATA_MAP_BYTES = 8 + DATA_MAP_HEADER.size

LENGTH_BYTES = 8  # a safetensors file begins with the length of its header in 8 bytes
HEADER_LIMIT = 100_000_000  # bytes, the limit of safetensors itself

CONSTANTS, CONSTANTS_WITH_MAP = "constants.safetensors", "constants.ptd"
CONSTANTS_FILES = (f"/{CONSTANTS}", f"/{CONSTANTS_WITH_MAP}")


@dataclass(frozen=True, slots=True)
class Storage:
    """A one-dimensional tensor in the constants file, in memory order."""

    key: Text  # `content_key` of the packaged bytes
    dtype: Dtype
    length: Natural  # elements

    def validate(self) -> None:
        if DTYPES[self.dtype].safetensors is None:
            raise Damage(f"a storage of {self.dtype}, which safetensors cannot hold")

    @property
    def nbytes(self) -> int:
        return self.length * DTYPES[self.dtype].size

    @property
    def may_hold_indices(self) -> bool:
        # elements that may be offsets into memory: the bytes must match their digest before use
        return self.dtype in ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Constant:
    """A view of a storage; shape, stride and offset in elements of the view's dtype."""

    storage: Natural  # index into the plan's storages; tied constants share a storage
    dtype: Dtype
    shape: tuple[Natural, ...]
    stride: tuple[Natural, ...]
    offset: Natural
    mutable: bool  # whether a method writes to the constant in place


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The entry of a tensor in the header of a safetensors file; the offsets are bytes after the header."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


def tensors_begin(data: bytes) -> int:
    """Return the offset of the safetensors file in a constants file, from the file's first `DATA_MAP_BYTES`."""
    if data[8:12] != DATA_MAP_MAGIC or len(data) < DATA_MAP_BYTES:
        return 0
    begin: int = DATA_MAP_HEADER.unpack_from(data, 8)[4]
    return begin


def header_span(data: memoryview, begin: int = 0) -> tuple[int, int] | None:
    """Return begin and end of the header of the safetensors file at `begin`; `None` if the file is too short."""
    first = begin + LENGTH_BYTES
    length = int.from_bytes(data[begin:first], "little")
    return (first, first + length) if length <= min(len(data) - first, HEADER_LIMIT) else None


def content_key(dtype: str, sha256: str) -> str:
    return sha256_bytes(f"{dtype} {sha256}".encode())


def check_view(constant: Constant, storages: Sequence[Storage]) -> None:
    if constant.storage >= len(storages):
        raise Damage(f"storage {constant.storage} of {len(storages)}")
    storage, shape = storages[constant.storage], constant.shape
    if len(shape) != len(constant.stride):
        raise Damage(f"{len(shape)} sizes and {len(constant.stride)} strides")
    size, element = storage.nbytes, DTYPES[constant.dtype].size
    if size % element and constant.dtype != storage.dtype:
        raise Damage(f"a storage of {size} bytes seen as {constant.dtype}")
    last = constant.offset + sum((count - 1) * step for count, step in zip(shape, constant.stride, strict=True))
    if (all(shape) and last * element >= size) or constant.offset * element > size:
        raise Damage(f"a view of {list(shape)} that ends beyond its storage")
