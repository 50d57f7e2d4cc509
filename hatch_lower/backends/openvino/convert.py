"""From a prepared partition to OpenVINO's files: a model as XML, and its literals.

The library names layers by counters of the process, and writes its own version into the file. Here layers get names
that follow from the graph, and everything unnecessary at run time is removed.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from torch.fx import Graph, GraphModule, Node

from hatch_lower.backends.instructions import adopt, instruction_handles
from hatch_lower.backends.openvino.direct import Direct
from hatch_lower.backends.openvino.library import import_openvino
from hatch_lower.backends.openvino.prepare import OpenvinoCopy, dtype_of
from hatch_lower.errors import OperationError
from hatch_lower.exir.graph.operators import operator_name

NO_INSTRUCTION = frozenset({"Const", "Parameter", "Result"})
CONSTANTS = "constants"
OPERATION = re.compile(r"n(\d+)")
PLACE = re.compile(r"\.[ch]pp:\d+|\.py\(\d+\): |^At:$")
ORIGIN = re.compile(OPERATION.pattern + "/")


def convert(copied: OpenvinoCopy) -> tuple[bytes, bytes, dict[int | str, tuple[int, ...]]]:
    """Return the XML, its literals, and a map from layers' names to the debug handles of their operations."""
    # literals: the axes, shapes and numbers to compute with that layers of the type `Const` are views of
    with conversion_refused(copied):
        model = build_model(copied)
        with tempfile.TemporaryDirectory(prefix="hatch-lower-openvino-") as name:
            target = Path(name) / "model.xml"
            import_openvino().serialize(model, target, target.with_suffix(".bin"))
            root = ElementTree.fromstring(target.read_bytes())
            literals = target.with_suffix(".bin").read_bytes()
    origins = rename_layers(root)
    instructions = find_instructions(root, origins, copied)
    return ElementTree.tostring(root), literals, instructions


@contextmanager
def conversion_refused(copied: OpenvinoCopy) -> Iterator[None]:
    """Make errors of OpenVINO name the first operation that cannot be converted."""
    try:
        yield
    except Exception as error:
        found = first_refused(copied)
        total = len(copied.operations)
        wrong = OperationError(
            "OpenVINO could not convert an operation" if found else "OpenVINO could not convert a partition",
            where=f"operation `{operator_name(found.target)}`" if found else f"a partition of {total} operations",
            found=f"{type(error).__name__}: {shorten(str(error))}",
            hint=f'leave the operator out: `exclude = ["{operator_name(found.target)}"]` in the backend\'s table'
            if found
            else "name the operator that OpenVINO cannot convert in the option `exclude`",
        )
        wrong.node = found or copied.operations[-1]
        raise wrong from error


def first_refused(copied: OpenvinoCopy) -> Node | None:
    """Return the first operation up to which OpenVINO does not convert a partition; `None`: they all convert alone."""
    low, high = 0, len(copied.operations)
    while low < high:
        middle = (low + high) // 2
        if converts(copied, middle):
            low = middle + 1
        else:
            high = middle
    return copied.operations[low] if low < len(copied.operations) else None


def converts(copied: OpenvinoCopy, index: int) -> bool:
    graph, copies = Graph(), dict[Node, Node]()
    last = None
    for node in copied.graph.nodes:
        place = OPERATION.fullmatch(node.name)
        if node.op == "output" or (place and int(place[1]) > index):
            break
        copies[node] = last = graph.node_copy(node, copies.__getitem__)
    graph.output((last,))
    try:
        convert_graph(import_openvino(), copied, graph)
    except Exception:
        return False
    return True


def build_model(copied: OpenvinoCopy) -> Any:
    openvino = import_openvino()
    types = importlib.import_module("openvino.frontend.pytorch.utils").pt_to_ov_type_map
    model = convert_graph(openvino, copied, copied.graph)
    for place, (dtype, shape) in enumerate(zip(copied.dtypes, copied.shapes, strict=True)):
        parameter = model.inputs[place].get_node()
        parameter.set_element_type(types[str(dtype)])
        parameter.set_partial_shape(openvino.PartialShape(list(shape)))
    model.validate_nodes_and_infer_types()
    for place, node in enumerate(copied.returned):
        wanted = types[str(dtype_of(node))]
        result = model.outputs[place].get_node()
        if result.get_input_element_type(0) != wanted:
            converted = openvino.opset13.convert(result.input_value(0), wanted)
            result.input(0).replace_source_output(converted.output(0))
    model.validate_nodes_and_infer_types()
    return model


def convert_graph(openvino: Any, copied: OpenvinoCopy, graph: Graph) -> Any:
    """Return the frontend's model of a graph, with the inputs of a partition."""
    extension = importlib.import_module("openvino.frontend.pytorch").ConversionExtension
    decoder = importlib.import_module("openvino.frontend.pytorch.fx_decoder").TorchFXPythonDecoder(
        GraphModule(copied.literals, graph),
        input_shapes=[list(shape) for shape in copied.shapes],
        input_types=copied.dtypes,
    )
    decoder._nodes = NodePlaces(decoder._nodes)
    # a deleted manager takes its frontend with it
    manager = openvino.frontend.FrontEndManager()
    frontend = manager.load_by_framework("pytorch")
    for node in graph.nodes:
        if isinstance(node.target, Direct):
            frontend.add_extension(extension(str(node.target), partial(node.target.convert, openvino)))
    return frontend.convert(frontend.load(decoder))


class NodePlaces(list[Node]):
    # the frontend asks for the place of each input of each node, and a list would search linearly
    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(nodes)
        self._places = {node: place for place, node in enumerate(nodes)}

    def index(self, node: Any, *rest: object) -> int:
        return self._places[node]


def shorten(message: str) -> str:
    # without the places in the sources of the library and of ours
    lines = [line for line in message.splitlines() if line.strip() and not PLACE.search(line)]
    return "\n".join(lines[:12])


def rename_layers(root: ElementTree.Element) -> dict[str, int]:
    """Name layers after operations and places, in place; return the operations that layers are named after."""
    # drop names of tensors, the library's version, and the conversion's notes on merged layers
    root.set("name", "partition")
    origins: dict[str, int] = {}
    for info in root.findall("rt_info"):
        root.remove(info)
    taken: dict[str, int] = {}
    for layer in root.iter("layer"):
        kind, origin = str(layer.get("type")), ORIGIN.match(str(layer.get("name")))
        stem = f"n{origin[1]}/{kind}" if origin else kind
        number = taken[stem] = taken.get(stem, -1) + 1
        name = stem if origin and not number else f"{stem}_{number}"
        layer.set("name", name)
        layer.attrib.pop("output_names", None)
        if origin:
            origins[name] = int(origin[1])
        for port in layer.iter("port"):
            port.attrib.pop("names", None)
        for info in layer.findall("rt_info"):
            for attribute in list(info):
                if attribute.get("name") == "fused_names":
                    info.remove(attribute)
    return origins


def find_instructions(
    root: ElementTree.Element, origins: dict[str, int], copied: OpenvinoCopy
) -> dict[int | str, tuple[int, ...]]:
    """Return the debug handles of each layer; operations that no layer is named after may be in the constants only."""
    names: dict[str | None, str] = {}
    computes: dict[str, tuple[int, ...]] = {}
    for layer in root.iterfind("layers/layer"):
        name = names[layer.get("id")] = str(layer.get("name"))
        if layer.get("type") not in NO_INSTRUCTION:
            computes[name] = (origins[name],) if name in origins else ()
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for edge in root.iterfind("edges/edge"):
        source, user = names[edge.get("from-layer")], names[edge.get("to-layer")]
        before.setdefault(user, []).append(source)
        after.setdefault(source, []).append(user)
    adopt(computes, after, before)
    nodes = [node for node in copied.graph.nodes if OPERATION.fullmatch(node.name)]
    places = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        if node.target is getitem:  # no layer, and as much a result of the layers of its operation
            for name, indices in computes.items():
                if places[node.all_input_nodes[0]] in indices:
                    computes[name] = (*indices, places[node])
    return instruction_handles(places, copied.handles, dict(sorted(computes.items())), CONSTANTS)
