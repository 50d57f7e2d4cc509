"""A delegate's model as files for other programs with ONNX Runtime: public names of values, and weights beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hatch_lower.backends.onnxruntime.model_file import relocate

MODEL, WEIGHTS = "model.onnx", "model.onnx.data"
ALIGNMENT = 4096  # bytes, so that weights can be mapped
INNER = "inner/"  # before the names of values that are neither inputs nor outputs
# operators whose results ONNX Runtime's usual optimizations change; the run half turns these optimizations off
QUANTIZED = (b"QuantizeLinear", b"DequantizeLinear", b"MatMulInteger", b"DynamicQuantizeLinear")


def has_integer_products(model: bytes) -> bool:
    return any(name in model for name in QUANTIZED)


def write_standalone(
    folder: Path, model: bytes, names: Mapping[str, str], weights: Mapping[int, np.ndarray[Any, Any]]
) -> None:
    """Write `model.onnx` and its weights.

    Args:
        folder: where the files are written.
        model: the bytes of a delegate, with marks for the places of weights.
        names: from the name of each input and output in the bytes to the public name.
        weights: the constants that the model takes, by position.
    """
    import onnx

    places: dict[int, tuple[str, int]] = {}
    with (folder / WEIGHTS).open("wb") as file:
        for position, weight in weights.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            places[position] = (WEIGHTS, file.tell())
            file.write(np.ascontiguousarray(weight).reshape(-1).view(np.uint8).data)
    found: Any = onnx.ModelProto.FromString(relocate(model, places))
    for tensor in found.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = WEIGHTS
    rename_graph(found.graph, names)
    (folder / MODEL).write_bytes(found.SerializeToString(deterministic=True))
    if not weights:
        (folder / WEIGHTS).unlink()


def rename_graph(graph: Any, names: Mapping[str, str]) -> None:
    """Rename all values of a graph and of graphs inside it; values without a public name get a prefix."""

    def renamed(name: str) -> str:
        return names.get(name, INNER + name) if name else ""

    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed(value.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = list(map(renamed, values))
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                rename_graph(inner, names)


def difference(folder: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> str:
    """Run a written model as another program would; return how the results differ from the outputs, or ""."""
    from hatch_lower.backends.onnxruntime.library import CPU, import_onnxruntime
    from hatch_lower.runtime.numbers import Tolerance, number_difference

    names = list(outputs)
    try:
        session = import_onnxruntime().InferenceSession(str(folder / MODEL), providers=[CPU])
        results: Sequence[Any] = session.run(names, dict(inputs))
    except Exception as error:
        return f"ONNX Runtime refuses the model without the settings of the run half: {type(error).__name__}: {error}"
    for name, result in zip(names, results, strict=True):
        expected = outputs[name]
        if (expected.dtype, expected.shape) != (result.dtype, result.shape):
            return f"`{name}` is {result.dtype}{list(result.shape)} instead of {expected.dtype}{list(expected.shape)}"
        if found := number_difference(expected, result, Tolerance().widened([result.dtype.name]))[0]:
            return f"`{name}` without the settings of the run half: {found}"
    return ""
