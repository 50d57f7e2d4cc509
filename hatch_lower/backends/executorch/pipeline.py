"""ExecuTorch's pipeline: from a prepared partition to the bytes of a `.pte`, and the operations of its instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from hatch_lower.backends.executorch.portable import portable_kernels
from hatch_lower.backends.executorch.prepare import CONSTANT_ALIGNMENT, ExecutorchCopy, is_outside
from hatch_lower.backends.executorch.quantized import quantizes
from hatch_lower.backends.executorch.run import ExecutorchDelegate, extension, is_of_the_call
from hatch_lower.backends.executorch.support import xnnpack_partitioner
from hatch_lower.backends.executorch.xnnpack_nodes import XNode, read_xnnpack_nodes
from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.exir._serialize._named_data_store import CONSTANTS_TAG, NamedDataStore, NamedDataStoreOutput
from hatch_lower.exir.graph.surgery import oldest_ancestor
from hatch_lower.exir.graph.tensors import span_bytes
from hatch_lower.exir.scalar_type import ScalarType
from hatch_lower.exir.tensor_layout import TensorLayout
from hatch_lower.runtime.torch_private.operators import OpOverload
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate

METHOD = "forward"
COPIES = ("dim_order_ops._clone_dim_order.default", "aten.clone.default")


@dataclass(frozen=True, slots=True)
class PartitionProgram:
    # the `.pte`
    data: bytes
    # debug handles of each instruction of its method: `1:executorch_call_delegate`
    handles: dict[int | str, tuple[int, ...]]
    # the program's weights in the constants file
    weights: NamedDataStoreOutput
    # by its number, the name of each instruction, and the names of its nodes if it calls XNNPACK
    names: dict[str, list[str]]


def lower_partition(copied: ExecutorchCopy, *, finite: bool) -> PartitionProgram:
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.backend.utils import is_same_node
    from executorch.exir.passes import MemoryPlanningPass

    is_quantized = any(map(quantizes, copied.graph.nodes))
    try:
        # each taken operator has a kernel, whether the operator is core ATen or not
        taken = {node.target: None for node in copied.graph.nodes if isinstance(node.target, OpOverload)}
        edge = to_edge_transform_and_lower(
            copied.aten_program(),
            transform_passes=[without_strides, without_copies],
            partitioner=[xnnpack_partitioner(integers=is_quantized, finite=finite)],
            compile_config=EdgeCompileConfig(_core_aten_ops_exception_list=list(taken)),
        )
        origins = handle_origins(edge.exported_program(), copied.named)
        move_weights(edge._named_data_store)
        targets = edge.exported_program().graph_signature.inputs_to_buffers
        outside = {name for name, target in targets.items() if target in copied.outside}
        # a call hands its inputs over where they lie; results stay in the program's memory until they are copied out
        planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=True)
        config = ExecutorchBackendConfig(
            memory_planning_pass=planning,
            external_constants=lambda node: CONSTANTS_TAG if node.name in outside and not is_viewed(node) else None,
        )
        made = edge.to_executorch(config)
    except Exception as error:
        raise BackendError(
            "ExecuTorch could not lower a partition",
            found=f"{type(error).__name__}: {error}".splitlines()[0],
            hint="name an operator of the partition in the recipe's option `exclude`",
        ) from error
    finally:
        is_same_node.cache_clear()  # the cache would hold the program and its weights for good
    plan = made.executorch_program.execution_plan[0]
    refuse_missing(plan)
    if is_quantized:
        refuse_unusable(made)
    emitted = made._emitter_output
    delegates = emitted.method_to_delegate_debug_id_map.get(METHOD, {})
    theirs = dict(sorted(emitted.debug_handle_map.get(METHOD, {}).items()))  # ExecuTorch's handles of instructions
    graphs = xnnpack_graphs(edge.exported_program(), delegates)
    names = {str(index): instruction_names(index, delegates, plan, graphs) for index in theirs}
    handles = copied.instruction_handles(instructions_of(theirs, delegates, names, origins, graphs))
    return PartitionProgram(bytes(made.buffer), handles, named_weights(made, copied), names)


def without_strides(module: GraphModule) -> PassResult:
    """Replace strides by sizes that equal them: torch computes with either, the runtime with sizes only."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_stride.int):
        tensor: Any = node.args[0]
        sizes = [str(size) for size in tensor.meta["val"].shape]
        if str(node.meta["val"]) in sizes:
            node.target = torch.ops.aten.sym_size.int
            node.args = (tensor, sizes.index(str(node.meta["val"])))
    module.recompile()
    return PassResult(module, True)


def without_copies(module: GraphModule) -> PassResult:
    """Remove copies of computed results: XNNPACK drops them, and then refuses a graph that returns both."""
    for node in module.graph.nodes:
        source = node.args[0] if str(getattr(node.target, "_op", node.target)) in COPIES else None
        if isinstance(source, Node) and source.op != "placeholder" and layout_texts(source) == layout_texts(node):
            # results of the partition are memory of their own
            node.replace_all_uses_with(source, delete_user_cb=lambda user: user.op != "output")
    module.graph.eliminate_dead_code()
    module.recompile()
    return PassResult(module, True)


def layout_texts(node: Node) -> list[str]:
    # as text: comparing symbols would decide facts about them
    return [str(number) for number in (*node.meta["val"].shape, *node.meta["val"].stride())]


def is_viewed(node: Node) -> bool:
    # ExecuTorch writes a view as another tensor over the same memory, which is impossible for memory outside
    from executorch.exir.memory import view

    return any(user.target is view for user in node.users)


def move_weights(stored: Any) -> None:
    """Take the weights of XNNPACK's delegates, which they find by name, out of the `.pte` to be."""
    outside = {
        name: entry for name, entry in stored.pte_data.items() if is_outside(len(stored.buffers[entry.buffer_index]))
    }
    stored.external_data[CONSTANTS_TAG] = outside
    stored.pte_data = {name: entry for name, entry in stored.pte_data.items() if name not in outside}


def named_weights(made: Any, copied: ExecutorchCopy) -> NamedDataStoreOutput:
    # with the layout that a constant has in the model, they have the same bytes once
    layouts = {sha256_bytes(span_bytes(tensor)): TensorLayout.from_tensor(tensor) for tensor in copied.state.values()}
    store = NamedDataStore()
    stored, emitted = made._named_data, made._emitter_output
    if stored is not None:
        for name, entry in stored.external_data.get(CONSTANTS_TAG, {}).items():
            data = stored.buffers[entry.buffer_index]
            layout = layouts.get(sha256_bytes(data))
            store.add_named_data(name, data, CONSTANT_ALIGNMENT, CONSTANTS_TAG, layout)
    for name, index in emitted.external_constant_map.get(CONSTANTS_TAG, {}).items():
        data = emitted.external_constant_buffer[index]
        store.add_named_data(
            name, data, CONSTANT_ALIGNMENT, CONSTANTS_TAG, TensorLayout.from_tensor(copied.state[name])
        )
    return store.get_named_data_store_output()


def refuse_missing(plan: Any) -> None:
    names = {
        f"{operator.name}.{operator.overload}" if operator.overload else operator.name for operator in plan.operators
    }
    missing = sorted(names - portable_kernels())
    if missing:
        raise BackendError(
            "ExecuTorch lowered a partition to operators that its runtime does not have",
            found=", ".join(missing),
            hint="name the operators that they come from in the recipe's option `exclude`",
        )


def refuse_unusable(made: Any) -> None:
    # for some integer graphs ExecuTorch writes programs that XNNPACK refuses at the first call
    with TemporaryDirectory(prefix="hatch-lower-") as folder:
        # from files: a program loaded from bytes does not find its inner data beside the constants file
        program, weights = Path(folder, "program.pte"), Path(folder, "weights.ptd")
        program.write_bytes(made.buffer)
        if CONSTANTS_TAG in made._tensor_data:
            weights.write_bytes(bytes(made._tensor_data[CONSTANTS_TAG]))
        call_with_zeros(program, weights if weights.exists() else None)


def call_with_zeros(program: Path, weights: Path | None) -> None:
    try:
        loaded = ExecutorchDelegate.pool.load(extension(), program, weights)
        facts = loaded.method_meta(METHOD)
    except RuntimeError as error:
        raise unusable_lowering("load", error) from error
    metas = [facts.input_tensor_meta(index) for index in range(facts.num_inputs())]
    inputs = [torch.zeros(meta.sizes(), dtype=ScalarType(meta.dtype()).dtype) for meta in metas]
    try:
        loaded.forward(inputs, True)
    except RuntimeError as error:
        if not is_of_the_call(error):  # a kernel may refuse zeros, or use them as an index or divisor
            raise unusable_lowering("run", error) from error


def unusable_lowering(what: str, error: RuntimeError) -> BackendError:
    return BackendError(
        f"ExecuTorch lowered a quantized partition to a program that it cannot {what}",
        found=str(error),
        hint="leave an operation of it unquantized, or name its operator in the recipe's option `exclude`",
    )


def handle_origins(program: Any, named: Mapping[str, set[int]]) -> dict[int, set[int]]:
    """Return, for each of ExecuTorch's debug handles, the numbers of the operations behind it."""
    origins_of: dict[int, set[int]] = {}
    modules = [program.graph_module, *(lowered.original_module.graph_module for lowered in delegates_of(program))]
    for module in modules:
        for node in module.graph.nodes:
            handle = node.meta.get("debug_handle")
            if isinstance(handle, int):
                origins_of.setdefault(handle, set()).update(named.get((oldest_ancestor(node) or node).name, ()))
    return origins_of


def delegates_of(program: Any) -> Iterator[Any]:
    for call in program.graph.find_nodes(op="call_function", target=executorch_call_delegate):
        yield getattr(program.graph_module, str(call.args[0].target))


def xnnpack_graphs(program: Any, delegates: Iterable[int]) -> dict[int, list[XNode]]:
    """Return the nodes of each graph that XNNPACK computes, by the number of the instruction."""
    graphs = [read_xnnpack_nodes(lowered.processed_bytes) for lowered in delegates_of(program)]
    return dict(zip(sorted(delegates), graphs, strict=True))


def instruction_names(
    index: int, delegates: Mapping[int, Any], plan: object, graphs: Mapping[int, Sequence[XNode]]
) -> list[str]:
    """Return an instruction's name, and the names of its nodes if it calls XNNPACK."""
    delegate = delegates.get(index)
    own = f"{index}:{delegate['name'] if delegate else kernel_name(plan, index)}"
    return [own, *(f"{index}:{place}:{node.kind}" for place, node in enumerate(graphs.get(index, ())))]


def instructions_of(
    handles: Mapping[int, int | Sequence[int]],
    delegates: Mapping[int, Any],
    names: Mapping[str, Sequence[str]],
    origins: Mapping[int, set[int]],
    graphs: Mapping[int, Sequence[XNode]],
) -> dict[str, set[int]]:
    """Return the numbers of the operations that each instruction computes."""
    instructions: dict[str, set[int]] = {}
    for index, theirs in handles.items():
        listed = [theirs] if isinstance(theirs, int) else list(theirs)
        ours = {origin for handle in listed for origin in origins.get(handle, ())}
        if not ours:
            continue
        whole, *parts = names[str(index)]
        instructions[whole] = ours
        for identifier, inner in sorted((delegates.get(index, {}).get("delegate_map") or {}).items(), key=str):
            inside = {origin for handle in inner for origin in origins.get(handle, ())}
            if inside:
                instructions[f"{index}:{identifier}"] = inside
        for name, node in zip(parts, graphs.get(index, ()), strict=True):
            if node.handle in origins:
                instructions[name] = origins[node.handle]
    return instructions


def kernel_name(plan: Any, index: int) -> str:
    arguments = plan.chains[0].instructions[index].instr_args
    place = getattr(arguments, "op_index", None)
    return type(arguments).__name__ if place is None else str(plan.operators[place].name).replace("::", ".")
