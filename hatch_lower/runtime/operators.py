"""Operators that a plan names: ATen overloads, and arithmetic on sizes."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hatch_lower.errors import ProgramError
from hatch_lower.format.graph import Graph, OpCall, nested_graphs
from hatch_lower.runtime.names import Names
from hatch_lower.torch_private.operators import (
    REGISTERED_BY,
    OpOverload,
    compiled_function,
    has_composite_kernel,
    is_registered,
    schema_of,
)

Operators: TypeAlias = "Mapping[str, OpOverload[..., Any]]"

# operations that are Python's own operators; those that are functions are in `PYTHON_FUNCTIONS`
PYTHON_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "add": "{0} + {1}",
        "and_": "{0} & {1}",
        "eq": "{0} == {1}",
        "floordiv": "{0} // {1}",
        "ge": "{0} >= {1}",
        "getitem": "{0}[{1}]",
        "gt": "{0} > {1}",
        "le": "{0} <= {1}",
        "lshift": "{0} << {1}",
        "lt": "{0} < {1}",
        "mod": "{0} % {1}",
        "mul": "{0} * {1}",
        "ne": "{0} != {1}",
        "neg": "-{0}",
        "not_": "not {0}",
        "or_": "{0} | {1}",
        "pos": "+{0}",
        "pow": "{0} ** {1}",
        "rshift": "{0} >> {1}",
        "sub": "{0} - {1}",
        "sym_ite": "{1} if {0} else {2}",
        "sym_not": "not {0}",
        "truediv": "{0} / {1}",
        "xor": "{0} ^ {1}",
    }
)

MATH_FUNCTIONS = (
    *("acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "floor"),
    *("log", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
PYTHON_FUNCTIONS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        **{name: getattr(math, name) for name in MATH_FUNCTIONS},
        "abs": abs,
        "item_bool": bool,
        "item_float": float,
        "item_int": int,
        "max": max,
        "min": min,
        "round": round,
        "sym_bool": bool,
        "sym_float": float,
        "sym_int": int,
        "sym_max": max,
        "sym_min": min,
        "sym_sum": sum,
    }
)

# operators that a method of the tensor answers sooner
SIZE_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "aten.sym_numel.default": "{0}.numel()",
        "aten.sym_size.int": "{0}.size({1})",
        "aten.sym_storage_offset.default": "{0}.storage_offset()",
        "aten.sym_stride.int": "{0}.stride({1})",
    }
)


# operators whose sizes and strides torch takes as they are; it checks those of the others, `as_strided` among them
ALIASING = frozenset({"aten._reshape_alias.default", "aten._reshape_alias_copy.default"})

# operators that make a sparse tensor of indices
SPARSE = re.compile(r"aten\.sparse_(?:coo|compressed|csr|csc|bsr|bsc)_tensor\..*")

# operators for torch's own use, which no model calls: nothing is checked, or they open a file
UNBOUNDED = re.compile(
    r"aten\._sparse_\w*_tensor_(?:unsafe|with_dims_and_tensors)\..*|aten\._nested_view_from_.*"
    r"|aten\.set_?\.source_.*_storage_offset.*|(?:inductor|debugprims)\..*"
)


def python_code(op: str, args: list[str], names: Names) -> str:
    if op in PYTHON_TEMPLATES:
        return PYTHON_TEMPLATES[op].format(*args)
    return f"{names.bind(op, PYTHON_FUNCTIONS[op], op)}({', '.join(args)})"


def size_code(op: str, args: list[str]) -> str | None:
    """Return the code of an operator that asks a tensor for its size; `None` for any other, and for a literal."""
    template = SIZE_TEMPLATES.get(op)
    if template is None or template.count("{") != len(args) or not args[0].isidentifier():
        return None
    return template.format(*args)


def resolve_operators(graph: Graph, where: str) -> Operators:
    """Return every overload that a graph calls, at any depth, by its name in the plan."""
    operators: dict[str, OpOverload[..., Any]] = {}
    for call in calls_in(graph):
        if call.op not in operators:
            operators[call.op] = find_operator(call.op, where)
        schema = schema_of(operators[call.op])
        positional = sum(not argument.kwarg_only for argument in schema.arguments)
        known = {argument.name for argument in schema.arguments[len(call.args) :]}
        if len(call.args) > positional or not known.issuperset(call.kwargs):
            raise ProgramError(
                "the program calls an operator with arguments that it does not take",
                where=where,
                found=f"{len(call.args)} arguments and {list(call.kwargs)} for {schema}",
                hint="install the torch version that the program requires",
            )
    return operators


def calls_in(graph: Graph) -> Iterator[OpCall]:
    for instruction in graph.instructions:
        if isinstance(instruction, OpCall):
            yield instruction
        for nested in nested_graphs(instruction):
            yield from calls_in(nested)


def find_operator(name: str, where: str) -> OpOverload[..., Any]:
    # a program is arithmetic on tensors: no operator opens a file, or reads what nobody gave it
    namespace, packet, overload = name.split(".")
    if namespace in REGISTERED_BY:
        importlib.import_module(REGISTERED_BY[namespace])
    try:
        operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError):
        operator = None
    if not isinstance(operator, OpOverload) or not is_registered(operator):
        raise ProgramError(
            "the program calls an operator that torch does not have here",
            where=where,
            found=name,
            hint="install the torch version that the program requires; if a library registers the operator, name its"
            " module in `imports` of the recipe, build the wheel again, and until then import it before loading",
        )
    if any(argument.name == "filename" for argument in schema_of(operator).arguments):
        raise ProgramError(
            "the program calls an operator that opens files",
            where=where,
            found=name,
            hint="read the file in the model's own code, before the export",
        )
    if UNBOUNDED.fullmatch(name):
        raise ProgramError(
            "the program calls an operator that reads memory outside of its arguments'",
            where=where,
            found=name,
            hint="export the model with operators on dense tensors that check their arguments",
        )
    return operator


def function_of(name: str, operator: OpOverload[..., Any]) -> Callable[..., object]:
    if name in ALIASING:
        return functools.partial(alias_within_storage, compiled_function(operator))
    if SPARSE.fullmatch(name):
        return functools.partial(check_indices, compiled_function(operator))
    return compiled_function(operator)


def alias_within_storage(
    operator: Callable[..., object], self: Tensor, size: Sequence[int], stride: Sequence[int]
) -> object:
    ends = [(extent - 1) * step for extent, step in zip(size, stride, strict=False)]
    first = self.storage_offset() + sum(min(end, 0) for end in ends)
    last = self.storage_offset() + sum(max(end, 0) for end in ends)
    count = self.untyped_storage().nbytes() // self.itemsize
    if len(size) != len(stride) or (0 not in size and (first < 0 or last >= count)):
        raise ProgramError(
            "the program would have read memory outside of a tensor's",
            found=f"sizes {list(size)} and strides {list(stride)}, where there is room for {count} elements",
            hint="install the distribution again; if that does not help, build its wheel again",
        )
    return operator(self, size, stride)


def check_indices(operator: Callable[..., object], *args: object, **kwargs: object) -> object:
    # torch compares the indices of a sparse tensor with its sizes only if it is told to
    with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
        return operator(*args, **kwargs)


def may_return_alias(operator: OpOverload[..., Any]) -> bool:
    # the schema says so, except for composites (`dropout` returns its argument at inference)
    if any(result.alias_info is not None for result in schema_of(operator).returns):
        return True
    return has_composite_kernel(operator)
