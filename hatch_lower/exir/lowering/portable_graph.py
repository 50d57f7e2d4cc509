"""The graph of a portable partition as JSON: operators by name, nodes by position, literals with their types.

Only operators that torch itself registers, and the functions of `PYTHON_FUNCTIONS`, are read: no file names code.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node

from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.dialects.edge._ops import EdgeOpOverload
from hatch_lower.exir.graph.python_functions import PYTHON_FUNCTIONS
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.exir.graph.tensors import dtype_name, is_plain
from hatch_lower.exir.lowering.portable_sizes import NotPortableError, SizeReader, SizeWriter
from hatch_lower.format.arguments import NAMES
from hatch_lower.runtime.torch_private.operators import REGISTERED_BY
from hatch_lower.runtime.torch_private.programs import FakeTensorMode

DEPTH_LIMIT = 16  # of graphs within graphs
OPERATOR = re.compile(r"([a-z_]+)\.(\w+)\.(\w+)", re.ASCII)
NAMESPACES = frozenset({"aten", *REGISTERED_BY})
CONTROL_FLOW = ("cond", "while_loop", "map_impl", "scan")
FUNCTIONS: Mapping[str, object] = MappingProxyType(
    {name: function for function, name in reversed(list(PYTHON_FUNCTIONS.items()))}
)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
Written: TypeAlias = Any  # a value of JSON
AddTensor = Callable[[torch.Tensor], object]
GetTensor = Callable[[Any], torch.Tensor]


def write_graph(module: GraphModule, sizes: SizeWriter, add_tensor: AddTensor) -> list[dict[str, object]]:
    """Return the rows of a graph, one for each node; `add_tensor` writes a tensor that is an attribute."""
    positions: dict[Node, int] = {}
    rows: list[dict[str, object]] = []
    for position, node in enumerate(module.graph.nodes):
        positions[node] = position
        row: dict[str, object] = {"op": node.op, "name": node.name}
        if node.op == "get_attr":
            row["target"] = node.target
            row |= write_attribute(attribute_of(module, node.target), sizes, add_tensor)
        elif node.op == "output":
            row["args"] = write_argument(node.args[0], positions, sizes)
        elif node.op == "call_function":
            row["target"] = write_target(node.target)
            row["args"] = [write_argument(value, positions, sizes) for value in node.args]
            row["kwargs"] = {key: write_argument(value, positions, sizes) for key, value in node.kwargs.items()}
        elif node.op != "placeholder":
            raise NotPortableError(f"a node of the kind `{node.op}`")
        if "val" in node.meta:
            row["val"] = write_value(node.meta["val"], sizes)
        if "debug_handle" in node.meta:
            row["handle"] = node.meta["debug_handle"]
        if others := node.meta.keys() - {"val", "debug_handle"}:
            raise NotPortableError(f"the metadata `{min(others)}` of a node")
        rows.append(row)
    return rows


def write_attribute(value: object, sizes: SizeWriter, add_tensor: AddTensor) -> dict[str, object]:
    if isinstance(value, GraphModule):
        return {"graph": write_graph(value, sizes, add_tensor)}
    if is_plain(value):
        return {"tensor": add_tensor(value)}
    raise NotPortableError(f"an attribute of the type `{type(value).__name__}`")


def write_target(target: object) -> str:
    if type(target) is EdgeOpOverload:
        name = target.__name__
        if read_operator(name) is not target:
            raise NotPortableError(f"the operator `{name}`, which is not torch's own")
        return f"edge:{name}"
    name = getattr(target, "__name__", "")
    if name in CONTROL_FLOW and target is read_control_flow(name):
        return f"flow:{name}"
    known = PYTHON_FUNCTIONS.get(target)
    if known is None or FUNCTIONS[known] is not target:
        raise NotPortableError(f"a call of `{target}`")
    return f"python:{known}"


def write_argument(value: Any, positions: Mapping[Node, int], sizes: SizeWriter) -> object:
    kind = type(value)
    if value is None or kind in (bool, str, int):
        return value
    if isinstance(value, Node):
        return {"node": positions[value]}
    if isinstance(value, (list, tuple)):
        items = [write_argument(item, positions, sizes) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": [[key, write_argument(item, positions, sizes)] for key, item in value.items()]}
    if kind is slice:
        return {"slice": [write_argument(each, positions, sizes) for each in (value.start, value.stop, value.step)]}
    return write_literal(value, sizes)


def write_literal(value: Any, sizes: SizeWriter) -> object:
    if type(value) is float:
        return {"number": [value.hex()]}
    if type(value) is complex:
        return {"number": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, SYMBOLIC):
        return {"size": sizes.value(value)}
    if isinstance(value, torch.device) and value == torch.device("cpu"):
        return {"device": "cpu"}
    for kind, names in NAMES.items():
        name = str(value).removeprefix("torch.")
        if kind != "device" and isinstance(value, getattr(torch, kind)) and name in names:
            return {kind: name}
    raise NotPortableError(f"an argument of the type `{type(value).__name__}`")


def write_value(value: Any, sizes: SizeWriter) -> object:
    """Return what a node's `val` says of its result."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_conj() or value.is_neg():
            raise NotPortableError("a value that is no plain tensor on the CPU")
        shape, stride = ([write_argument(size, {}, sizes) for size in each] for each in (value.shape, value.stride()))
        return {"dtype": dtype_name(value.dtype), "shape": shape, "stride": stride}
    if isinstance(value, (list, tuple)):
        items = [write_value(item, sizes) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if value is None or type(value) in (bool, int):
        return value
    return write_literal(value, sizes)


class GraphReader:
    def __init__(self, sizes: SizeReader, get_tensor: GetTensor) -> None:
        self._sizes = sizes
        self._get_tensor = get_tensor
        self._mode = FakeTensorMode(shape_env=sizes.environment, allow_non_fake_inputs=True)

    def graph(self, rows: Written, depth: int = 0) -> tuple[dict[str, object], Graph]:
        if depth > DEPTH_LIMIT:
            raise NotPortableError(f"graphs of more than {DEPTH_LIMIT} levels")
        graph = Graph()
        attributes: dict[str, object] = {}
        nodes: list[Node] = []
        for row in rows:
            node = self._node(graph, row, nodes)
            if row["op"] == "get_attr":
                attributes[row["target"]] = self._attribute(row, depth)
            if node.name != row["name"]:
                raise NotPortableError(f"a second node `{row['name']}`")
            if "val" in row:
                node.meta["val"] = self._value(row["val"])
            if "handle" in row:
                node.meta["debug_handle"] = row["handle"]
            nodes.append(node)
        return attributes, graph

    def _node(self, graph: Graph, row: Written, nodes: list[Node]) -> Node:
        match row["op"]:
            case "placeholder":
                return graph.placeholder(row["name"])
            case "get_attr":
                return graph.create_node("get_attr", row["target"], name=row["name"])
            case "output":
                output: Node = graph.output(self._argument(row["args"], nodes))
                return output
            case "call_function":
                args = tuple(self._argument(value, nodes) for value in row["args"])
                kwargs = {key: self._argument(value, nodes) for key, value in row["kwargs"].items()}
                # these names, and no other text of the file, stand in the code that a graph module makes
                if wrong := [key for key in kwargs if not key.isidentifier() or keyword.iskeyword(key)]:
                    raise NotPortableError(f"an argument {wrong[0]!r:.40}")
                return graph.create_node("call_function", read_target(row["target"]), args, kwargs, name=row["name"])
        raise NotPortableError(f"a node of the kind {row['op']!r:.40}")

    def _attribute(self, row: Written, depth: int) -> object:
        if not row["target"].isidentifier():
            raise NotPortableError(f"an attribute {row['target']!r:.40}")
        if "graph" in row:
            return GraphModule(*self.graph(row["graph"], depth + 1))
        return self._get_tensor(row["tensor"])

    def _argument(self, written: Written, nodes: list[Node]) -> Written:
        if isinstance(written, list):
            return [self._argument(item, nodes) for item in written]
        if not isinstance(written, dict):
            return written
        ((kind, content),) = written.items()
        match kind:
            case "node":
                return nodes[content]
            case "tuple":
                return tuple(self._argument(item, nodes) for item in content)
            case "dict":
                return {key: self._argument(item, nodes) for key, item in content}
            case "slice":
                return slice(*(self._argument(bound, nodes) for bound in content))
        return self._literal(kind, content)

    def _literal(self, kind: str, content: Written) -> Written:
        if kind == "number":
            numbers = [float.fromhex(text) for text in content]
            return numbers[0] if len(numbers) == 1 else complex(*numbers)
        if kind == "size":
            return self._sizes.value(content)
        if kind == "device":
            return torch.device("cpu")
        if content in NAMES[kind]:
            return getattr(torch, content)
        raise NotPortableError(f"the {kind} {content!r:.40}")

    def _value(self, written: Written) -> Written:
        if isinstance(written, list):
            return [self._value(item) for item in written]
        if not isinstance(written, dict):
            return written
        if "dtype" in written and "shape" in written:
            shape, stride = ([self._argument(size, []) for size in written[key]] for key in ("shape", "stride"))
            dtype = self._literal("dtype", written["dtype"])
            with self._mode, self._sizes.environment.suppress_guards():
                return torch.empty_strided(shape, stride, dtype=dtype)
        if "tuple" in written:
            return tuple(self._value(item) for item in written["tuple"])
        return self._argument(written, [])


def read_target(written: str) -> Any:
    dialect, _, name = written.partition(":")
    readers: Mapping[str, Callable[[str], object | None]] = {
        "edge": read_operator,
        "flow": read_control_flow,
        "python": FUNCTIONS.get,
    }
    found = readers[dialect](name)
    if found is None:
        raise NotPortableError(f"a call of {written!r:.80}, which is not known here")
    return found


def read_operator(name: str) -> object | None:
    match = OPERATOR.fullmatch(name)
    if match is None or match[1] not in NAMESPACES:
        return None
    try:
        found = getattr(getattr(getattr(ops.edge, match[1]), match[2]), match[3])
    except AttributeError:
        return None
    return found if isinstance(found, EdgeOpOverload) else None


def read_control_flow(name: str) -> object | None:
    return getattr(torch.ops.higher_order, name) if name in CONTROL_FLOW else None
