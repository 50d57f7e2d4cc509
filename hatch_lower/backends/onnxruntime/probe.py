"""Asks the exporter and ONNX Runtime themselves: whether a call translates, and every kernel that it needs is there."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.fx import Graph, GraphModule, Node

from hatch_lower.backends.onnxruntime.library import import_onnxruntime
from hatch_lower.backends.onnxruntime.translate import allow_zero_sizes, translate_graph, write_result
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.torch_private.trees import tree_leaves

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def signature(node: Node) -> Hashable:
    """Return what calls have in common for which the answer is the same."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: describe(source.meta.get("val")))
    return (str(torch_operator(node.target)), repr(args), repr(kwargs))


def describe(value: object) -> Any:
    # symbolic sizes are all the same
    if isinstance(value, (tuple, list)):
        return tuple(describe(item) for item in value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}[{','.join(str(size) if isinstance(size, int) else 's' for size in value.shape)}]"
    return type(value).__name__


def try_call(node: Node) -> str:
    graph = Graph()
    sources: dict[Node, Node] = {}
    for number, source in enumerate(node.all_input_nodes):
        sources[source] = graph.placeholder(f"x{number}")
        sources[source].meta["val"] = source.meta["val"]
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), sources.__getitem__)
    call = graph.create_node("call_function", torch_operator(node.target), args, kwargs, name="n")
    call.meta.update(val=node.meta["val"])
    graph.output((call,))
    try:
        make_session(call_model(graph))
    except BackendError as error:
        return f"torch's exporter does not translate it: {error.found.splitlines()[0]}"
    except Exception as error:
        return f"ONNX Runtime refuses it: {f'{type(error).__name__}: {error}'.splitlines()[0]}"
    return ""


def call_model(graph: Graph) -> bytes:
    """Return the model of a graph of one call `n`, as it is, without optimisation."""
    model, values = translate_graph(GraphModule({}, graph))
    allow_zero_sizes(model.graph)
    model.graph.inputs.extend(values[node.name] for node in graph.find_nodes(op="placeholder"))
    results = [value for value in tree_leaves(values["n"]) if isinstance(value, ir.Value)]
    # a call that gives its input back names the input after itself
    model.graph.outputs.extend([write_result(model.graph, value, None) for value in results])
    for index, (value, result) in enumerate(zip(results, model.graph.outputs, strict=True)):
        result.name, result.type = f"y{index}", value.type
    for index, value in enumerate(model.graph.inputs):
        value.name = f"x{index}"
    return bytes(ir.to_proto(model).SerializeToString())


def make_session(model: bytes) -> InferenceSession:
    # one thread and no optimisation: this session is made to see whether it can be
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
