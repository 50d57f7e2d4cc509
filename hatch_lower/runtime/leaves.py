"""A method's flat inputs from stored tensors: packaged check inputs, or a sample."""

from __future__ import annotations

from collections.abc import Mapping

from hatch_lower.format.arguments import Literal, LiteralInput, Special, TensorInput
from hatch_lower.format.expression import evaluate_size, symbols_in
from hatch_lower.format.plan import MethodPlan
from hatch_lower.format.values import DTYPES
from hatch_lower.runtime.arrays import Array, Arrays
from hatch_lower.runtime.mapped import ConstantsFile


def stored_arrays(file: ConstantsFile, where: str, arrays: Arrays) -> dict[str, Array]:
    return {key: arrays.stored(tensor, f"{where}: {key!r:.80}") for key, tensor in file.contents().items()}


def input_leaves(
    name: str, method: MethodPlan, tensors: Mapping[str, Array], arrays: Arrays
) -> tuple[list[object], str]:
    """Return a method's flat check inputs, or the reason why they are incomplete."""
    leaves: list[object] = []
    sizes: dict[str, int] = {}
    found: dict[int, Array] = {}
    for index, entry in enumerate(method.inputs):
        if isinstance(entry, TensorInput):
            stored = tensors.get(f"{name}/input/{index}")
            if stored is None:
                return [], f"its input {index + 1} is not packaged"
            found[index] = as_dtype(stored, entry.dtype, arrays)
            pairs = zip(entry.shape, found[index].shape, strict=False)
            sizes |= {expression: size for expression, size in pairs if isinstance(expression, str)}
    mutated = {index for index, _ in method.input_mutations}
    for index, entry in enumerate(method.inputs):
        if isinstance(entry, TensorInput):
            array = found[index]
            known = all(symbols_in(stride) <= sizes.keys() for stride in entry.stride)
            if index in mutated and known and len(entry.stride) == array.ndim:
                # an array changed in place must have the exported strides
                array = arrays.restrided(array, tuple(evaluate_size(stride, sizes) for stride in entry.stride))
            leaves.append(array)
        elif isinstance(entry, LiteralInput):
            leaves.append(literal_value(entry.value))
        elif (given := tensors.get(f"{name}/input/{index}")) is not None:
            leaves.append(given.item() if given.ndim == 0 else given)
        elif symbols_in(entry.expr) <= sizes.keys():
            leaves.append(evaluate_size(entry.expr, sizes))
        else:
            return [], f"its input {index + 1} is an integer, which is not packaged"
    return leaves, ""


def as_dtype(stored: Array, dtype: str, arrays: Arrays) -> Array:
    # tensors of dtypes that safetensors lacks are stored as bytes
    if DTYPES[dtype].safetensors is not None or arrays.dtype_name(stored) != "uint8" or stored.ndim == 0:
        return stored
    return arrays.of_bytes(stored, dtype) if stored.shape[-1] == DTYPES[dtype].size else stored


def literal_value(literal: Literal) -> object:
    if not isinstance(literal, Special):
        return literal
    from hatch_lower.runtime.torch_arrays import ARRAYS  # constants of torch exist only in programs that need torch

    return ARRAYS.special(literal)
