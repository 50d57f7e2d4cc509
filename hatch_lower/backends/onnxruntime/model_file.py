"""An ONNX model's bytes, read without `onnx`: nodes, named files (an untrusted model may name any file of the
machine), and marks for the places of constants.

Named files are refused, because ONNX Runtime before 1.24 opens a named file wherever the file lies.

ONNX Runtime maps external data of a model from a file, an offset and a length. File and offset are known when the
constants file is written, after the model was cached: so the model has marks of as many bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from hatch_lower.backends.instructions import adopt

# messages of ONNX and the numbers of the fields that lead to external data
FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {2: "value"},
}
KEY = b"location"  # of a file's name: the key has these bytes in any encoding
NUMBER = re.compile(rb"[0-9]{1,20}")
KEY_BYTES = 5  # of a key or a length; protobuf itself stops after 5 bytes
FIXED = {1: 8, 5: 4}  # bytes, by wire type


def refuse_files(model: bytes, known: Collection[bytes]) -> None:
    """Raise `ValueError` if the data of a tensor lie in another file than the known ones."""
    for value in external_values(model):
        if value not in known and not NUMBER.fullmatch(value):
            raise ValueError(
                f"data of a tensor in {value.decode('utf-8', 'replace')!r:.200}, not a file of its constants"
            )


def external_values(model: bytes) -> Iterator[bytes]:
    """Yield the values of all entries of external data: names of files, offsets and lengths."""
    waiting = [("model", 0, len(model))]
    while waiting:
        kind, place, end = waiting.pop()
        for number, begin, after in fields_of(model, place, end):
            child = FIELDS[kind].get(number)
            if child == "value":
                yield model[begin:after]
            elif child is not None and model.find(KEY, begin, after) >= 0:
                waiting.append((child, begin, after))


def fields_of(model: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, beginning and end of a message's fields, except plain numbers; `ValueError` if it is no message."""
    while place < end:
        key, place = number_at(model, place, end)
        wire = key & 7
        if wire == 2:
            length, place = number_at(model, place, end)
            yield (key & 0xFFFFFFFF) >> 3, place, min(place + length, end)
            place += length
        elif wire == 0:
            place = end_of_number(model, place)
        elif wire in FIXED:
            place += FIXED[wire]
        else:
            raise ValueError("a field of an obsolete kind")
    if place > end:
        raise ValueError("a field that is longer than its message")


def number_at(model: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a key or a length, and the next offset."""
    value = 0
    for shift in range(0, 7 * KEY_BYTES, 7):
        if place >= end:
            break
        byte = model[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a key or a length without an end")


def end_of_number(model: bytes, place: int) -> int:
    while place < len(model) and model[place] >= 0x80:
        place += 1
    return place + 1


NAME_BYTES = 96  # of a file: also of the cache's blobs, over which a build verifies
FILE_MARK = "place-of-constants".ljust(NAME_BYTES, "-")
DIGITS = 20
FIRST = 10_000_000_000_000_000_000  # larger than any offset in a file, so that a mark is recognized
MARK = re.compile(re.escape(FILE_MARK.encode()) + rb"|1000000000000\d{7}")


def offset_mark(number: int) -> int:
    return FIRST + number


def fits_offset_mark(name: str) -> bool:
    """Return whether the name of a file can stand in the place of its mark."""
    return NAME_BYTES - len(name.encode()) >= 3


def relocate(model: bytes, places: Mapping[int, tuple[str, int]]) -> bytes:
    """Return a model with names of files and offsets in bytes in place of marks; `ValueError` if the marks differ."""
    # the two marks of a constant are neighbours
    found = list(MARK.finditer(model))
    pairs = [sorted(pair, key=lambda mark: len(mark[0])) for pair in zip(found[::2], found[1::2], strict=False)]
    marks = [int(offset[0]) - FIRST for offset, name in pairs if len(offset[0]) < len(name[0])]
    if 2 * len(marks) != len(found) or sorted(marks) != sorted(places):
        raise ValueError(f"marks of the constants {sorted(marks)} instead of {sorted(places)}")
    written: dict[int, bytes] = {}
    for number, (offset, name) in zip(marks, pairs, strict=True):
        path, begin = places[number]
        written |= {offset.start(): f"{begin:0{DIGITS}d}".encode(), name.start(): path_of(path)}
    return MARK.sub(lambda mark: written[mark.start()], model)


def path_of(name: str) -> bytes:
    written = name.encode()
    missing = NAME_BYTES - len(written)
    # a path that leads nowhere else, of as many bytes
    begin = b".//" * (missing % 2) + b"./" * ((missing - 3 * (missing % 2)) // 2)
    return begin + written


# the numbers of fields in ONNX's `ModelProto`, `GraphProto` and `NodeProto`
GRAPH, NODE = 7, 1
INPUT, OUTPUT, NAME = 1, 2, 3
BLOCKED = "_nchwc"


class ModelNode(NamedTuple):
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_nodes(model: bytes) -> list[ModelNode]:
    """Return the nodes of a model's graph, without nested graphs; `ValueError` if the bytes are no model."""
    graphs = [place for number, *place in fields_of(model, 0, len(model)) if number == GRAPH]
    nodes = [place for graph in graphs for number, *place in fields_of(model, *graph) if number == NODE]
    return [read_node(model, *node) for node in nodes]


def read_node(model: bytes, place: int, end: int) -> ModelNode:
    texts: dict[int, list[str]] = {INPUT: [], OUTPUT: [], NAME: []}
    for number, begin, after in fields_of(model, place, end):
        if number in texts:
            texts[number].append(model[begin:after].decode())
    return ModelNode("".join(texts[NAME][-1:]), tuple(texts[INPUT]), tuple(texts[OUTPUT]))


def originals(known: Sequence[ModelNode], optimized: Sequence[ModelNode]) -> dict[str, tuple[str, ...]]:
    """Return, by the name of each node of an optimized model, the original nodes that it replaces.

    A fused node returns a value of the original model: it replaces the nodes between that value and the values of other
    nodes, except nodes that are still there.
    """
    kept = {node.name for node in known} & {node.name for node in optimized}
    producers = {value: node for node in known for value in node.outputs}
    given = {node.name: [value for value in value_names(node) if value in producers] for node in optimized}
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


def value_names(node: ModelNode) -> tuple[str, ...]:
    # a node in the blocked layout of channels returns another value than its original, but carries the value's name
    name, mark, _ = node.name.partition(BLOCKED)
    return (*node.outputs, name) if mark else node.outputs
