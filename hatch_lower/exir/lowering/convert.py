"""From an exported ATen program to an edge program, without tokens for side effects, and back for backends that take
ATen.

An operation takes a token and returns the next, and so does the program. Lowering removes the tokens: the graph's own
order is enough, and the program is then called with tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import get_current_meta

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects._ops import edge_overload, torch_overload
from hatch_lower.exir.dialects.edge.verify import EdgeVerifier
from hatch_lower.exir.graph.state import input_pairs, named_after, output_pairs
from hatch_lower.exir.graph.surgery import (
    all_nodes,
    copy_program,
    graph_modules,
    oldest_ancestor,
    rebuild_program,
)
from hatch_lower.exir.lowering.adopt import adopt_lowered, highest_debug_handle
from hatch_lower.exir.lowering.regions import without_regions
from hatch_lower.runtime.torch_private.older import checked_decompositions
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of
from hatch_lower.runtime.torch_private.programs import (
    Verifier,
    change_signature,
    decompose_program,
    name_after_target,
)

WITH_EFFECTS = torch.ops.higher_order.with_effects


def remove_tokens(program: ExportedProgram) -> None:
    """Replace calls with tokens by direct calls of the operations, in place."""
    inputs = input_pairs(program)
    given = [spec for spec, _ in inputs if spec.kind is not InputKind.TOKEN]
    if len(given) == len(inputs):
        return
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=WITH_EFFECTS):
        call_directly(node)
    results = [(spec, value) for spec, value in output_pairs(program) if spec.kind is not OutputKind.TOKEN]
    graph.output_node().args = (tuple(value for _, value in results),)
    for spec, node in inputs:
        if spec.kind is InputKind.TOKEN:
            graph.erase_node(node)
    program.graph_module.recompile()
    change_signature(program, ExportGraphSignature(given, [named_after(spec, value) for spec, value in results]))


def call_directly(node: Node) -> None:
    """Replace a call with a token by a direct call of the operation."""
    given: Any = node.args
    token, op, *args = given
    _, *values = node.meta["val"]
    several = len(schema_of(op).returns) > 1
    with node.graph.inserting_before(node):
        call = node.graph.call_function(op, tuple(args), dict(node.kwargs))
    call.meta = {**node.meta, "val": tuple(values) if several else next(iter(values), None)}
    for result in list(node.users):
        place: Any = result.args[1]
        if several and place:
            result.args = (call, place - 1)
        else:
            result.replace_all_uses_with(call if place else token)
            node.graph.erase_node(result)
    node.graph.erase_node(node)


# metadata key of an exported operation: its operator, and whether the operation stays whole; torch never copies the key
KEPT = "hatch_lower_kept"

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # torch's attention on a CPU
CHECK_WITH_RESULT = torch.ops.aten._functional_assert_async.msg  # its result keeps checks in order

Wanted = Callable[[Node], bool]


def decompose(
    program: ExportedProgram, keep: Sequence[OpOverload], keep_nodes: Mapping[OpOverload, Wanted] = MappingProxyType({})
) -> ExportedProgram:
    """Return `program` in functional core ATen ops; ops of `keep` and the chosen calls of `keep_nodes` stay whole."""
    program = without_regions(program)
    table: Any = default_decompositions()
    table[ATTENTION] = decompose_attention
    for op, decomposition in checked_decompositions().items():
        table[op] = decomposition
    for op in keep:
        table.pop(op, None)
    some = {op: wanted for op, wanted in keep_nodes.items() if op not in keep and op in table}
    born: set[OpOverload] = set()
    decomposed = decompose_unwanted(program, table, some, born)
    if born:
        # decompositions of other operators call these: decompose the callers first, so that every call is a node
        others = {op: decomposition for op, decomposition in table.items() if op not in some}
        program = decompose_program(program, others)
        decomposed = decompose_unwanted(program, table, some, set())
    return decomposed


def decompose_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    # The result has the query's order in memory, which torch's own decomposition does not keep: a `view` of the result,
    # as in GPT-2, could then not be decomposed.
    result, weights = torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=query.size(1) != key.size(1)
    )
    order = query.dim_order()
    return result.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))]), weights


def decompose_unwanted(
    program: ExportedProgram,
    table: Mapping[OpOverload, Callable[..., object]],
    some: Mapping[OpOverload, Wanted],
    born: set[OpOverload],
) -> ExportedProgram:
    """Decompose `program`, except for the operations for which the function in `some` is true."""
    # `born` collects the ops of `some` that decompositions of other operators call
    own = {op: partial(decompose_unmarked, op, table[op], born) for op in some}
    # marked on the program itself: torch would record a copy's nodes as the ancestors of new nodes
    marked = [node for node in all_nodes(program.graph_module) if node.op == "call_function"] if some else []
    for node in marked:
        target: Any = node.target
        node.meta[KEPT] = target, target in some and some[target](node)
    try:
        decomposed = decompose_program(program, {**table, **own})
    finally:
        for node in marked:
            del node.meta[KEPT]
    remove_tokens(decomposed)
    return decomposed


def decompose_unmarked(
    op: OpOverload, decomposition: Callable[..., object], born: set[OpOverload], *args: object, **kwargs: object
) -> object:
    # called while torch traces the program; `NotImplemented` makes torch keep the operation whole
    target, wanted = get_current_meta().get(KEPT, (None, False))
    if target is op and wanted:
        return NotImplemented
    if target is not op and isinstance(target, OpOverload):  # not where torch goes through a branch of control flow
        born.add(op)
    return decomposition(*args, **kwargs)


def to_edge(
    program: ExportedProgram,
    *,
    keep: Sequence[OpOverload] = (),
    keep_nodes: Mapping[OpOverload, Wanted] = MappingProxyType({}),
) -> ExportedProgram:
    """Convert a program, as `torch.export.export` returns it, to the edge dialect."""
    # Every operation gets a debug handle; operations from the same operation of `program` share a handle. Ops of `keep`
    # are not decomposed. `keep_nodes` maps an op to a function of the exported node that is true for the calls to keep
    # whole.
    try:
        aten = decompose(program, keep, keep_nodes)
        replace_targets(aten.graph_module)
        assign_debug_handles(aten.graph_module)
        adopt_lowered(aten.graph_module, highest_debug_handle(aten.graph_module))
        outputs = [named_after(spec, value) for spec, value in output_pairs(aten)]
        signature = replace(aten.graph_signature, output_specs=outputs)
        return rebuild_program(aten, aten.graph_module, aten.graph, signature=signature, verifier=EdgeVerifier)
    except EdgeError:
        raise
    except Exception as error:
        raise EdgeError(
            "the exported program could not be converted to the edge dialect",
            found=f"{type(error).__name__}: {error}",
            hint="replace the operation named above, or use a backend that takes the whole operation",
        ) from error


def to_aten(program: ExportedProgram) -> ExportedProgram:
    """Return the same program with torch's own overloads, sharing its tensors; metadata and names are kept."""
    # for backends whose compilers take ATen
    return copy_program(program, torch_overload, verifier=Verifier)


def replace_targets(module: GraphModule) -> None:
    """Make every torch overload of a decomposed graph an edge operator, in place, named as in ExecuTorch."""
    for inner in graph_modules(module):
        remove_idle(inner.graph)
        for node in inner.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                if not schema_of(node.target).returns:
                    node.meta["val"] = None
                node.target = edge_overload(node.target)
                name_after_target(node)  # `aten_add_tensor`
        inner.recompile()


def remove_idle(graph: Graph) -> None:
    """Remove operations that change no result, such as torch's checks of dtypes."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.cat.default:
            drop_empty_parts(node)
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)  # dtypes and devices are known by now
        elif node.op == "call_function" and moves_nothing(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
    graph.eliminate_dead_code(lambda node: node.op != "call_function" or does_more_than_compute(node))


def does_more_than_compute(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", "") != "_operator"  # arithmetic on sizes, or `getitem`
    checks = not schema_of(target).returns or target is CHECK_WITH_RESULT
    binds = bool(node.meta.get("unbacked_bindings"))  # a size that other sizes may depend on
    return checks or binds or target.namespace != "aten" or node.is_impure()


def drop_empty_parts(node: Node) -> None:
    """Remove empty parts of a concatenation, as where a rotary embedding rotates the whole head."""
    parts: Any = node.args[0]
    values = [part.meta["val"] for part in parts]
    full = [index for index, value in enumerate(values) if not any(is_equal_size(size, 0) for size in value.shape)]
    # the memory order of the result depends on all parts, unless each has the usual order
    usual = all(lies_in_order(values[index]) for index in full)
    if full and usual and len({value.dtype for value in values}) == 1:
        node.update_arg(0, [parts[index] for index in full])


def lies_in_order(value: torch.Tensor) -> bool:
    """Return whether a tensor is certainly not channels-last; fewer than four dimensions have no channels."""
    strides = value.stride()
    return len(strides) < 4 or (is_equal_size(strides[-1], 1) and not is_equal_size(strides[1], 1))


def moves_nothing(node: Node) -> bool:
    """Return whether an `as_strided` changes only strides of size-1 dimensions, as in torch's averages over images."""
    source = node.args[0] if node.target is torch.ops.aten.as_strided.default else None
    if not isinstance(source, Node) or any(user.op == "output" for user in node.users):
        return False
    before, after = source.meta["val"], node.meta["val"]
    if before.dim() != after.dim() or not is_equal_size(before.storage_offset(), after.storage_offset()):
        return False
    dims = zip(before.shape, after.shape, before.stride(), after.stride(), strict=True)
    return all(
        is_equal_size(size, other) and (is_equal_size(size, 1) or is_equal_size(*strides))
        for size, other, *strides in dims
    )


def is_equal_size(size: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    # as text: a comparison of symbols would add a guard to torch's shape environment
    return str(size) == str(other)


def assign_debug_handles(module: GraphModule) -> None:
    """Number the operations from 1 by the exported operation that they come from, in place."""
    handles: dict[Hashable, int] = {}
    for node in all_nodes(module):
        if node.op == "call_function":
            node.meta["debug_handle"] = handles.setdefault(handle_source(node), len(handles) + 1)


def fill_debug_handles(module: GraphModule, chosen: Callable[[Node], bool], above: int = 0) -> None:
    """Give each chosen node without a debug handle a new handle, higher than `above` and all handles, in place."""
    handles = count(max(above, highest_debug_handle(module)) + 1)
    for node in all_nodes(module):
        if chosen(node) and not node.meta.get("debug_handle"):
            node.meta["debug_handle"] = next(handles)


def handle_source(node: Node) -> Hashable:
    oldest = oldest_ancestor(node)
    return node if oldest is None else (oldest.name, oldest.graph_id)
