"""The inputs of a packaged method as MLflow states them: names, NumPy dtypes and shapes, -1 for a dynamic size."""

from __future__ import annotations

from typing import Any

from hatch_lower.errors import InputError
from hatch_lower.format.arguments import LiteralInput, TensorInput
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.tree import Leaf


def mlflow_signature(method: MethodPlan, where: str) -> Any:
    """Return a `ModelSignature` of the tensors that a method takes.

    Raises:
        InputError: for a parameter that is no tensor, or whose dtype NumPy does not have.
    """
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    specs = []
    inputs = iter(method.inputs)
    for parameter in method.parameters:
        if parameter.tree is None:
            continue
        entry = next(inputs) if isinstance(parameter.tree, Leaf) else None
        if isinstance(entry, LiteralInput):
            continue
        if not isinstance(entry, TensorInput):
            raise refused_parameter(where, f"the parameter `{parameter.name}` is no tensor")
        try:
            dtype = np.dtype(entry.dtype)
        except TypeError:
            raise refused_parameter(where, f"`{parameter.name}` is {entry.dtype}") from None
        shape = tuple(size if isinstance(size, int) else -1 for size in entry.shape)
        specs.append(TensorSpec(dtype, shape, parameter.name))
    return ModelSignature(inputs=Schema(specs))


def fixed_arguments(method: MethodPlan) -> dict[str, object]:
    """Return the arguments by name for which a method is specialized."""
    leaves = [parameter for parameter in method.parameters if isinstance(parameter.tree, Leaf)]
    pairs = zip(leaves, method.inputs, strict=True)  # `mlflow_signature` refuses containers
    return {parameter.name: entry.value for parameter, entry in pairs if isinstance(entry, LiteralInput)}


def refused_parameter(where: str, found: str) -> InputError:
    return InputError(
        "MLflow cannot call the method: its parameters must be tensors with dtypes that NumPy has",
        where=where,
        found=found,
        hint="name another method, or declare a method that takes such tensors",
    )
