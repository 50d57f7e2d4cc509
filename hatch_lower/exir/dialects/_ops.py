"""The dialects' operators by name: `ops.edge.aten.add.Tensor`, `ops.backend.<library>.<operator>.<overload>`.

Attributes below `ops` are made on first access, and a name always gives the same object.
"""

from __future__ import annotations

import copyreg
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.library import Library

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects.backend._ops import BackendOpOverload, BackendOpOverloadPacket, has_kernel
from hatch_lower.exir.dialects.edge._ops import SOURCE
from hatch_lower.exir.dialects.edge._ops import EdgeOpOverload as EdgeOpOverload
from hatch_lower.exir.dialects.edge._ops import EdgeOpOverloadPacket as EdgeOpOverloadPacket
from hatch_lower.runtime.torch_private.operators import (
    REGISTERED_BY,
    OpOverload,
    OpOverloadPacket,
    parse_schema,
    schema_of,
)

PACKETS: Mapping[str, type[EdgeOpOverloadPacket]] = MappingProxyType(
    {"edge": EdgeOpOverloadPacket, "backend": BackendOpOverloadPacket}
)
# the torch namespaces of the backend dialect; `bind_pattern_to_op` and ExecuTorch's backends extend the list
_BACKEND_OP_LIB = ["executorch_prim", "quantized_decomposed", "DO_NOT_USE_TEST_ONLY"]

Pattern = TypeVar("Pattern", bound=Callable[..., object])


class LibraryError(EdgeError, RuntimeError):
    """A library's operators were looked up as backend operators without a declaration."""


class _OpNamespace:
    """The operators of a torch namespace in a dialect."""

    def __init__(self, dialect: str, name: str) -> None:
        self._dialect = dialect
        self._name = name
        self._made: dict[str, EdgeOpOverloadPacket] = {}
        self._dir: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            return SOURCE
        if name in ("_dialect", "_name", "_made", "_dir"):  # `copy` looks these up before `__init__`
            raise AttributeError(name)
        # not refused by its underscores: ATen has operators named `__and__`
        found = getattr(getattr(torch.ops, self._name), name)
        if not isinstance(found, OpOverloadPacket):
            raise AttributeError(name)
        made = self._made.get(name)
        if made is None or made._packet is not found:  # torch makes a new operator if its library is made again
            made = self._made[name] = PACKETS[self._dialect](found)
            self._dir = list(self._made)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._dir)

    def __repr__(self) -> str:
        return f"<{self._dialect} operators of {self._name}>"


class _DialectNamespace:
    """The torch namespaces of a dialect: the given `libraries`, or all."""

    def __init__(self, name: str, libraries: list[str] | None = None) -> None:
        self._name = name
        self._libraries = libraries
        self._dir: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            return SOURCE
        if name.startswith("__") or name in ("_name", "_libraries", "_dir"):
            raise AttributeError(name)
        if self._libraries is not None and name not in self._libraries:
            raise LibraryError(
                f"the `{name}` op library does not belong to {self._name} ops",
                found=", ".join(f"`{library}`" for library in self._libraries),
                hint="bind a pattern to one of its operators with `bind_pattern_to_op`",
            )
        if name in REGISTERED_BY:  # torch registers these operators when the module that has them is imported
            importlib.import_module(REGISTERED_BY[name])
        made = self.__dict__.setdefault(name, _OpNamespace(self._name, name))
        self._dir.append(name)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._dir)

    def __repr__(self) -> str:
        return f"<operators of the dialect {self._name}>"


class _Ops:
    def __init__(self) -> None:
        self._dir: list[str] = []

    def __getattr__(self, name: str) -> _DialectNamespace:
        if name.startswith("__") or name == "_dir":
            raise AttributeError(name)
        dialect = _DialectNamespace(name, _BACKEND_OP_LIB if name == "backend" else None)
        made: _DialectNamespace = self.__dict__.setdefault(name, dialect)
        self._dir.append(name)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._dir)


ops = _Ops()


def torch_overload(target: Any) -> Any:
    """Return torch's operator behind an edge operator; other targets are returned unchanged."""
    return target._op if isinstance(target, EdgeOpOverload) else target


def edge_overload(op: OpOverload) -> EdgeOpOverload:
    # always the same object
    namespace, name = schema_of(op).name.split("::")
    packet = getattr(getattr(ops.edge, namespace), name)
    overload: EdgeOpOverload = getattr(packet, schema_of(op).overload_name or "default")
    return overload


def bind_pattern_to_op(library: Library, schema_or_name: str) -> Callable[[Pattern], Pattern]:
    """Make the decorated function, a pattern of operators, the meaning of a backend operator.

    The operator is then `ops.backend.<library>.<name>.<overload>` and its `_equivalent_callable` the function. Without
    a kernel for tracing, the operator runs the function.

    Args:
        schema_or_name: a schema to define, or `name` or `name.overload` of an operator that the library has.
    """

    def bind(pattern: Pattern) -> Pattern:
        libraries = ops.backend._libraries
        if libraries is not None and library.ns not in libraries:
            libraries.append(library.ns)
        name, overload = define_operator(library, schema_or_name)
        op = getattr(getattr(getattr(torch.ops, library.ns), name), overload)
        if not has_kernel(op):
            register: Any = library.impl
            register(op, pattern, "CompositeImplicitAutograd")
        bound: BackendOpOverload = getattr(getattr(getattr(ops.backend, library.ns), name), overload)
        bound._equivalent_callable = pattern
        return pattern

    return bind


def define_operator(library: Library, schema_or_name: str) -> tuple[str, str]:
    try:
        schema = parse_schema(schema_or_name)
    except RuntimeError:
        name, _, overload = schema_or_name.rpartition("::")[2].partition(".")
    else:
        define: Any = library.define
        define(schema_or_name)
        name, overload = schema.name.rpartition("::")[2], schema.overload_name
    return name, overload or "default"


def restore(overload: EdgeOpOverload) -> tuple[Any, ...]:
    # by name: each operator is a single object
    return operator.attrgetter(f"{overload._dialect}.{overload.__name__}"), (ops,)


copyreg.pickle(_Ops, lambda root: "ops")
copyreg.pickle(EdgeOpOverload, restore)
copyreg.pickle(BackendOpOverload, restore)
