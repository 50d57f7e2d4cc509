"""The engines by hand: each function converts a module into a folder, and returns a call that gives NumPy's arrays.

Settings are the engine's own, as its documentation has a user write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

__all__ = ["BY_HAND", "onnx_counts"]

Call = Callable[[], Sequence[Any]]


def hand_onnxruntime(module: torch.nn.Module, args: tuple[Any, ...], folder: Path) -> Call:
    import onnxruntime

    file = folder / "model.onnx"
    if not file.exists():
        program = torch.onnx.export(module, args, dynamo=True, external_data=True, verbose=False)
        assert program is not None
        program.save(str(file), external_data=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feed = {value.name: arg.numpy() for value, arg in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, feed)


def hand_openvino(module: torch.nn.Module, args: tuple[Any, ...], folder: Path) -> Call:
    import openvino

    file = folder / "model.xml"
    if not file.exists():
        converted = openvino.convert_model(torch.export.export(module, args))
        openvino.save_model(converted, file, compress_to_fp16=False)
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(file, "CPU", hints)
    given = [arg.numpy() for arg in args]
    outputs = compiled.outputs

    def call() -> Sequence[Any]:
        found = compiled(given, share_inputs=True, share_outputs=False)
        return [found[value] for value in outputs]

    return call


def hand_executorch(module: torch.nn.Module, args: tuple[Any, ...], folder: Path) -> Call:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    file = folder / "model.pte"
    if not file.exists():
        edge = to_edge_transform_and_lower(torch.export.export(module, args), partitioner=[XnnpackPartitioner()])
        file.write_bytes(edge.to_executorch().buffer)
    method = Runtime.get().load_program(file).load_method("forward")
    return lambda: method.execute(args)


BY_HAND: Mapping[str, Callable[[torch.nn.Module, tuple[Any, ...], Path], Call]] = {
    "onnxruntime": hand_onnxruntime,
    "openvino": hand_openvino,
    "executorch": hand_executorch,
}


def onnx_counts(file: Path, optimized: Path) -> Counter[str]:
    """Return how many nodes of each operator ONNX Runtime executes for a model."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(optimized)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(str(optimized), load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes)


def arrays(values: Any) -> list[Any]:
    """Return a result of a call as NumPy's arrays."""
    listed = values if isinstance(values, (tuple, list)) else [values]
    return [value.numpy() if isinstance(value, torch.Tensor) else numpy.asarray(value) for value in listed]
