"""Results and arguments of exported operations as text, by debug handle, for readers of a debug map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.exir.graph.state import constant_placeholders
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.format.debug_map import DebugMap, Detail
from hatch_lower.pipeline.emit.anchors import Anchors
from hatch_lower.pipeline.emit.arguments import overload_of
from hatch_lower.runtime.torch_private.operators import schema_of

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
