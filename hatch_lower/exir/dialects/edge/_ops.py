"""Edge operators: objects that stand for torch's operators in an edge program.

An edge overload is an object of its own, so a graph says by its targets that it is in the edge dialect. Each exists
once: identity is equality, and a name always gives the same object.
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

# what operators and their namespaces answer to tools that ask any object for its `__file__`
SOURCE = "hatch_lower.exir.dialects._ops"


def dotted_name(op: OpOverload) -> str:
    return f"{schema_of(op).name.replace('::', '.')}.{schema_of(op).overload_name or 'default'}"


class Unique:
    """Copied as itself: graphs are copied with their targets, and there is one object for each operator."""

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
    """One edge operator; calling it runs the torch overload `_op`, and other attributes are that one's."""

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
    """All overloads of one edge operator, by attribute."""

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
        if made is None or made._op is not found:  # torch makes an operator anew whose library was made anew
            made = self._made[name] = self._overload_type(found)
            self._dir = list(self._made)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._dir)

    def __hash__(self) -> int:
        return hash(self._packet)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._packet(*args, **kwargs)
