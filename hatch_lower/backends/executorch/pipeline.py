"""ExecuTorch's pipeline: from a prepared partition to the bytes of a `.pte`, and what its instructions compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from hatch_lower.backends.executorch.prepare import ExecutorchCopy
from hatch_lower.backends.executorch.support import float_partitioner, portable_kernels
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.surgery import oldest_ancestor

METHOD = "forward"
ALIGNMENT = 128  # bytes at which the segments of a `.pte` begin, counted from its own beginning


@dataclass(frozen=True, slots=True)
class Lowered:
    # the `.pte`
    data: bytes
    # debug handles of each instruction of its method: `1:executorch_call_delegate`
    handles: dict[int | str, tuple[int, ...]]
    # how many bytes come before the weights; `None` if that is not known
    head: int | None


def lower(copied: ExecutorchCopy, *, finite: bool) -> Lowered:
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.backend.utils import is_same_node
    from executorch.exir.passes import MemoryPlanningPass

    try:
        edge = to_edge_transform_and_lower(copied.aten_program(), partitioner=[float_partitioner(finite=finite)])
        origins = handle_origins(edge.exported_program(), copied.named_handles)
        # a call hands its inputs over where they lie; results stay in the program's memory until they are copied out
        planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=True)
        made = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    except Exception as error:
        raise BackendError(
            "ExecuTorch could not lower a partition",
            found=f"{type(error).__name__}: {error}".splitlines()[0],
            hint="name an operator of it in the recipe's option `exclude`",
        ) from error
    finally:
        is_same_node.cache_clear()  # it would hold the program and its weights for good
    plan = made.executorch_program.execution_plan[0]
    refuse_missing(plan)
    data = bytes(made.buffer)
    return Lowered(data, instruction_handles(made, plan, origins), head_of(data, made._named_data))


def head_of(data: bytes, weights: Any) -> int | None:
    # ExecuTorch puts the weights last, each at a multiple of 128 bytes. They are looked for from the end, and compared.
    if weights is None:
        return None
    order = dict.fromkeys(entry.buffer_index for entry in weights.pte_data.values())
    buffers = [weights.buffers[index] for index in order]
    sizes = [len(buffer) for buffer in buffers]
    start = len(data) - sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes[:-1]) - sum(sizes[-1:])
    head = start
    for buffer in buffers:
        if start <= 0 or start % ALIGNMENT or data[start : start + len(buffer)] != buffer:
            return None
        start += -(-len(buffer) // ALIGNMENT) * ALIGNMENT
    return head if buffers else None


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


def handle_origins(program: Any, handles: dict[str, int]) -> dict[int, set[int]]:
    """Return, for each debug handle that ExecuTorch gave, those of the partition's operations that stand behind it."""
    origins_of: dict[int, set[int]] = {}
    modules = [program.graph_module]
    for node in program.graph.find_nodes(op="get_attr"):
        lowered: object = getattr(program.graph_module, str(node.target), None)
        if hasattr(lowered, "original_module"):
            modules.append(lowered.original_module.graph_module)
    for module in modules:
        for node in module.graph.nodes:
            handle, origin = node.meta.get("debug_handle"), handles.get(oldest_name(node))
            if isinstance(handle, int) and origin is not None:
                origins_of.setdefault(handle, set()).add(origin)
    return origins_of


def oldest_name(node: Node) -> str:
    oldest = oldest_ancestor(node)
    return node.name if oldest is None else oldest.name


def instruction_handles(made: Any, plan: object, origins: dict[int, set[int]]) -> dict[int | str, tuple[int, ...]]:
    emitted = made._emitter_output
    delegates = emitted.method_to_delegate_debug_id_map.get(METHOD, {})
    instructions: dict[int | str, tuple[int, ...]] = {}
    for index, theirs in sorted(emitted.debug_handle_map.get(METHOD, {}).items()):
        listed = [theirs] if isinstance(theirs, int) else list(theirs)
        ours = sorted({origin for handle in listed for origin in origins.get(handle, ())})
        if not ours:
            continue
        delegate = delegates.get(index)
        instructions[f"{index}:{delegate['name'] if delegate else kernel_name(plan, index)}"] = tuple(ours)
        for identifier, inner in sorted(((delegate or {}).get("delegate_map") or {}).items(), key=str):
            inside = sorted({origin for handle in inner for origin in origins.get(handle, ())})
            if inside:
                instructions[f"{index}:{identifier}"] = tuple(inside)
    return instructions


def kernel_name(plan: Any, index: int) -> str:
    arguments = plan.chains[0].instructions[index].instr_args
    place = getattr(arguments, "op_index", None)
    return type(arguments).__name__ if place is None else str(plan.operators[place].name).replace("::", ".")
