"""Edge operators: `ops.edge.aten.add.Tensor` stands for torch's `aten.add.Tensor` in an edge program.

An edge overload is an object of its own, so a graph says by its targets that it is in the edge dialect. Each exists
once: identity is equality, and a name always gives the same object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["EdgeOpOverload", "EdgeOpOverloadPacket", "edge_overload", "ops"]


class EdgeOpOverload:
    """One edge operator; calling it runs the torch overload, and other attributes are the torch overload's.

    Args:
        op: the torch overload that it stands for.
    """

    def __init__(self, op: OpOverload) -> None:
        self._op = op
        namespace, name = op._schema.name.split("::")
        overload = op._schema.overload_name or "default"
        self.__name__ = f"{namespace}.{name}.{overload}"
        self.__qualname__ = self.__name__
        self.__module__ = "hatch_lower.edge.ops.edge"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._op(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_op":
            raise AttributeError(name)
        return getattr(self._op, name)

    def __copy__(self) -> EdgeOpOverload:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None) -> EdgeOpOverload:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (edge_overload, (self._op,))

    def __repr__(self) -> str:
        return f"<EdgeOpOverload: {self.__name__}>"

    def __str__(self) -> str:
        return self.__name__


class EdgeOpOverloadPacket:
    """All overloads of one edge operator, by attribute."""

    def __init__(self, packet: OpOverloadPacket) -> None:
        self._packet = packet
        self._overloads: dict[str, EdgeOpOverload] = {}
        self.__name__ = packet._qualified_op_name.replace("::", ".")

    @property
    def op(self) -> Any:
        """The torch packet's raw operator."""
        return self._packet.op

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_packet", "_overloads"):
            raise AttributeError(name)
        found = getattr(self._packet, name)
        if not isinstance(found, OpOverload):
            return found
        overload = EdgeOpOverload(found)
        setattr(self, name, overload)
        self._overloads[name] = overload
        return overload

    def __iter__(self) -> Iterator[str]:
        return iter(self._overloads)

    def __hash__(self) -> int:
        return hash(self._packet)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EdgeOpOverloadPacket) and self._packet is other._packet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._packet(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<EdgeOpOverloadPacket: {self.__name__}>"


class EdgeNamespace:
    """The edge operators of one torch namespace."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> EdgeOpOverloadPacket:
        # not refused by its underscores: ATen has operators named `__and__`
        found = getattr(getattr(torch.ops, self._name), name)
        if not isinstance(found, OpOverloadPacket):
            raise AttributeError(name)
        packet = EdgeOpOverloadPacket(found)
        setattr(self, name, packet)
        return packet


class EdgeDialect:
    """The torch namespaces, as edge operators."""

    def __getattr__(self, name: str) -> EdgeNamespace:
        if name.startswith("__"):
            raise AttributeError(name)
        namespace = EdgeNamespace(name)
        setattr(self, name, namespace)
        return namespace


class Dialects:
    """The root of all dialects' operators."""

    def __init__(self) -> None:
        self.edge = EdgeDialect()


ops = Dialects()


def edge_overload(op: OpOverload) -> EdgeOpOverload:
    """Return the edge operator of a torch overload: always the same object."""
    namespace, name = op._schema.name.split("::")
    packet = getattr(getattr(ops.edge, namespace), name)
    overload: EdgeOpOverload = getattr(packet, op._schema.overload_name or "default")
    return overload
