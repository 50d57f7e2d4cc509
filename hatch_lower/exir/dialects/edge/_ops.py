"""Edge operators: objects that stand for torch's operators in an edge program.

An edge overload is an object of its own, so the targets of a graph show its dialect. Each overload exists once:
identity is equality, and a name always gives the same object.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from hatch_lower.exir.dialects.edge.op.api import to_variant
from hatch_lower.runtime.torch_private.operators import OpOverload, OpOverloadPacket, packet_name, schema_of
from hatch_lower.runtime.torch_private.programs import SchemaKind

if TYPE_CHECKING:
    from typing import Self

# the `__file__` of operators and namespaces, for tools that ask any object
SOURCE = "hatch_lower.exir.dialects._ops"


def dotted_name(op: OpOverload) -> str:
    return f"{schema_of(op).name.replace('::', '.')}.{schema_of(op).overload_name or 'default'}"


class Unique:
    """An object that is its own copy: copies of graphs share their targets, one object for each operator."""

    __name__: str

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object] | None) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.__name__}>"

    def __str__(self) -> str:
        return self.__name__


class EdgeOpOverload(Unique):
    """An edge operator; a call runs the torch overload `_op`, which also provides all other attributes."""

    _dialect = "edge"

    def __init__(self, op: OpOverload) -> None:
        self._op = op
        self.__name__ = sys.intern(dotted_name(op))
        self.__qualname__ = self.__name__

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._op(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_op":
            raise AttributeError(name)
        return getattr(self._op, name)

    def to_out_variant(self) -> OpOverload:
        """Return the torch overload that writes the same result into an `out` argument; else a `VariantError`."""
        return to_variant(self._op, SchemaKind.out)


class EdgeOpOverloadPacket(Unique):
    """All overloads of an edge operator, by attribute."""

    _overload_type: ClassVar[type[EdgeOpOverload]] = EdgeOpOverload

    def __init__(self, packet: OpOverloadPacket) -> None:
        self._packet = packet
        self._made: dict[str, EdgeOpOverload] = {}
        self._dir: list[str] = []
        self.__name__ = packet_name(packet)

    @property
    def op(self) -> Any:
        return self._packet.op

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            return SOURCE
        if name.startswith("__") or name in ("_packet", "_made", "_dir"):
            raise AttributeError(name)
        found = getattr(self._packet, name)
        if not isinstance(found, OpOverload):
            return found
        made = self._made.get(name)
        if made is None or made._op is not found:  # torch makes a new operator if its library is made again
            made = self._made[name] = self._overload_type(found)
            self._dir = list(self._made)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._dir)

    def __hash__(self) -> int:
        return hash(self._packet)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._packet(*args, **kwargs)
