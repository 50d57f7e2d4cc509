"""torch's translations of operators to ONNX, for graphs that are not exported programs."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule
from torch.onnx._internal.exporter import _core, _registration
from torch.onnx._internal.fx import passes

from hatch_lower.runtime.torch_private.recurrent import recurrent_shapes


def promote_types(module: GraphModule) -> None:
    """Make the implicit dtype conversions of operators explicit in a graph, in place."""
    with recurrent_shapes():  # the pass runs the graph on fake tensors, whose steps would fix a dynamic length
        passes.InsertTypePromotion(module).run()


def translate_fx_graph(module: GraphModule, model: Any, registry: Any) -> dict[str, Any]:
    """Add the operations of a graph to a model of `onnx_ir`; return the values of its nodes by name."""
    return _core._translate_fx_graph(
        module.graph, model, graph_like=model.graph, owned_graphs={}, lower="at_conversion", registry=registry
    )


def translations(opset: int) -> Any:
    """Return a registry with torch's translations, to which the caller may add translations."""
    return _registration.ONNXRegistry.from_torchlib(opset_version=opset)


def onnx_dtype(tensor: torch.Tensor) -> Any:
    return _core.TorchTensor(tensor).dtype
