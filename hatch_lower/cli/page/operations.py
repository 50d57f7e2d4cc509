"""The operations of a method as a graph, including delegates, with source lines and engines; facts about models as
JSON values, for `inspect` and the report page; and graphs in the formats of Google's Model Explorer and DOT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from hatch_lower.driver.contents import OpenedRecipe, WheelModels
from hatch_lower.format.constants import Storage
from hatch_lower.format.debug_map import NO_REASON, Detail, MethodDebug, Origin, input_number
from hatch_lower.format.graph import DelegateCall, Instruction, OpCall, PythonCall, list_arguments, walk_instructions
from hatch_lower.format.manifest import MethodEntry
from hatch_lower.format.plan import MethodPlan, Plan, input_texts, signature_text
from hatch_lower.format.tree import tree_text
from hatch_lower.format.weights import Weights, is_aligned
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.analysis import references_to_values

Facts = dict[str, Any]


def outside_reports(weights: Weights, storages: Mapping[str, Storage]) -> list[Facts]:
    reports = []
    for position, source in enumerate(weights.sources):
        spans = {key: span for key, span in weights.spans.items() if span.source == position}
        sizes = {key: span.end - span.begin for key, span in spans.items()}
        copied = [key for key, span in spans.items() if key in storages and not is_aligned(storages[key], span)]
        facts = {"tensors": len(spans), "used": sum(sizes.values()), "copied": sum(sizes[key] for key in copied)}
        reports.append({**asdict(source), **facts})
    return reports


def method_facts(name: str, method: MethodPlan) -> Facts:
    return {
        "signature": signature_text(name, method),
        "inputs": input_texts(method),
        "symbols": {symbol.name: {"min": symbol.min, "max": symbol.max} for symbol in method.symbols.values()},
        "outputs": tree_text(method.outputs, lambda: "tensor"),
    }


def delegate_reports(plan: Plan, method: MethodPlan, sizes: Mapping[str, int]) -> list[Facts]:
    calls = Counter(each.delegate for _, each in walk_instructions(method.graph) if isinstance(each, DelegateCall))
    return [
        {
            "backend": delegate.backend,
            "file": delegate.file,
            "size": sizes.get(delegate.file, 0),
            "constants": len(delegate.constants),
            "data": {name: {"file": data.file, "size": data.size} for name, data in delegate.data.items()},
            "calls": calls[index],
        }
        for index, delegate in enumerate(plan.delegates)
        if index in calls
    ]


def left_out_reports(entry: MethodEntry, debug: MethodDebug) -> list[Facts]:
    """Return the operations that a build left out of a backend's partitions, with their source lines."""
    rows = []
    for each in entry.left_out:
        origin = debug.handles.get(each.handle, Origin(""))
        rows.append({**asdict(origin), "backend": each.backend, "place": each.place, "reason": each.reason})
    return rows


def undelegated_reports(debug: MethodDebug) -> list[Facts]:
    rows = []
    for node in debug.undelegated:
        origin = debug.handles.get(node.handle)
        module, source = (origin.module, origin.source) if origin else ("", "")
        rows.append({"node": node.name, "op": node.op, "module": module, "source": source, "reason": node.reason})
    return rows


UNKNOWN = Detail("")  # for wheels from before debug maps had details


@dataclass(frozen=True, slots=True)
class ShownOperation:
    origin: Origin
    call: str  # path of the plan's instruction: `3`, or `4.true.0` in a nested graph
    engine: str  # the backend of the called delegate; empty for an operation outside of delegates
    reason: str  # why no backend took the operation; empty in a recipe without backends
    reads: tuple[int, ...]  # positions of other operations, and numbers of inputs (`input_number`)
    detail: Detail = UNKNOWN


class Operations(Frozen):
    inputs: tuple[str, ...]  # `image: float32[batch, 64]`
    nodes: tuple[ShownOperation, ...]
    flows: bool  # whether the edges in delegates are known


def operations_of(recipe: OpenedRecipe, method: str) -> Operations:
    """Return the graph of a method. Instructions stand for operations that the wheel does not list."""
    plan, debug = recipe.plan.methods[method], recipe.method_debug(method)
    # a portable recipe names no backend that could have taken an operation
    portable = () if recipe.entry.backends else (NO_REASON,)
    reasons = {node.handle: node.reason for node in debug.undelegated if node.reason not in portable}
    calls = [(path, each, engine_of(recipe.plan, each)) for path, each in walk_instructions(plan.graph)]
    # an operation of both an instruction and its delegate belongs to the delegate
    owners = {handle: path for path, _, engine in calls if engine for handle in debug.instructions.get(path, ())}
    places: dict[int, int] = {}  # handle to position
    inlets: dict[str, int] = {}  # path of an instruction to the position of its first operation
    outlets: dict[str, int] = {}
    nodes: list[ShownOperation] = []
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
            nodes.append(ShownOperation(debug.handles[handle], path, engine, reason, (), detail))
        if not handles:
            nodes.append(ShownOperation(Origin(instruction_operator(instruction)), path, engine, "", ()))
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


def instruction_operator(instruction: Instruction) -> str:
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
        values = references_to_values(list_arguments(instruction))
        before = {maker for value in values for maker in makers.get(value.slot, ())}
        path = str(number)
        makers[instruction.out] = {outlets[path]} if path in outlets else before
        if path in inlets:
            first = inlets[path]
            edges[first] = tuple(sorted(before - {first}))
    return edges


# the light colours of the page
ENGINES = {"aoti": "#b5d3ff", "executorch": "#b4e6be", "onnxruntime": "#e6c3fb", "openvino": "#ffd09e"}
OTHER = "#aee6ea"
PLAIN = "#dfe3ea"


class NamedGraph(NamedTuple):
    name: str  # `digits/default/forward`: model, recipe and method
    operations: Operations


def named_graphs(folders: Sequence[WheelModels]) -> Iterator[NamedGraph]:
    for contents in folders:
        for name in contents.models:
            lowered = contents.model(name)
            for recipe in lowered.entry.order:
                for method in lowered.recipes[recipe].plan.methods:
                    graph = operations_of(lowered.recipes[recipe], method)
                    yield NamedGraph(f"{name}/{recipe}/{method}", graph)


def model_explorer_json(label: str, graphs: Iterable[NamedGraph]) -> Facts:
    """Return a graph collection, which Model Explorer opens as a file."""
    return {"label": label, "graphs": [model_explorer_graph(graph) for graph in graphs]}


def model_explorer_graph(graph: NamedGraph) -> Facts:
    operations = graph.operations
    inputs = [
        {"id": f"input {at}", "label": text.partition(":")[0], "namespace": "", "attrs": [pair("input", text)]}
        for at, text in enumerate(operations.inputs)
    ]
    nodes = [
        {
            "id": str(at),
            "label": node.origin.op.removeprefix("aten.").removesuffix(".default"),
            "namespace": "/".join(namespace_of(node)),
            "attrs": [pair(*row) for row in operation_rows(node)],
            "incomingEdges": [
                {"sourceNodeId": source_label(maker), "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
                for place, maker in enumerate(node.reads)
            ],
            "style": {"backgroundColor": colour_of(node.engine)},
        }
        for at, node in enumerate(operations.nodes)
    ]
    calls = {partition_of(node): node for node in operations.nodes if node.engine}
    groups = {name: {"engine": node.engine, "instruction of the plan": node.call} for name, node in calls.items()}
    return {"id": graph.name, "nodes": [*inputs, *nodes], "groupNodeAttributes": groups}


def namespace_of(node: ShownOperation) -> list[str]:
    """Return the groups around an operation: its partition, then its modules."""
    modules = node.origin.module.replace("/", "\u2215").split(".") if node.origin.module else []
    return [partition_of(node), *modules] if node.engine else modules


def partition_of(node: ShownOperation) -> str:
    return f"partition {node.call}: {node.engine}"


def operation_rows(node: ShownOperation) -> Iterator[tuple[str, str]]:
    yield "operation", node.origin.op
    yield "module", node.origin.module or "the model itself"
    yield "source", node.origin.source or "not known"
    if node.detail.result:
        yield "result", node.detail.result
    yield from ((name, text) for name, _, text in (line.partition(": ") for line in node.detail.arguments))
    yield "computed by", node.engine or "the plan itself"
    yield "instruction of the plan", node.call
    if node.reason:
        yield "not delegated because", node.reason


def pair(key: str, value: str) -> Facts:
    return {"key": key, "value": value}


def source_label(maker: int) -> str:
    return str(maker) if maker >= 0 else f"input {input_number(maker)}"


def colour_of(engine: str) -> str:
    return ENGINES.get(engine, OTHER) if engine else PLAIN


def dot_text(graphs: Iterable[NamedGraph]) -> str:
    """Return the graphs for Graphviz, each partition a cluster."""
    return "".join(line + "\n" for graph in graphs for line in dot_lines(graph))


def dot_lines(graph: NamedGraph) -> Iterator[str]:
    operations = graph.operations
    yield f"digraph {quoted(graph.name)} {{"
    yield '  node [shape=box, style=filled, fontname="sans-serif"];'
    for at, text in enumerate(operations.inputs):
        yield f"  {quoted(f'input {at}')} [label={quoted(text)}, fillcolor=white];"
    groups: dict[str, list[int]] = {}
    for at, node in enumerate(operations.nodes):
        groups.setdefault(partition_of(node) if node.engine else "", []).append(at)
    for number, (name, members) in enumerate(groups.items()):
        if name:
            yield f"  subgraph cluster_{number} {{"
            yield f"    label={quoted(name)};"
        for at in members:
            node = operations.nodes[at]
            label = "\n".join(filter(None, (node.origin.op, node.origin.module, node.origin.source)))
            yield f"    {quoted(str(at))} [label={quoted(label)}, fillcolor={quoted(colour_of(node.engine))}];"
        if name:
            yield "  }"
    for at, node in enumerate(operations.nodes):
        for maker in node.reads:
            yield f"  {quoted(source_label(maker))} -> {quoted(str(at))};"
    yield "}"


def quoted(text: str) -> str:
    """Return a DOT string; a line break stays a line break of the label."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
