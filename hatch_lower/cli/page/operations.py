"""The operations of a method as a graph, including delegates, with source lines and engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hatch_lower.driver.contents import LoweredRecipe
from hatch_lower.format.debug_map import NO_REASON, Detail, MethodDebug, Origin, input_number
from hatch_lower.format.graph import DelegateCall, Instruction, OpCall, PythonCall, arguments_of, walk
from hatch_lower.format.plan import MethodPlan, Plan, input_texts
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.analysis import references_to_values

UNKNOWN = Detail("")  # for wheels from before debug maps had details


@dataclass(frozen=True, slots=True)
class Operation:
    origin: Origin
    call: str  # path of the plan's instruction: `3`, or `4.true.0` in a nested graph
    engine: str  # the backend of the called delegate; empty for an operation outside of delegates
    reason: str  # why no backend took the operation; empty in a recipe without backends
    reads: tuple[int, ...]  # positions of other operations, and numbers of inputs (`input_number`)
    detail: Detail = UNKNOWN


class Operations(Frozen):
    inputs: tuple[str, ...]  # `image: float32[batch, 64]`
    nodes: tuple[Operation, ...]
    flows: bool  # whether the edges in delegates are known


def operations_of(recipe: LoweredRecipe, method: str) -> Operations:
    """Return the graph of a method. Instructions stand for operations that the wheel does not list."""
    plan, debug = recipe.plan.methods[method], recipe.method_debug(method)
    # a portable recipe names no backend that could have taken an operation
    portable = () if recipe.entry.backends else (NO_REASON,)
    reasons = {node.handle: node.reason for node in debug.undelegated if node.reason not in portable}
    calls = [(path, each, engine_of(recipe.plan, each)) for path, each in walk(plan.graph)]
    # an operation of both an instruction and its delegate belongs to the delegate
    owners = {handle: path for path, _, engine in calls if engine for handle in debug.instructions.get(path, ())}
    places: dict[int, int] = {}  # handle to position
    inlets: dict[str, int] = {}  # path of an instruction to the position of its first operation
    outlets: dict[str, int] = {}
    nodes: list[Operation] = []
    for path, instruction, engine in calls:
        handles = [handle for handle in debug.instructions.get(path, ()) if handle in debug.handles]
        new = [handle for handle in handles if handle not in places and owners.get(handle, path) == path]
        if is_plumbing(instruction) and not any(handle in debug.reads for handle in new):
            continue  # the instruction selects a result of several
        inlets[path] = len(nodes)
        for handle in new:
            places[handle] = len(nodes)
            reason = "" if engine else reasons.get(handle, "")
            detail = debug.details.get(handle, UNKNOWN)
            nodes.append(Operation(debug.handles[handle], path, engine, reason, (), detail))
        if not handles:
            nodes.append(Operation(Origin(operator_name(instruction)), path, engine, "", ()))
        elif not new:
            inlets[path] = places.get(handles[0], len(nodes) - 1)
        outlets[path] = len(nodes) - 1 if new or not handles else inlets[path]
    reads = handle_edges(debug, places) if debug.reads else slot_edges(plan, inlets, outlets)
    linked = tuple(replace(node, reads=reads.get(position, ())) for position, node in enumerate(nodes))
    inputs = tuple(f"{path}: {text}" for path, text in input_texts(plan).items())
    return Operations(inputs, linked, bool(debug.reads))


def engine_of(plan: Plan, instruction: Instruction) -> str:
    return plan.delegates[instruction.delegate].backend if isinstance(instruction, DelegateCall) else ""


def is_plumbing(instruction: Instruction) -> bool:
    return isinstance(instruction, PythonCall) and (instruction.op == "getitem" or instruction.op.startswith("item_"))


def operator_name(instruction: Instruction) -> str:
    return instruction.op if isinstance(instruction, OpCall | PythonCall) else instruction.kind


def handle_edges(debug: MethodDebug, places: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    return {
        places[handle]: tuple(sorted(places.get(before, before) for before in read if before < 0 or before in places))
        for handle, read in debug.reads.items()
        if handle in places
    }


def slot_edges(plan: MethodPlan, inlets: Mapping[str, int], outlets: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
    """Return the edges that the plan knows: between its own instructions, not inside delegates."""
    makers: dict[int, set[int]] = {slot: {input_number(at)} for at, slot in enumerate(plan.graph.inputs)}
    edges: dict[int, tuple[int, ...]] = {}
    for number, instruction in enumerate(plan.graph.instructions):
        values = references_to_values(arguments_of(instruction))
        before = {maker for value in values for maker in makers.get(value.slot, ())}
        path = str(number)
        makers[instruction.out] = {outlets[path]} if path in outlets else before
        if path in inlets:
            first = inlets[path]
            edges[first] = tuple(sorted(before - {first}))
    return edges
