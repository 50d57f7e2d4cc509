"""The nodes that become ONNX models: nodes that ONNX Runtime computes as eager does, in as few groups as possible.

The exporter and ONNX Runtime decide by trial: whether a call translates, and whether all its kernels exist.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from hatch_lower.backends.engine_partitioner import EnginePartitioner, Reasons
from hatch_lower.backends.onnxruntime import support
from hatch_lower.backends.onnxruntime.library import import_onnxruntime
from hatch_lower.backends.onnxruntime.options import BACKEND_ID, OnnxruntimeOptions, providers_json
from hatch_lower.backends.onnxruntime.providers import CPU_ALONE
from hatch_lower.backends.onnxruntime.translate import allow_zero_sizes, translate_graph, write_result
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators
from hatch_lower.exir.backend.utils import unchanged_constants
from hatch_lower.exir.graph.nodes import Ranges, is_view
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import constant_of
from hatch_lower.runtime.torch_private.tensors import tree_leaves

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ONLY_SIZES = "it computes a size of a value outside the partition"


class OnnxruntimePartitioner(EnginePartitioner[Reasons]):
    """Takes calls that torch's exporter translates, ONNX Runtime has kernels for, and tests found to equal eager."""

    def __init__(self, options: OnnxruntimeOptions) -> None:
        facts = {"providers": providers_json(options), "threads": options.threads, "exclude": options.exclude}
        super().__init__(BACKEND_ID, options.to_specs(), {**facts, "finite-only": options.finite})
        self._exclude, self._finite = frozenset(options.exclude), options.finite
        self._on_cpu = options.providers == CPU_ALONE
        self._tried: dict[Hashable, str] = {}  # the answer for each kind of call

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        return list(support.KEPT), lambda node: not self._why_not(node, ep.range_constraints)

    def reasons(self, program: ExportedProgram) -> Reasons:
        # a size of a taken value is taken: taken operations may need it
        known: dict[Node, str] = {}
        constants = {node: constant_of(program, spec) for node, spec in unchanged_constants(program).items()}

        def judge(node: Node) -> str:
            if node.target is operator.getitem and isinstance(node.args[0], Node):
                return reason_of(node.args[0])
            if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
                inside = support.is_size(node) and any(known.get(source) == "" for source in node.all_input_nodes)
                return "" if inside else ONLY_SIZES
            reason = self._why_not(node, program.range_constraints)
            reason = reason or support.why_not_zero_points(node, constants) or support.why_not_bias(node, constants)
            return reason or self._why_not_tried(node)

        def reason_of(node: Node) -> str:
            if node not in known:
                known[node] = judge(node)
            return known[node]

        return reason_of

    def _why_not(self, node: Node, ranges: Ranges) -> str:
        return support.why_not_onnxruntime(node, self._exclude, finite=self._finite, ranges=ranges, on_cpu=self._on_cpu)

    def _why_not_tried(self, node: Node) -> str:
        key = call_signature(node)
        if key not in self._tried:
            self._tried[key] = try_call(node)
        return self._tried[key]

    def needs_finite(self, node: Node, why_not: Reasons) -> bool:
        return support.differs_for_nan(node)

    def computes(self, node: Node) -> bool:
        return not is_view(node) and not support.is_size(node)


def call_signature(node: Node) -> Hashable:
    """Return a key that calls with the same answer share."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: describe_argument(source.meta.get("val")))
    return (str(torch_operator(node.target)), repr(args), repr(kwargs))


def describe_argument(value: object) -> Any:
    # symbolic sizes are all the same
    if isinstance(value, (tuple, list)):
        return tuple(describe_argument(item) for item in value)
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
    """Return the model of a graph of a single call `n`, without optimization."""
    model, values = translate_graph(GraphModule({}, graph), {})
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
    # one thread and no optimization: this session only shows whether a session is possible
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
