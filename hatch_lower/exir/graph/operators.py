"""Names of operators, such as `aten.add.Tensor`, that are the same in all dialects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.fx import Node

from hatch_lower.exir.dialects.edge._ops import dotted_name
from hatch_lower.runtime.torch_private.operators import OpOverload, OpOverloadPacket, packet_name, schema_of
from hatch_lower.runtime.torch_private.programs import qualify_name


def torch_operator(target: object) -> Any:
    """Return the torch overload behind an operator of the edge or a backend's dialect, or the target itself."""
    op = getattr(target, "_op", None)  # torch's own overloads have an `_op` too, which is no overload
    return op if isinstance(op, OpOverload) else target


def operator_name(target: object) -> str:
    """Return `aten.add.Tensor` for an overload of any dialect, `aten.add` for a packet, `_operator.getitem` for a
    function; a name loses its module."""
    operator = torch_operator(target)
    if isinstance(operator, OpOverload):
        return dotted_name(operator)
    if isinstance(operator, OpOverloadPacket):
        return packet_name(operator)
    if isinstance(operator, str):
        return strip_module(operator)
    name = str(getattr(operator, "__name__", operator))
    return name if "." in name else strip_module(qualify_name(operator))


def strip_module(name: str) -> str:
    parts = name.split(".")
    place = next((index for index, part in enumerate(parts) if part in ("ops", "_ops")), None)
    if place is None:
        return name
    return ".".join(parts[place + 1 :]).removeprefix("edge.")


def named_arguments(node: Node) -> dict[str, Any]:
    target = torch_operator(node.target)
    if not isinstance(target, OpOverload):
        return {}
    names = [argument.name for argument in schema_of(target).arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


class OperatorSet:
    """A set of operators (overloads, packets, functions or names, of any dialect) to look up a node's operator."""

    def __init__(self, operators: Iterable[object]) -> None:
        self.operators = tuple(operators)
        self._names = frozenset(operator_name(operator) for operator in self.operators)

    def __contains__(self, node: Node) -> bool:
        if node.op != "call_function":
            return False
        name = operator_name(node.target)
        if name in self._names:
            return True
        # a packet stands for all its overloads
        return isinstance(torch_operator(node.target), OpOverload) and name.rpartition(".")[0] in self._names

    def overloads(self) -> list[OpOverload]:
        targets = (torch_operator(operator) for operator in self.operators)
        return [target for target in targets if isinstance(target, OpOverload)]
