"""A packaged model behind MLflow's interface `python_function`: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_lower.errors import InputError
from hatch_lower.format.tree import Leaf
from hatch_lower.mlflow.flavor import open_saved
from hatch_lower.runtime.loaded import LoadedModel, loaded_plan
from hatch_lower.runtime.serving.method import NamedCall
from hatch_lower.runtime.serving.tensors import output_names, served_inputs


class ServedModel:
    """A method of a model; MLflow calls `predict`."""

    def __init__(self, model: LoadedModel, method: str) -> None:
        plan = loaded_plan(model)
        assert plan is not None, "a model of a wheel has a plan"
        where = f"model `{model.name}`, method `{method}`"
        inputs = [tensor.name for tensor in served_inputs(plan.methods[method], where)]
        outputs = output_names(plan.methods[method], set(inputs))
        self._where, self._signature = where, model.signature(method)
        self._is_single = isinstance(plan.methods[method].outputs, Leaf)
        self._call = NamedCall(model, method, inputs, outputs)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Call the method.

        Args:
            model_input: arrays by the names of the signature.

        Returns:
            The method's output as an array; several outputs as arrays by name. `bfloat16` becomes `float32`.
        """
        if not isinstance(model_input, Mapping):
            raise InputError(
                "MLflow gives the model no arrays by name",
                where=self._where,
                found=f"`{type(model_input).__name__}`",
                hint=f"give a dict: {self._signature}",
            )
        found = self._call(model_input)
        return next(iter(found.values())) if self._is_single and found else found


def load_pyfunc(path: str) -> ServedModel:
    """Load the model in a folder of MLflow; `mlflow.pyfunc` calls this function."""
    return ServedModel(*open_saved(Path(path)))
