"""Schemas of edge operators: torch's, with the dtypes that each tensor may have."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch._ops import OpOverload

from hatch_lower.exir.dialects.edge.dtypes import FunctionDtypeConstraint, constraint_of, is_tensor_type, result_name

__all__ = ["EdgeDialectArgument", "EdgeDialectFunctionSchema"]


class EdgeDialectArgument:
    """A tensor argument, or a tensor that is returned, with its dtypes; other attributes are torch's.

    Args:
        argument: torch's argument.
        schema: whose argument it is.
        name: what the dtype constraint calls it: its name, or `__ret_0`, `__ret_1`, … for a nameless result.
    """

    def __init__(self, argument: torch.Argument, schema: EdgeDialectFunctionSchema, name: str) -> None:
        self._argument = argument
        self._owner = schema
        self._name = name

    @property
    def argument(self) -> torch.Argument:
        """Torch's argument."""
        return self._argument

    @property
    def allowed_types(self) -> set[torch.dtype]:
        """The dtypes that the tensor may have in some call."""
        return self._owner.dtype_constraint[self._name]

    def __getattr__(self, name: str) -> Any:
        if name == "_argument":
            raise AttributeError(name)
        return getattr(self._argument, name)

    def __repr__(self) -> str:
        return f"<EdgeDialectArgument {self._name}: {self._argument.type}>"


class EdgeDialectFunctionSchema(torch.FunctionSchema):
    """Torch's schema of an operator, with dtypes.

    Args:
        op: the torch overload.

    Attributes:
        schema: torch's own schema.
        arguments: as torch's, tensors as `EdgeDialectArgument`.
        returns: as torch's, tensors as `EdgeDialectArgument`.
    """

    def __init__(self, op: OpOverload) -> None:
        own = op._schema
        super().__init__(own.name, own.overload_name, own.arguments, own.returns, False, False)
        self.schema = own
        self._op = op

    @cached_property
    def dtype_constraint(self) -> FunctionDtypeConstraint:
        """Which dtypes go together."""
        return constraint_of(self._op)

    @cached_property
    def arguments(self) -> list[Any]:  # type: ignore[override]
        return [wrap(each, self, each.name) for each in self.schema.arguments]

    @cached_property
    def returns(self) -> list[Any]:  # type: ignore[override]
        return [wrap(each, self, result_name(each, position)) for position, each in enumerate(self.schema.returns)]


def wrap(argument: Any, schema: EdgeDialectFunctionSchema, name: str) -> Any:
    """Return a tensor argument with its dtypes, any other as it is."""
    return EdgeDialectArgument(argument, schema, name) if is_tensor_type(argument.type) else argument
