"""The protocol's extension for binary tensors: bytes behind the JSON of a request or an answer.

The header `Inference-Header-Content-Length` has the number of bytes of the JSON. A tensor with the parameter
`binary_data_size` has no `data`: its bytes, little-endian and in the order of rows, follow the JSON in the order of the
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hatch_lower.errors import InputError

Array = np.ndarray[Any, Any]
HEADER = b"inference-header-content-length"
EXTENSION = "binary_tensor_data"
MOST_DIGITS = 12


def split_body(body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, memoryview]:
    """Return the JSON of a request and the bytes behind; raise `InputError` for a header that does not fit the body."""
    length = {name.lower(): value for name, value in headers}.get(HEADER)
    if length is None:
        return body, memoryview(b"")
    if not length.isdigit() or len(length) > MOST_DIGITS or int(length) > len(body):
        raise InputError(
            "the header `Inference-Header-Content-Length` is the number of bytes of the JSON",
            found=f"{length!r:.40} for a body of {len(body)} bytes",
        )
    return body[: int(length)], memoryview(body)[int(length) :]


class BinaryInputs:
    """The bytes behind the JSON of a request, taken in the order of the inputs."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, name: str, size: object, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return the next `size` bytes as an array; raise `InputError` if the bytes do not fit."""
        wanted = math.prod(shape) * dtype.itemsize
        if type(size) is not int or size != wanted:
            raise InputError(f"the binary data of `{name}` have {wanted} bytes", found=f"{size!r:.40}")
        if size > len(self._data):
            raise InputError(
                f"the binary data of `{name}` are not complete", found=f"{len(self._data)} of {wanted} bytes"
            )
        taken, self._data = self._data[:size], self._data[size:]
        if dtype.kind != "b":
            return np.frombuffer(taken, dtype.newbyteorder("<")).astype(dtype)
        flags = np.frombuffer(taken, np.uint8)
        if flags.size and int(flags.max()) > 1:
            raise InputError(f"the binary data of `{name}` are 0 or 1", found=f"{flags.max()}")
        return flags.astype(dtype)

    def check_end(self) -> None:
        if len(self._data):
            raise InputError("bytes of no input follow the JSON", found=f"{len(self._data)} bytes")


def is_binary(output: Mapping[str, Any], default: bool) -> bool:
    """Return whether an output that a request asks for is to be sent as bytes."""
    return read_flag(tensor_parameters(output), "binary_data", default)


def tensor_parameters(value: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = value.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InputError("`parameters` is an object", found=f"{parameters!r:.80}")
    return parameters or {}


def read_flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"`{name}` is true or false", found=f"{value!r:.80}")
    return value


def bytes_of(array: Array) -> bytes:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
