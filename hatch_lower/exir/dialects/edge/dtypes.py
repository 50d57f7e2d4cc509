"""Which dtypes an operator's tensors may have: constraints, and the table of those of the core ATen operators.

`python -m hatch_lower.exir.dialects.edge.generate_dtypes` makes the table, `dtypes.json`, from what torch itself
accepts. It is read when an operator's dtypes are first asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch._ops import OpOverload

from hatch_lower.exir.dialects.edge.faults import ConstraintError

__all__ = [
    "REGULAR_DTYPES",
    "AllowedDtypeSet",
    "FunctionDtypeConstraint",
    "constraint_of",
    "full_name",
    "is_tensor_type",
    "result_name",
    "tensor_names",
]

REGULAR_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
"""The dtypes that the table speaks of; a tensor of another (complex, quantised, 8-bit float) is not checked."""


class AllowedDtypeSet:
    """The dtypes that a tensor may have, until it is reduced to one of them.

    Args:
        types: the dtypes.
    """

    def __init__(self, types: Iterable[torch.dtype]) -> None:
        self._types = frozenset(types)
        self._reduced: torch.dtype | None = None

    def __contains__(self, dtype: object) -> bool:
        return dtype in self._types if self._reduced is None else dtype is self._reduced

    def reduce_to(self, dtype: torch.dtype) -> bool:
        """Allow `dtype` only; return whether it was allowed."""
        if dtype not in self:
            return False
        self._reduced = dtype
        return True

    def clear(self) -> None:
        """Allow all of its dtypes again."""
        self._reduced = None

    def __repr__(self) -> str:
        shown = self._types if self._reduced is None else {self._reduced}
        return f"AllowedDtypeSet({{{', '.join(sorted(map(str, shown)))}}})"


class FunctionDtypeConstraint:
    """Which dtypes of an operator's tensors go together.

    A row gives each tensor an alias, and an alias stands for one dtype out of a set; a call is allowed if some row
    has a dtype for each alias that fits all tensors of that alias. Nothing changes while a call is checked.

    Args:
        essential_tensor_io_names: tensors that every call has; results are `__ret_0`, … where they have no name.
        optional_tensor_io_names: tensors that a call may leave out.
        type_alias: alias to dtypes.
        type_constraint: rows: tensor name to alias.

    Raises:
        ConstraintError: a `RuntimeError`, if a row does not name every tensor or uses an alias that there is not.
    """

    def __init__(
        self,
        essential_tensor_io_names: Iterable[str],
        optional_tensor_io_names: Iterable[str],
        type_alias: Mapping[str, Iterable[torch.dtype]],
        type_constraint: Sequence[Mapping[str, str]],
    ) -> None:
        self.essential_tensor_io_names = frozenset(essential_tensor_io_names)
        self.optional_tensor_io_names = frozenset(optional_tensor_io_names)
        self.type_alias = {alias: frozenset(dtypes) for alias, dtypes in type_alias.items()}
        self.type_constraint = tuple(dict(row) for row in type_constraint)
        names = self.essential_tensor_io_names | self.optional_tensor_io_names
        for row in self.type_constraint:
            if row.keys() != names or not self.type_alias.keys() >= set(row.values()):
                raise ConstraintError(
                    "a row of a dtype constraint must give every tensor of the operator an alias of `type_alias`",
                    where=f"row {dict(row)}",
                    found=f"tensors {sorted(names)}, aliases {sorted(self.type_alias)}",
                    hint="name each tensor argument and each result in each row",
                )

    def __getitem__(self, key: str) -> set[torch.dtype]:
        """Return the dtypes that a tensor has in some row.

        Raises:
            KeyError: for a name that the operator has no tensor of.
        """
        if key not in self:
            raise KeyError(key)
        return {dtype for row in self.type_constraint for dtype in self.type_alias[row[key]]}

    def __contains__(self, key: object) -> bool:
        return key in self.essential_tensor_io_names or key in self.optional_tensor_io_names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.essential_tensor_io_names | self.optional_tensor_io_names))

    def validate(self, io_to_type_map: Mapping[str, torch.dtype | None]) -> bool:
        """Return whether a call may have these dtypes.

        Args:
            io_to_type_map: tensor name to its dtype; `None` says nothing about it. Optional tensors may be left out.
        """
        if not all(name in self for name in io_to_type_map):
            return False
        if not self.essential_tensor_io_names <= io_to_type_map.keys():
            return False
        given = [(name, dtype) for name, dtype in io_to_type_map.items() if dtype is not None]
        return any(self._allows(row, given) for row in self.type_constraint)

    def _allows(self, row: Mapping[str, str], given: Iterable[tuple[str, torch.dtype]]) -> bool:
        chosen: dict[str, torch.dtype] = {}
        return all(
            dtype in self.type_alias[row[name]] and chosen.setdefault(row[name], dtype) is dtype
            for name, dtype in given
        )


def is_tensor_type(kind: Any) -> bool:
    """Return whether a schema's type is a tensor, a list of tensors, or one of them or `None`."""
    text = str(kind)
    return "Tensor" in text and text.replace("Optional[", "").replace("List[", "").rstrip("]") == "Tensor"


def result_name(argument: Any, position: int) -> str:
    """Return what a constraint calls a result."""
    return argument.name or f"__ret_{position}"


def tensor_names(schema: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of an operator's essential tensors, results last, and of those that may be `None`."""
    tensors = [argument for argument in schema.arguments if is_tensor_type(argument.type)]
    optional = tuple(argument.name for argument in tensors if str(argument.type).startswith("Optional["))
    results = [
        result_name(argument, position)
        for position, argument in enumerate(schema.returns)
        if is_tensor_type(argument.type)
    ]
    return (*(argument.name for argument in tensors if argument.name not in optional), *results), optional


def full_name(op: OpOverload) -> str:
    """Return `aten::add.Tensor`, or `aten::abs` for a nameless overload."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else str(op._schema.name)


def constraint_of(op: OpOverload) -> FunctionDtypeConstraint:
    """Return an operator's constraint: from the table, else any regular dtype for each of its tensors."""
    essential, optional = tensor_names(op._schema)
    entry = _edge_dialect_info.get(full_name(op))
    if entry is None:
        row = {name: f"T{index}" for index, name in enumerate((*essential, *optional))}
        return FunctionDtypeConstraint(essential, optional, dict.fromkeys(row.values(), REGULAR_DTYPES), [row])
    aliases = {alias: [getattr(torch, name) for name in names] for alias, names in entry["type_alias"].items()}
    return FunctionDtypeConstraint(essential, optional, aliases, entry["type_constraint"])


@cache
def read_table() -> Mapping[str, Any]:
    """Return what is in `dtypes.json`."""
    table: Mapping[str, Any] = json.loads(files("hatch_lower.exir.dialects.edge").joinpath("dtypes.json").read_text())
    return table


class DialectInfo(Mapping[str, Mapping[str, Any]]):
    """The dtypes of the core ATen operators by their full names: `aten::add.Tensor`, `aten::abs`.

    An entry has `type_alias`, alias to names of dtypes, and `type_constraint`, rows of tensor name to alias.
    """

    def __getitem__(self, key: str) -> Mapping[str, Any]:
        table = read_table()
        entry = table["operators"][key]
        rows = [dict(zip(entry["tensors"], row.split(), strict=True)) for row in entry["rows"]]
        used = sorted({alias for row in rows for alias in row.values()})
        aliases = {alias: table["aliases"][alias.rstrip("'")] for alias in used}
        return {"namespace": "edge", "inherits": key, "type_alias": aliases, "type_constraint": rows}

    def __iter__(self) -> Iterator[str]:
        return iter(read_table()["operators"])

    def __len__(self) -> int:
        return len(read_table()["operators"])


_edge_dialect_info = DialectInfo()
