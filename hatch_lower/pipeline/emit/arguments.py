"""Arguments of graph nodes, as arguments of plan instructions and as text for readers of a debug map, and the names
of called operators and functions.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects.edge._ops import dotted_name
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import constant_placeholders
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.format.arguments import NAMES, Argument, Literal, Special
from hatch_lower.format.debug_map import DebugMap, Detail
from hatch_lower.pipeline.emit.sources import Anchors
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of

# function to its name in plans and portable partitions
PYTHON_FUNCTIONS: Mapping[object, str] = {
    **{
        getattr(operator, name): name
        for name in (
            *("abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne"),
            *("neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor"),
        )
    },
    **{getattr(math, name): name for name in ("ceil", "floor", "trunc")},
    **{getattr(torch, name): name for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")},
    **{
        getattr(torch, f"_sym_{name}"): name
        for name in (
            *("acos", "asin", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
        )
        if hasattr(torch, f"_sym_{name}")
    },
    torch.sym_sum: "sym_sum",
    abs: "abs",
    bool: "sym_bool",
    float: "sym_float",
    int: "sym_int",
    max: "max",
    min: "min",
    round: "round",
}


def overload_of(target: object) -> OpOverload | None:
    """Return the torch overload that a node calls, of the edge dialect or plain; None for other targets."""
    operator = torch_operator(target)
    return operator if isinstance(operator, OpOverload) else None


def called_name(node: Node) -> str:
    if (overload := overload_of(node.target)) is not None:
        return dotted_name(overload)
    # torch's operation behind `map` is named `map_impl`
    return PYTHON_FUNCTIONS.get(node.target) or str(getattr(node.target, "__name__", node.target)).removesuffix("_impl")


def number_conversion(value: object) -> str | None:
    # a delegate may return a 0-d tensor for a Python number of torch's graph
    if isinstance(value, (bool, torch.SymBool)):
        return "item_bool"
    if isinstance(value, (int, torch.SymInt)):
        return "item_int"
    return "item_float" if isinstance(value, (float, torch.SymFloat)) else None


def convert_argument(value: object, refer: Callable[[Node], Argument], where: str) -> Argument:
    if isinstance(value, Node):
        return refer(value)
    if isinstance(value, (list, tuple)):
        return tuple(convert_argument(item, refer, where) for item in value)
    return literal_argument(value, where)


def literal_argument(value: object, where: str) -> Literal:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float, complex)) and type(value) in (int, float, complex):
        return math.nan if value != value and isinstance(value, float) else value
    if isinstance(value, torch.SymInt) and (known := value.node.maybe_as_int()) is not None:
        return int(known)
    name = value.type if isinstance(value, torch.device) else str(value).removeprefix("torch.")
    for kind, names in NAMES.items():
        if isinstance(value, getattr(torch, kind)) and name in names:
            return Special(kind, name)
    raise EdgeError(
        "a literal in the graph cannot be packaged",
        where=where,
        found=f"{type(value).__name__} {value!s:.200}",
        hint="set the value in the module before the export, or pass a number, a string, a dtype, a layout, a memory"
        " format or the device `cpu`",
    )


SYMBOL = re.compile(r"\b[a-z]+\d+\b")
LONGEST = 160  # characters of an argument; the beginning of a long list is enough for a reader


class Describer:
    """Texts for the nodes of an exported method; `labels` are the names of dimensions by torch's symbols."""

    def __init__(self, program: ExportedProgram, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._symbols: dict[str, str] = {}  # torch's symbol to the plan's numbered symbol, in order of appearance
        self._constants = {node.name: str(spec.target) for node, spec in constant_placeholders(program).items()}
        self.nodes = list(all_nodes(program.graph_module))
        for node in self.nodes:
            if node.op == "placeholder":
                self.value(node.meta.get("val"))

    def detail(self, node: Node) -> Detail:
        return Detail(self.value(node.meta.get("val")), tuple(self._arguments(node)))

    def value(self, value: object) -> str:
        """Format a tensor as `float32[batch, 10]`, a sequence by its members, and other values as empty text."""
        if isinstance(value, torch.Tensor):
            return f"{dtype_name(value.dtype)}[{', '.join(map(self._size, value.shape))}]"
        if isinstance(value, list | tuple):
            return ", ".join(filter(None, map(self.value, value)))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._size(value)
        return ""

    def _size(self, size: object) -> str:
        return SYMBOL.sub(lambda match: self._name(match[0]), str(size))

    def _name(self, symbol: str) -> str:
        known = self._symbols.setdefault(symbol, f"s{len(self._symbols)}")
        return self._labels.get(symbol, known)

    def _arguments(self, node: Node) -> Iterator[str]:
        overload = overload_of(node.target)
        names = [] if overload is None else [argument.name for argument in schema_of(overload).arguments]
        for position, argument in enumerate(node.args):
            name = names[position] if position < len(names) else str(position)
            yield from self._argument(name, argument)
        for name, argument in node.kwargs.items():
            yield from self._argument(name, argument)

    def _argument(self, name: str, argument: object) -> Iterator[str]:
        text = self._text(argument)
        yield f"{name}: {text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"

    def _text(self, argument: object) -> str:
        if isinstance(argument, Node):
            constant = self._constants.get(argument.name, "") if argument.op == "placeholder" else ""
            return " ".join(filter(None, (constant, self.value(argument.meta.get("val"))))) or "another graph"
        if isinstance(argument, list | tuple):
            return f"[{', '.join(map(self._text, argument))}]"
        if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._size(argument)
        return repr(argument) if isinstance(argument, str) else str(argument)


def with_details(
    debug: DebugMap,
    anchors: Anchors,
    exported: Mapping[str, ExportedProgram],
    labels: Mapping[str, Mapping[str, str]],
) -> DebugMap:
    """Return a debug map with results and arguments, for handles with an exported node."""
    methods = {
        name: replace(method, details=details_of(anchors[name], Describer(exported[name], labels[name])))
        for name, method in debug.methods.items()
    }
    return replace(debug, methods=methods)


def details_of(places: Mapping[int, int | None], describer: Describer) -> dict[int, Detail]:
    nodes: Sequence[Node] = describer.nodes
    return {handle: describer.detail(nodes[place]) for handle, place in sorted(places.items()) if place is not None}
