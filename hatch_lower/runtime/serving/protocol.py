"""Requests of the open inference protocol (version 2, as KServe and Triton have it) to NumPy arrays, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import hatch_lower
from hatch_lower.errors import InputError, ProgramError, nearest
from hatch_lower.format.served import DATATYPES, ServedMethod, ServedTensor
from hatch_lower.runtime.serving.binary import (
    EXTENSION,
    BinaryInputs,
    bytes_of,
    is_binary,
    read_flag,
    split_body,
    tensor_parameters,
)

Array = np.ndarray[Any, Any]
Headers = Iterable[tuple[bytes, bytes]]
Answer = tuple[dict[str, object], bytes | None]  # JSON, and the bytes of binary outputs, which follow the JSON
VERSION = "1"  # of a server's model: a release of the distribution is a new set of files
MOST_DIMENSIONS = 64
NUMPY_DTYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}


def server_metadata() -> dict[str, object]:
    return {"name": "hatch-lower", "version": hatch_lower.__version__, "extensions": [EXTENSION]}


def model_metadata(served: ServedMethod) -> dict[str, object]:
    """Return the answer to `GET /v2/models/NAME`; a size of -1 is any size."""
    return {
        "name": served.name,
        "versions": [VERSION],
        "platform": "hatch-lower",
        "inputs": [tensor_metadata(tensor) for tensor in served.inputs],
        "outputs": [tensor_metadata(tensor) for tensor in served.outputs],
    }


def tensor_metadata(tensor: ServedTensor) -> dict[str, object]:
    shape = [*tensor.shape, 1] if tensor.lifted else list(tensor.shape)
    return {"name": tensor.name, "datatype": DATATYPES[tensor.dtype], "shape": shape}


class InferRequest:
    """A checked request: arrays by name, the id for the answer, and the asked outputs: name to binary or not.

    `headers` are those of HTTP: pairs of a name in lower case and a value.
    """

    def __init__(self, body: bytes, headers: Headers, served: ServedMethod) -> None:
        text, behind = split_body(body, headers)
        request, binary = request_object(text), BinaryInputs(behind)
        self.id = request.get("id")
        if self.id is not None and not isinstance(self.id, str):
            raise wrong("`id` is a text", self.id)
        self.inputs: dict[str, Array] = {}
        for value in objects(request.get("inputs"), "inputs"):
            name, array = read_tensor(value, binary)
            if name in self.inputs:
                raise wrong("each input is sent once", name)
            self.inputs[name] = array
        binary.check_end()
        default = read_flag(tensor_parameters(request), "binary_data_output", False)
        known = [tensor.name for tensor in served.outputs]
        asked = objects(request.get("outputs") or [], "outputs")
        if unknown := [value.get("name") for value in asked if value.get("name") not in known]:
            raise InputError(f"model `{served.name}` has no such output", found=nearest(str(unknown[0]), known))
        chosen = {str(value["name"]): is_binary(value, default) for value in asked}
        self.outputs: dict[str, bool] = chosen or dict.fromkeys(known, default)


def infer_answer(request: InferRequest, served: ServedMethod, outputs: Mapping[str, Array]) -> Answer:
    """Return the answer to an inference request. Raises `ProgramError` for numbers that JSON lacks."""
    tensors = [written_tensor(name, outputs[name], binary) for name, binary in request.outputs.items()]
    identified = {} if request.id is None else {"id": request.id}
    parts = [bytes_of(outputs[name]) for name, binary in request.outputs.items() if binary]
    value = {"model_name": served.name, "model_version": VERSION, **identified, "outputs": tensors}
    return value, b"".join(parts) if parts else None


def written_tensor(name: str, array: Array, binary: bool) -> dict[str, object]:
    written = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name]}
    if binary:
        return {**written, "parameters": {"binary_data_size": array.nbytes}}
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ProgramError(
            f"the output `{name}` has numbers that JSON cannot express",
            found="NaN or infinity",
            hint="ask for binary outputs (`binary_data`), or return finite numbers from the method",
        )
    return {**written, "data": array.reshape(-1).tolist()}


def request_object(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "the request is no JSON",
            found=f"{type(error).__name__}: {error}",
            hint="if binary tensors follow the JSON, send the header `Inference-Header-Content-Length`",
        ) from error
    if not isinstance(request, dict):
        raise wrong("the request is an object", request)
    return request


def objects(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong(f"`{name}` is a list of objects", value)
    return value


def read_tensor(value: Mapping[str, Any], binary: BinaryInputs) -> tuple[str, Array]:
    """Return name and array of a request's tensor; data are nested lists, a flat list, or bytes in the same order."""
    name, shape, datatype = value.get("name"), value.get("shape"), value.get("datatype")
    if not isinstance(name, str):
        raise wrong("`name` of a tensor is a text", name)
    if not isinstance(datatype, str) or datatype not in NUMPY_DTYPES:
        raise InputError(f"the `datatype` of `{name}` is one of {', '.join(NUMPY_DTYPES)}", found=f"{datatype!r:.40}")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        raise wrong(f"the `shape` of `{name}` is a list of sizes", shape)
    size = tensor_parameters(value).get("binary_data_size")
    if ("data" in value) == (size is not None):
        raise InputError(
            f"the tensor `{name}` has either `data` or the parameter `binary_data_size`",
            found=", ".join(map(str, value)),
        )
    if size is None:
        array = read_numbers(name, value["data"], shape, datatype)
    else:
        array = binary.take(name, size, shape, NUMPY_DTYPES[datatype])
    try:
        return name, array.reshape(shape)
    except ValueError as error:  # a size beyond NumPy's, beside a size of 0
        raise wrong(f"the `shape` of `{name}` is a list of sizes", shape) from error


def read_numbers(name: str, value: object, shape: list[int], datatype: str) -> Array:
    dtype = NUMPY_DTYPES[datatype]
    try:
        data = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"the `data` of `{name}` are no tensor", found=f"{type(error).__name__}: {error}") from error
    if data.dtype.kind not in ("biuf" if dtype.kind == "f" else "iu" if dtype.kind in "iu" else "b") and data.size:
        raise InputError(f"the `data` of `{name}` are not of the datatype {datatype}", found=f"{data.dtype}")
    if data.size != math.prod(shape) or (data.ndim != 1 and list(data.shape) != shape):
        raise InputError(f"the `data` of `{name}` do not fit its `shape`", found=f"{list(data.shape)} for {shape}")
    with np.errstate(over="ignore"):
        array = data.astype(dtype)
    if data.size and not fits_dtype(data, array):
        raise InputError(
            f"the `data` of `{name}` are outside the range of {datatype}", found=f"{data.min()}, {data.max()}"
        )
    return array


def fits_dtype(data: Array, array: Array) -> bool:
    """Return whether the conversion of `data` into `array` has kept integers, and has made no number infinite."""
    if array.dtype.kind == "f":
        return not np.any(np.isinf(array) & ~np.isinf(data))
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
    return limits is None or bool(int(data.min()) >= limits.min and int(data.max()) <= limits.max)


def wrong(what: str, found: object) -> InputError:
    return InputError(what, found=f"{found!r:.80}", hint="send an inference request of the open inference protocol")
