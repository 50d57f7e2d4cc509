"""A packaged model behind MLflow's interface `python_function`: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hatch_lower.errors import InputError
from hatch_lower.mlflow.flavor import open_saved
from hatch_lower.runtime.loaded import LoadedModel, arrays_of
from hatch_lower.runtime.texts import in_library


class ServedModel:
    """A method of a model; MLflow calls `predict`."""

    def __init__(self, model: LoadedModel, method: str, fixed: Mapping[str, object]) -> None:
        self._model, self._method, self._fixed = model, method, fixed

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Call the method.

        Args:
            model_input: arrays by parameter, as the signature names them.

        Returns:
            The method's output as an array; several outputs as arrays by path: `0`, `boxes`, `boxes.0`.
            `bfloat16` becomes `float32`.
        """
        if not isinstance(model_input, Mapping):
            raise InputError(
                "MLflow gives the model no arrays by name",
                where=f"model `{self._model.name}`, method `{self._method}`",
                found=f"`{type(model_input).__name__}`",
                hint=f"give a dict: {self._model.signature(self._method)}",
            )
        library = arrays_of(self._model)
        arguments = {name: in_library(value, library) for name, value in model_input.items()}
        found = dict(leaves_of(self._model[self._method](**arguments, **self._fixed), ""))
        return found[""] if found.keys() == {""} else found


def load_pyfunc(path: str) -> ServedModel:
    """Load the model in a folder of MLflow; `mlflow.pyfunc` calls this function."""
    return ServedModel(*open_saved(Path(path)))


def leaves_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in an output, by path; `None` has none."""
    if value is None:
        return
    if isinstance(value, Mapping):
        members = dict(value)
    elif is_dataclass(value):
        members = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        members = dict(zip(names, value, strict=True))
    else:
        yield path, as_numpy(value)
        return
    for name, member in members.items():
        yield from leaves_of(member, f"{path}.{name}" if path else str(name))


def as_numpy(value: Any) -> Any:
    import numpy as np

    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
