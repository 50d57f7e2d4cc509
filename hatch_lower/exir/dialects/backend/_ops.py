"""Backend operators, with which a backend replaces patterns of edge operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from hatch_lower.errors import EdgeError
from hatch_lower.exir.dialects.edge._ops import EdgeOpOverload, EdgeOpOverloadPacket
from hatch_lower.runtime.torch_private.operators import DispatchKey, OpOverload

# a graph with the operator can be traced again if any of these kernels exists
KERNELS = (DispatchKey.Meta, DispatchKey.CompositeExplicitAutograd, DispatchKey.CompositeImplicitAutograd)


class KernelError(EdgeError, AssertionError):
    """A backend operator has no kernel for tracing."""


def has_kernel(op: OpOverload) -> bool:
    return any(op.has_kernel_for_dispatch_key(key) for key in KERNELS)


class BackendOpOverload(EdgeOpOverload):
    """An operator of a backend's own, allowed in an edge program.

    `_equivalent_callable` is the replaced pattern, as a function of the same arguments. An operator that cannot be
    traced is a `KernelError`, which is an `AssertionError`.
    """

    _dialect = "backend"
    _equivalent_callable: Callable[..., object] | None

    def __init__(self, op: OpOverload) -> None:
        super().__init__(op)
        if not has_kernel(op):
            raise KernelError(
                f"the backend operator {self.__name__} has no kernel for tracing",
                found="none of Meta, CompositeExplicitAutograd, CompositeImplicitAutograd",
                hint="register a fake kernel with `torch.library.register_fake`, or bind its pattern with "
                "`bind_pattern_to_op`",
            )
        self._equivalent_callable = None


class BackendOpOverloadPacket(EdgeOpOverloadPacket):
    _overload_type: ClassVar[type[EdgeOpOverload]] = BackendOpOverload
