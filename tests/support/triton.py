"""The part of `triton_python_backend_utils` that Triton documents for `model.py`, and a run of such a file."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Tensor:
    def __init__(self, name: str, array: Array) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a {type(array).__name__} instead of an array of NumPy")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._array


class TritonError:
    def __init__(self, text: str) -> None:
        self._text = text

    def message(self) -> str:
        return self._text


class InferenceRequest:
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = list(inputs)

    def inputs(self) -> list[Tensor]:
        return self._inputs


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


UTILS = types.ModuleType("triton_python_backend_utils")
for each in (Tensor, TritonError, InferenceRequest, InferenceResponse, get_input_tensor_by_name):
    setattr(UTILS, each.__name__, each)


class TritonModel:
    """A `model.py` as Triton's Python backend runs it; arrays have Triton's shapes."""

    def __init__(self, version: Path, kind: str = "CPU") -> None:
        path = version / "model.py"
        namespace: dict[str, Any] = {"__file__": str(path), "__name__": "model"}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        self._model = namespace["TritonPythonModel"]()
        instance = {"model_instance_kind": kind, "model_instance_device_id": "3"}
        self._model.initialize({"model_name": version.parent.name, "model_version": version.name, **instance})

    def execute(self, requests: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | str]:
        """Return the outputs of each request, or the text of its error."""
        given = [InferenceRequest([Tensor(*pair) for pair in request.items()]) for request in requests]
        responses = self._model.execute(given)
        assert len(responses) == len(requests)
        return [
            {tensor.name(): tensor.as_numpy() for tensor in each.output_tensors()}
            if each.error() is None
            else each.error().message()
            for each in responses
        ]
