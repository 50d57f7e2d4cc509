"""From a partition to an ONNX model: torch's translations of ATen operators, canonical names, constants elsewhere.

The model drops all differences between equal partitions (names of nodes, parameters and symbols), and all traces of
the machine and of the exporter's version, so equal partitions give equal bytes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import optimizer
from torch.export import ExportedProgram
from torch.fx import GraphModule

from hatch_lower.backends.instructions import instruction_handles
from hatch_lower.backends.onnxruntime.attention import ATTENTION_OPSET, attend_once, choose_attention, join_heads
from hatch_lower.backends.onnxruntime.integers import multiply_integers, value_rank
from hatch_lower.backends.onnxruntime.model_file import FILE_MARK, offset_mark
from hatch_lower.backends.onnxruntime.prepare import OnnxCopy, convert_behind_numbers, count_dimensions
from hatch_lower.backends.onnxruntime.quantized import QUANTIZED
from hatch_lower.backends.onnxruntime.recurrent import OWN_RECURRENT
from hatch_lower.backends.onnxruntime.translations import NEAREST_TRANSLATIONS, TRANSLATIONS
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.nodes import Ranges
from hatch_lower.runtime.torch_private import onnx

OPSET = 20  # the newest for which torch's exporter is tested by default
IR_VERSION = 10
NEARLY = 1e-4  # more than within which onnxscript takes numbers to be the same
LITERAL_LIMIT = 4096  # elements of a result of literals; ONNX Runtime computes larger results when it loads the model
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
HIDDEN = "hidden"  # the domain of operators while no rule of onnxscript may see the operators
UNSEEN = frozenset({"Clip", "MatMul", "Max", "Min"})  # the hidden operators
FUSED = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)  # of FusedMatMul
ORIGIN = "origin"  # key of a node's metadata: the number of the operation that it comes from, while the model is made


@dataclass(frozen=True, slots=True)
class Translated:
    model: bytes  # inputs are `x0`, `x1`, …, results `y0`, `y1`, …, constants `w0`, `w1`, …
    bound: list[int]  # positions of the constants that the model takes
    call: Mapping[str, object]  # read by the run half as a `CallMap`
    # the debug handles of each node of the model, by its name; `no node` holds handles of operations that left no node
    handles: Mapping[int | str, tuple[int, ...]]


def translate(program: ExportedProgram, *, fuses: bool, on_cpu: bool) -> Translated:
    """Return a partition's model.

    Args:
        fuses: the providers have kernels for ONNX Runtime's fused product.
        on_cpu: the CPU's provider is the only provider, with kernels for products of integers and for attention.
    """
    copied = OnnxCopy(program)
    ranges = program.range_constraints if on_cpu else None
    model, values = translate_graph(GraphModule({}, copied.graph), ranges)
    graph = model.graph
    constants = {f"w{position}": values[name] for position, name in enumerate(copied.constants)}
    inputs = {f"x{position}": values[f"x{position}"] for position in copied.passed}
    # constants are inputs while the model is made, as nothing may depend on their contents
    graph.inputs.extend([*inputs.values(), *constants.values()])
    graph.outputs.extend([write_result(graph, values[name], order) for name, order in copied.layouts])
    with exporter_silenced():
        optimize(model)
    allow_zero_sizes(graph)
    join_heads(graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if on_cpu:
        multiply_integers(graph, constants.values())
    join_transposes(model, set(map(id, constants.values())), fuses=fuses)
    common.RemoveUnusedNodesPass()(model)
    rename_values(graph, [*inputs, *constants])
    bound = [
        number
        for number, (value, tensor) in enumerate(zip(constants.values(), copied.constants.values(), strict=True))
        if take_constant(graph, value, number, tensor)
    ]
    instructions = {str(node.name): origins_of(node) for node in ir.traversal.RecursiveGraphIterator(graph)}
    strip(model)
    return Translated(
        ir.to_proto(model).SerializeToString(deterministic=True),
        bound,
        copied.call_facts(),
        instruction_handles(copied.operations, copied.handles, instructions, "no node"),
    )


def translate_graph(module: GraphModule, ranges: Ranges | None) -> tuple[ir.Model, dict[str, Any]]:
    """Return a model of a graph's operations, without inputs and outputs, and values by node; the graph is changed.

    Args:
        ranges: the ranges of symbolic sizes, if the model may have ONNX's own operator for attention.
    """
    model = ir.Model(ir.Graph([], [], nodes=[], name="partition"), ir_version=IR_VERSION)
    count_dimensions(module.graph)
    convert_behind_numbers(module.graph)
    try:
        # results of parameters would require a gradient, which some operators refuse
        with exporter_silenced(), torch.no_grad():
            onnx.promote_types(module)
            newer = ranges is not None and choose_attention(module.graph, ranges)
            values = onnx.translate_fx_graph(module, model, registry())
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise BackendError(
            "an operation could not be translated to ONNX",
            found=f"{f'{type(error).__name__}: {error}'.splitlines()[0]}: {type(cause).__name__}: {cause}",
            hint="name the operator in the backend's option `exclude`",
        ) from error
    for node in model.graph:
        number = node.meta["node"].meta.get("debug_handle")
        node.metadata_props.clear()  # the exporter writes paths and scopes there
        if number is not None:
            node.metadata_props[ORIGIN] = str(number)
    model.graph.inputs.clear()
    model.graph.outputs.clear()
    model.opset_imports.clear()
    opset = ATTENTION_OPSET if newer else OPSET
    model.opset_imports[""] = opset
    for function in model.functions.values():
        # Written for 18. Operators whose meaning has changed since (DFT, GridSample) are not taken.
        function.opset_imports[""] = opset
        model.opset_imports.setdefault(function.domain, 1)
    return model, values


@cache
def registry() -> Any:
    with exporter_silenced():
        translations = onnx.translations(OPSET)
        own = {
            **TRANSLATIONS,
            **NEAREST_TRANSLATIONS,
            **QUANTIZED,
            **OWN_RECURRENT,
            attend_once: attend_once,
        }
        for target, function in own.items():
            translations.register_op(target, function)
        return translations


@contextmanager
def exporter_silenced() -> Iterator[None]:
    # the exporter's logs and warnings are of no use to a user of the build
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def write_result(graph: ir.Graph, value: ir.Value, order: tuple[int, ...] | None) -> ir.Value:
    """Return a value of its own for a result, laid out in the order of the dimensions in memory."""
    node = ir.node("Identity", [value]) if order is None else ir.node("Transpose", [value], {"perm": list(order)})
    (result,) = node.outputs
    result.type = value.type
    if value.shape is not None:
        sizes: list[Any] = list(value.shape)
        result.shape = ir.Shape(sizes if order is None else [sizes[dim] for dim in order])
    graph.append(node)
    return result


def optimize(model: ir.Model) -> None:
    """Compute results of literals, and simplify the model, in place.

    onnxscript treats every number that is nearly 0 or 1 as exact, and removes it from a sum or product: an epsilon of
    1e-8 as well. So such numbers are inputs meanwhile. Its rule for products between reshapes compares sizes only, and
    not the places to which the reshapes move elements. Its rules for limits name joined limits by the value that is
    limited, and lose the limits of all but the last where several join. So products and limits are operators of a
    domain without rules meanwhile.
    """
    common.InlinePass()(model)
    optimizer.fold_constants(model, output_size_limit=LITERAL_LIMIT)
    graph, hidden = model.graph, dict[bytes, tuple[ir.Value, ir.TensorProtocol]]()
    for node in ir.traversal.RecursiveGraphIterator(graph):
        for position, value in enumerate(node.inputs):
            tensor = None if value is None else ir.convenience.get_const_tensor(value)
            if tensor is None or not is_nearly_neutral(tensor):
                continue
            key = f"{tensor.dtype} {tensor.shape} ".encode() + tensor.tobytes()
            if key not in hidden:
                kind = ir.TensorType(tensor.dtype)
                hidden[key] = (
                    ir.Value(name=f"near{len(hidden)}", type=kind, shape=ir.Shape([1] * len(tensor.shape))),
                    tensor,
                )
            node.replace_input_with(position, hidden[key][0])
    graph.inputs.extend(value for value, _ in hidden.values())
    unseen = [node for node in ir.traversal.RecursiveGraphIterator(graph) if node.op_type in UNSEEN and not node.domain]
    for node in unseen:
        node.domain = HIDDEN
    model.opset_imports[HIDDEN] = 1
    opset = model.opset_imports[""]
    optimizer.optimize_ir(model, output_size_limit=LITERAL_LIMIT)
    for node in unseen:
        node.domain = ""
    model.opset_imports.pop(HIDDEN, None)
    model.opset_imports.setdefault("", opset)
    for value, tensor in hidden.values():
        graph.inputs.remove(value)
        value.const_value = tensor
        if value.uses():
            graph.register_initializer(value)


def is_nearly_neutral(tensor: ir.TensorProtocol) -> bool:
    if tensor.size != 1 or not tensor.dtype.is_floating_point():
        return False
    number = float(tensor.numpy().item())
    return any(0 < abs(number - neutral) <= NEARLY for neutral in (0, 1))


def allow_zero_sizes(graph: ir.Graph) -> None:
    # a computed size of 0 means 0 in a reshape, as in torch, not the input's own size
    for node in ir.traversal.RecursiveGraphIterator(graph):
        shape = node.inputs[1] if node.op_type == "Reshape" else None
        if shape is None or ir.convenience.get_const_tensor(shape) is not None:
            continue
        producer = shape.producer()
        inputs = () if producer is None else producer.inputs
        parts = [ir.convenience.get_const_tensor(value) for value in inputs if value is not None]
        if not any((part.numpy() == 0).any() for part in parts if part is not None):
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)


def join_transposes(model: ir.Model, constants: set[int], *, fuses: bool) -> None:
    """Let a product take a transposed constant untransposed: ONNX Runtime would copy it to transpose it."""
    graph = model.graph
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Transpose" else None
        if source is None or id(source) not in constants or source.shape is None or not turns_matrices(node, source):
            continue
        (turned,) = node.outputs
        for user, position in list(turned.uses()):
            is_product = user.op_type == "FusedMatMul" or (user.op_type == "MatMul" and fuses)
            if is_product and source.dtype in FUSED and min(map(value_rank, user.inputs)) >= 2:
                user.op_type, user.domain = "FusedMatMul", MICROSOFT
                model.opset_imports[MICROSOFT] = 1
            elif user.op_type != "Gemm" or position == 2:
                continue
            name = "transA" if position == 0 else "transB"
            user.attributes[name] = ir.AttrInt64(name, 1 - user.attributes.get_int(name, 0))
            user.replace_input_with(position, source)
        if not turned.uses() and not turned.is_graph_output():
            graph.remove(node, safe=True)


def turns_matrices(node: ir.Node, source: ir.Value) -> bool:
    """Return whether a transpose exchanges the last two dimensions, and no other."""
    rank = value_rank(source)
    order = node.attributes.get_ints("perm", range(rank)[::-1])
    return rank >= 2 and list(order) == [*range(rank - 2), rank - 1, rank - 2]


def rename_values(graph: ir.Graph, inputs: Sequence[str]) -> None:
    """Name nodes, values, literals and symbolic sizes by their position."""
    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in nodes for value in node.outputs)]
    taken = set(map(id, [*graph.inputs, *graph.outputs]))
    counts = {"k": 0, "v": 0}
    symbols: dict[str, str] = {}
    # twice, for a name that is to be given may be another's yet
    for prefix in ("_", ""):
        # the exporter changes the name of an input that an operation gives back
        for name, value in zip(inputs, graph.inputs, strict=True):
            value.name = prefix + name
        for index, value in enumerate(graph.outputs):
            value.name = f"{prefix}y{index}"
        for value in values:
            if id(value) not in taken:
                kind = "v" if value.const_value is None else "k"
                value.name = f"{prefix}{kind}{counts[kind]}"
                counts[kind] += 1
        counts = dict.fromkeys(counts, 0)
    for index, node in enumerate(nodes):
        node.name = f"{node.op_type}_{index}"
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([name_of_size(dim, symbols) for dim in value.shape])


def name_of_size(size: int | ir.SymbolicDim, symbols: dict[str, str]) -> int | str | None:
    if isinstance(size, int):
        return size
    # ONNX Runtime takes sizes of the same name for equal, and lets such tensors share memory: an unknown size has no
    # name
    return None if size.value is None else symbols.setdefault(size.value, f"d{len(symbols)}")


def take_constant(graph: ir.Graph, value: ir.Value, number: int, tensor: torch.Tensor) -> bool:
    """Turn the input of a constant into an initializer without contents; return whether it must be bound at load."""
    graph.inputs.remove(value)
    if not value.uses() and not value.is_graph_output():
        return False
    dtype = onnx.onnx_dtype(tensor)
    if tensor.numel():
        length = tensor.numel() * tensor.element_size()
        # the place is written when the model is loaded
        value.const_value = ir.ExternalTensor(
            FILE_MARK, offset_mark(number), length, dtype, shape=ir.Shape(tensor.shape), name=str(value.name)
        )
    else:
        value.const_value = ir.Tensor(np.zeros(tensor.shape, dtype.numpy()), dtype=dtype, name=value.name)
    graph.register_initializer(value)
    return tensor.numel() > 0


def origins_of(node: ir.Node) -> list[int]:
    return [int(number) for number in node.metadata_props.get(ORIGIN, "").replace(",", " ").split()]


def strip(model: ir.Model) -> None:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and not isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
    model.producer_name, model.producer_version, model.doc_string = "hatch-lower", None, None
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
