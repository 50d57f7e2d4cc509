"""Graphs of methods in the formats of other programs: the JSON of Google's Model Explorer, and DOT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hatch_lower.cli.page.facts import Facts
from hatch_lower.cli.page.operations import Operation, Operations, operations_of
from hatch_lower.driver.contents import Contents
from hatch_lower.format.debug_map import input_number

# the light colours of the page
ENGINES = {"aoti": "#b5d3ff", "executorch": "#b4e6be", "onnxruntime": "#e6c3fb", "openvino": "#ffd09e"}
OTHER = "#aee6ea"
PLAIN = "#dfe3ea"


class NamedGraph(NamedTuple):
    name: str  # `digits/default/forward`: model, recipe and method
    operations: Operations


def graphs_of(folders: Sequence[Contents]) -> Iterator[NamedGraph]:
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
            "attrs": [pair(*row) for row in rows_of(node)],
            "incomingEdges": [
                {"sourceNodeId": source_of(maker), "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
                for place, maker in enumerate(node.reads)
            ],
            "style": {"backgroundColor": colour_of(node.engine)},
        }
        for at, node in enumerate(operations.nodes)
    ]
    calls = {partition_of(node): node for node in operations.nodes if node.engine}
    groups = {name: {"engine": node.engine, "instruction of the plan": node.call} for name, node in calls.items()}
    return {"id": graph.name, "nodes": [*inputs, *nodes], "groupNodeAttributes": groups}


def namespace_of(node: Operation) -> list[str]:
    """Return the groups around an operation: its partition, then its modules."""
    modules = node.origin.module.replace("/", "\u2215").split(".") if node.origin.module else []
    return [partition_of(node), *modules] if node.engine else modules


def partition_of(node: Operation) -> str:
    return f"partition {node.call}: {node.engine}"


def rows_of(node: Operation) -> Iterator[tuple[str, str]]:
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


def source_of(maker: int) -> str:
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
            yield f"  {quoted(source_of(maker))} -> {quoted(str(at))};"
    yield "}"


def quoted(text: str) -> str:
    """Return a DOT string; a line break stays a line break of the label."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
