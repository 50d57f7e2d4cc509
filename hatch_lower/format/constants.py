"""Constants of a plan: views of one-dimensional storages in the constants file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hatch_lower.canonical import sha256_bytes
from hatch_lower.format.dtypes import DTYPES
from hatch_lower.format.reading import read_bool, read_fields, read_list, read_natural, read_text, refuse


@dataclass(frozen=True, slots=True)
class Storage:
    """A one-dimensional tensor in the constants file: `length` elements of `dtype`, in memory order.

    Its key is the `content_key` of what it held when it was packaged.
    """

    key: str
    dtype: str
    length: int

    @property
    def may_hold_indices(self) -> bool:
        """Whether its elements may say where in memory to read, so that no other ones may be loaded."""
        return self.dtype in ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Constant:
    """A view of a storage; shape, stride and offset in elements of its own dtype.

    Args:
        storage: index into the plan's storages; tied constants have the same.
        mutable: whether some method changes it in place.
    """

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    mutable: bool


def content_key(dtype: str, sha256: str) -> str:
    """Return the key of a storage whose memory has this sha256."""
    return sha256_bytes(f"{dtype} {sha256}".encode())


def read_storage(value: Any, where: str) -> Storage:
    """Return a storage of a dtype that safetensors can hold."""
    fields = read_fields(value, frozenset({"key", "dtype", "length"}), where)
    dtype = _read_dtype(fields["dtype"], where)
    if DTYPES[dtype].safetensors is None:
        refuse(where, f"a storage of {dtype}, which safetensors cannot hold")
    return Storage(read_text(fields["key"], where), dtype, read_natural(fields["length"], where))


def read_constant(value: Any, storages: tuple[Storage, ...], where: str) -> Constant:
    """Return a constant that lies within its storage."""
    fields = read_fields(value, frozenset({"storage", "dtype", "shape", "stride", "offset", "mutable"}), where)
    index = read_natural(fields["storage"], where)
    if index >= len(storages):
        refuse(where, f"storage {index} of {len(storages)}")
    dtype = _read_dtype(fields["dtype"], where)
    shape = tuple(read_natural(each, where) for each in read_list(fields["shape"], where))
    stride = tuple(read_natural(each, where) for each in read_list(fields["stride"], where))
    offset = read_natural(fields["offset"], where)
    if len(shape) != len(stride):
        refuse(where, f"{len(shape)} sizes and {len(stride)} strides")
    size = storages[index].length * DTYPES[storages[index].dtype].size
    if size % DTYPES[dtype].size and dtype != storages[index].dtype:
        refuse(where, f"a storage of {size} bytes seen as {dtype}")
    last = offset + sum((count - 1) * step for count, step in zip(shape, stride, strict=True))
    if (all(shape) and last * DTYPES[dtype].size >= size) or offset * DTYPES[dtype].size > size:
        refuse(where, f"a view of {list(shape)} that ends beyond its storage")
    return Constant(index, dtype, shape, stride, offset, read_bool(fields["mutable"], where))


def storage_json(storage: Storage) -> dict[str, Any]:
    """Return the JSON value that `read_storage` reads."""
    return {"key": storage.key, "dtype": storage.dtype, "length": storage.length}


def constant_json(constant: Constant) -> dict[str, Any]:
    """Return the JSON value that `read_constant` reads."""
    return {
        "storage": constant.storage,
        "dtype": constant.dtype,
        "shape": list(constant.shape),
        "stride": list(constant.stride),
        "offset": constant.offset,
        "mutable": constant.mutable,
    }


def _read_dtype(value: Any, where: str) -> str:
    if not isinstance(value, str) or value not in DTYPES:
        refuse(where, f"the dtype {value!r:.40}")
    return value
