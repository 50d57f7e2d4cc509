"""Conversion to half precision by PyTorch's autocast: products and convolutions in the half, norms in float32."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.state import constant_of, constant_placeholders, named_after
from hatch_lower.exir.graph.surgery import copy_graph, functionalized, graph_modules, rebuild_program
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.pipeline.precision.state import without_writes
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name, schema_of

aten = torch.ops.aten

FLOATING = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# operators whose sums and quotients lose too much in a half
IN_FLOAT32 = frozenset(
    {
        *("batch_norm", "cosine_similarity", "cumprod", "cumsum", "group_norm", "instance_norm", "layer_norm"),
        *("linalg_vector_norm", "log_softmax", "logsumexp", "native_layer_norm", "norm", "renorm", "rms_norm"),
        *("softmax", "special_log_softmax", "special_softmax", "_log_softmax", "_softmax", "var", "std", "var_mean"),
    }
)
# operators that refuse halves, or a half beside a float32, or that autocast leaves in the model's own dtype
ONE_DTYPE = frozenset(
    {
        *("addmv", "addr", "bilinear", "complex", "cross", "det", "dot", "embedding_bag", "heaviside", "inner"),
        *("linalg_cross", "linalg_det", "linalg_lu", "linalg_matrix_exp", "linalg_pinv", "linalg_slogdet", "logdet"),
        *("matrix_exp", "prod", "slogdet", "special_log_ndtr", "tensordot", "vdot"),
        *("bucketize", "cdist", "grid_sampler", "gru", "index_copy", "index_copy_", "index_put", "index_put_", "lerp"),
        *("lstm", "masked_scatter", "masked_scatter_", "rnn_relu", "rnn_tanh", "scatter", "scatter_", "scatter_add"),
        *("scatter_add_", "scatter_reduce", "scatter_reduce_", "searchsorted", "select_scatter", "slice_scatter"),
        *("index_add", "index_add_", "index_fill", "index_fill_"),
    }
)


def in_half(
    program: ExportedProgram, half: torch.dtype, kept: Iterable[str] = (), state: Collection[str] = ()
) -> ExportedProgram:
    """Return a program that computes in a half, with inputs, outputs and state of the same dtypes as before.

    Weights that are only read in the half are stored in the half. `kept` are paths of modules that stay in float32,
    `state` names of tensors that calls of any method change.
    """
    paths = tuple(kept)
    cast = with_casts(without_writes(program), half, paths)
    with torch.autocast("cpu", dtype=half):
        traced = functionalized(cast)
    if paths:
        traced = with_floats(traced, half, paths)
    return with_stored_casts(with_one_dtype(without_idle_casts(traced), half), state)


def with_casts(program: ExportedProgram, half: torch.dtype, kept: tuple[str, ...]) -> ExportedProgram:
    """Return a program with explicit casts: of norms to float32, of tables of embeddings to the half, of outputs."""
    attributes, graph = copy_graph(program.graph_module)
    for module in attributes.values():
        if isinstance(module, GraphModule):  # a branch or body of control flow
            for inner in graph_modules(module):
                add_casts(inner.graph, half, kept)
                inner.recompile()
    add_casts(graph, half, kept)
    return with_graph(program, attributes, graph)


def add_casts(graph: Graph, half: torch.dtype, kept: tuple[str, ...]) -> None:
    for node in list(graph.nodes):
        target = torch_operator(node.target)
        if not isinstance(target, OpOverload):
            continue
        name = base_name(target)
        if name == "_assert_tensor_metadata":  # of a dtype, which the conversion changes
            graph.erase_node(node)
        elif name in IN_FLOAT32 | ONE_DTYPE or target is aten.view.dtype or has_number_beyond(node, half):
            # autocast changes no placeholder
            cast_inputs(graph, node, [value for value in node.all_input_nodes if value.op != "placeholder"], None)
        elif name == "embedding" and not is_in(node, kept):
            cast_inputs(graph, node, node.all_input_nodes[:1], half)
        elif name == "scaled_dot_product_attention":
            limit_mask(graph, node, half)
    output = graph.output_node()
    given = [value for value in output.all_input_nodes if value.op != "placeholder"]
    cast_inputs(graph, output, given, None, of=FLOATING)


def limit_mask(graph: Graph, attention: Node, half: torch.dtype) -> None:
    """Limit the finite numbers of an attention's float32 mask to the half's range.

    The least float32 of a mask would become infinity, and a row with all places masked zeros instead of a mean.
    """
    mask = named_arguments(attention).get("attn_mask")
    if not isinstance(mask, Node) or mask.meta["val"].dtype is not torch.float32:
        return
    limits = torch.finfo(half)
    with graph.inserting_before(attention):
        is_infinite = graph.call_function(aten.isinf.default, (mask,))
        limited = graph.call_function(aten.clamp.default, (mask, limits.min, limits.max))
        limited.meta["val"] = mask.meta["val"].clamp(limits.min, limits.max)
        is_infinite.meta["val"] = mask.meta["val"].isinf()
        result = graph.call_function(aten.where.self, (is_infinite, mask, limited))
        result.meta["val"] = limited.meta["val"]
    for each in (is_infinite, limited, result):
        each.meta |= {key: attention.meta[key] for key in ("stack_trace", "nn_module_stack") if key in attention.meta}
    attention.replace_input_with(mask, result)


def has_number_beyond(node: Node, half: torch.dtype) -> bool:
    """Return whether a number among an operation's arguments becomes infinity or zero in the half, as -1e9 of masks."""
    types = {argument.name: str(argument.type) for argument in schema_of(torch_operator(node.target)).arguments}
    for name, value in named_arguments(node).items():
        # sizes and places stay integers
        if isinstance(value, float) or (isinstance(value, int) and types[name] in ("number", "Tensor")):
            rounded = float(torch.tensor(value, dtype=torch.float64).to(half))
            if math.isfinite(value) and (math.isinf(rounded) or (value != 0 and rounded == 0)):
                return True
    return False


def with_graph(program: ExportedProgram, attributes: dict[str, object], graph: Graph) -> ExportedProgram:
    """Return the program with another graph, whose outputs may have other names."""
    values: Any = graph.output_node().args[0]
    specs = [named_after(*pair) for pair in zip(program.graph_signature.output_specs, values, strict=True)]
    signature = replace(program.graph_signature, output_specs=specs)
    return rebuild_program(program, attributes, graph, signature=signature)


def is_in(node: Node, paths: Iterable[str]) -> bool:
    """Return whether an operation belongs to a module of the given paths."""
    inner = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return any(path in inner for path in paths)


def innermost_module(node: Node) -> str:
    """Return the path of the innermost module of an operation; empty for the outermost module."""
    inner = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return inner[-1] if inner else ""


def cast_inputs(
    graph: Graph,
    node: Node,
    values: Iterable[Node],
    dtype: torch.dtype | None,
    of: Collection[torch.dtype] = (torch.float32,),
) -> None:
    """Cast inputs of the dtypes `of` to a dtype, or to their present dtypes, which autocast would change."""
    for value in values:
        held = value.meta.get("val")
        if isinstance(held, torch.Tensor) and held.dtype in of:
            with graph.inserting_before(node):
                node.replace_input_with(value, cast_of(graph, value, dtype or held.dtype, node))


def with_floats(program: ExportedProgram, half: torch.dtype, kept: Iterable[str]) -> ExportedProgram:
    """Return a program in which the operations of the kept modules compute in float32."""
    attributes, graph = copy_graph(program.graph_module)
    exact: dict[Node, Node] = {}  # of results in the half, the results in float32
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if not (isinstance(value, torch.Tensor) and value.dtype is half and is_in(node, kept)) or is_cast(node):
            continue
        if node.target is operator.getitem:  # a part of several results, which stay halves
            continue
        for source in node.all_input_nodes:
            held = source.meta.get("val")
            if isinstance(held, torch.Tensor) and held.dtype is half:
                if is_cast(source) and source.args[0].meta["val"].dtype is torch.float32:
                    node.replace_input_with(source, source.args[0])
                else:
                    with graph.inserting_before(node):
                        node.replace_input_with(source, cast_of(graph, source, torch.float32, node))
        node.meta["val"] = value.to(torch.float32)
        with graph.inserting_after(node):
            rounded = cast_of(graph, node, half, node)
        node.replace_all_uses_with(rounded, lambda user, rounded=rounded: user is not rounded)
        exact[rounded] = node
    for rounded, node in exact.items():
        for user in list(rounded.users):
            if is_cast(user) and user.meta["val"].dtype is torch.float32:
                user.replace_all_uses_with(node)
    graph.eliminate_dead_code()
    return with_graph(program, attributes, graph)


def cast_of(graph: Graph, value: Node, dtype: torch.dtype, place: Node) -> Node:
    """Add a cast of a value, with the source lines of another operation."""
    cast = graph.call_function(aten._to_copy.default, (value,), {"dtype": dtype})
    cast.meta = {key: place.meta[key] for key in ("stack_trace", "nn_module_stack") if key in place.meta}
    cast.meta["val"] = value.meta["val"].to(dtype)
    return cast


def is_cast(node: Node) -> bool:
    return node.target is aten._to_copy.default and node.kwargs.keys() == {"dtype"}


def with_one_dtype(program: ExportedProgram, half: torch.dtype) -> ExportedProgram:
    """Return a program whose operations on halves and float32 together cast the halves first, as torch does itself."""
    attributes, graph = copy_graph(program.graph_module)
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or is_cast(node) or not isinstance(value, torch.Tensor):
            continue
        given = [(source, source.meta.get("val")) for source in node.all_input_nodes]
        floats = {held.dtype for _, held in given if isinstance(held, torch.Tensor) and held.is_floating_point()}
        if value.dtype is torch.float32 and floats == {half, torch.float32}:
            for source, held in given:
                if isinstance(held, torch.Tensor) and held.dtype is half:
                    with graph.inserting_before(node):
                        node.replace_input_with(source, cast_of(graph, source, torch.float32, node))
    return with_graph(program, attributes, graph)


def without_idle_casts(program: ExportedProgram) -> ExportedProgram:
    """Return a program without casts of values that already have the dtype; the inputs and state stay copied."""
    attributes, graph = copy_graph(program.graph_module)
    given = graph.output_node().all_input_nodes
    for node in graph.nodes:
        if is_cast(node) and node.args[0].meta["val"].dtype is node.meta["val"].dtype:
            source = node.args[0]
            if source.op == "placeholder" or (node in given and source in given):
                continue
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    return with_graph(program, attributes, graph)


def with_stored_casts(program: ExportedProgram, state: Collection[str]) -> ExportedProgram:
    """Return a program whose constants are stored in the dtypes to which the program casts the constants.

    `state` are the names of tensors that calls change: these are cast in each call.
    """
    attributes, graph = copy_graph(program.graph_module)
    old = {node.name: spec for node, spec in constant_placeholders(program).items() if spec.target not in state}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    tensors, constants = dict(program.state_dict), dict(program.constants)
    for node in graph.find_nodes(op="placeholder"):
        casts = [user for user in node.users if is_cast(user)] if node.name in old else []
        stored: dict[torch.dtype, Node] = {}
        for cast in casts:
            dtype = cast.meta["val"].dtype
            if dtype not in stored:
                target = unused_name(f"{old[node.name].target}_{dtype_name(dtype)}", tensors.keys() | constants.keys())
                with graph.inserting_before(node):
                    stored[dtype] = graph.placeholder(unused_name(f"c_{target.replace('.', '_')}", specs))
                stored[dtype].meta["val"] = cast.meta["val"]
                constants[target] = constant_of(program, old[node.name]).detach().to(dtype)
                argument = TensorArgument(stored[dtype].name)
                specs[stored[dtype].name] = InputSpec(InputKind.CONSTANT_TENSOR, argument, target)
            cast.replace_all_uses_with(stored[dtype])
            graph.erase_node(cast)
        if casts and not node.users:
            graph.erase_node(node)
            tensors.pop(str(old[node.name].target), None)
            constants.pop(str(old[node.name].target), None)
    inputs = [specs[node.name] for node in graph.find_nodes(op="placeholder")]
    signature = replace(program.graph_signature, input_specs=inputs)
    return rebuild_program(program, attributes, graph, signature=signature, state_dict=tensors, constants=constants)


def unused_name(plain: str, used: Collection[str]) -> str:
    """Return a name that is not in use: the plain name, or the name with a number."""
    numbered = (f"{plain}_{number}" for number in itertools.count(1))
    return next(name for name in itertools.chain([plain], numbered) if name not in used)
