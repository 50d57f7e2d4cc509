"""The nodes of an ONNX model, read from its bytes: where the run half is, there may be no `onnx`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hatch_lower.backends.instructions import adopt

# the numbers of fields in ONNX's `ModelProto`, `GraphProto` and `NodeProto`
GRAPH, NODE = 7, 1
INPUT, OUTPUT, NAME = 1, 2, 3
BLOCKED = "_nchwc"
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # protobuf's kinds of fields


class ModelNode(NamedTuple):
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def nodes_of(model: bytes) -> list[ModelNode]:
    """Return the nodes of a model's graph, without nested graphs; `ValueError` if the bytes are no model."""
    graphs = (graph for number, graph in fields_of(memoryview(model)) if number == GRAPH)
    return [node_of(node) for graph in graphs for number, node in fields_of(graph) if number == NODE]


def node_of(data: memoryview) -> ModelNode:
    texts: dict[int, list[str]] = {INPUT: [], OUTPUT: [], NAME: []}
    for number, content in fields_of(data):
        if number in texts:
            texts[number].append(bytes(content).decode())
    return ModelNode("".join(texts[NAME][-1:]), tuple(texts[INPUT]), tuple(texts[OUTPUT]))


def fields_of(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the numbers and contents of a message's fields, except plain numbers."""
    place = 0
    while place < len(data):
        tag, place = varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            _, place = varint(data, place)
        elif kind in (FIXED_64, FIXED_32):
            place += 8 if kind == FIXED_64 else 4
        elif kind == BYTES:
            size, place = varint(data, place)
            if place + size > len(data):
                raise ValueError("a field that ends behind the message")
            yield number, data[place : place + size]
            place += size
        else:
            raise ValueError(f"a field of the kind {kind}")


def varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("a number that does not end")


def originals(known: Sequence[ModelNode], optimized: Sequence[ModelNode]) -> dict[str, tuple[str, ...]]:
    """Return, by the name of each node of an optimized model, the original nodes that it replaces.

    A fused node returns a value of the original model: it replaces the nodes between that value and the values of other
    nodes, except nodes that are still there.
    """
    kept = {node.name for node in known} & {node.name for node in optimized}
    producers = {value: node for node in known for value in node.outputs}
    given = {node.name: [value for value in values_of(node) if value in producers] for node in optimized}
    owners = {value: name for name, values in given.items() for value in values}
    found: dict[str, tuple[str, ...]] = {}
    for node in optimized:
        if node.name in kept:
            found[node.name] = (node.name,)
            continue
        between: dict[str, None] = {}
        waiting = list(given[node.name])
        while waiting:
            value = waiting.pop()
            producer = producers.get(value) if owners.get(value, node.name) == node.name else None
            if producer is not None and producer.name not in kept and producer.name not in between:
                between[producer.name] = None
                waiting += producer.inputs
        found[node.name] = tuple(between)
    makers = {value: node.name for node in optimized for value in node.outputs}
    sources = {node.name: [makers[value] for value in node.inputs if value in makers] for node in optimized}
    users: dict[str, list[str]] = {}
    for name, used in sources.items():
        for source in used:
            users.setdefault(source, []).append(name)
    adopt(found, users, sources)
    return found


def values_of(node: ModelNode) -> tuple[str, ...]:
    # a node in the blocked layout of channels returns another value than its original, but carries the value's name
    name, mark, _ = node.name.partition(BLOCKED)
    return (*node.outputs, name) if mark else node.outputs
