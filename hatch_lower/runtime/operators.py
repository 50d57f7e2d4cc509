"""Operators that a plan names: ATen overloads, and arithmetic on sizes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

from hatch_lower.errors import ProgramError
from hatch_lower.format.graph import Graph, OpCall, nested_graphs
from hatch_lower.runtime.names import Names

__all__ = [
    "PYTHON_FUNCTIONS",
    "PYTHON_TEMPLATES",
    "TORCH_LIBRARIES",
    "Operators",
    "may_return_alias",
    "python_code",
    "resolve_operators",
    "size_code",
]

Operators: TypeAlias = "Mapping[str, OpOverload[..., Any]]"

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
"""Operations that are Python's own operators. Those that are functions are in `PYTHON_FUNCTIONS`."""

PYTHON_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "abs": abs,
        "acos": math.acos,
        "asin": math.asin,
        "atan": math.atan,
        "ceil": math.ceil,
        "cos": math.cos,
        "cosh": math.cosh,
        "exp": math.exp,
        "floor": math.floor,
        "item_bool": bool,
        "item_float": float,
        "item_int": int,
        "log": math.log,
        "log2": math.log2,
        "max": max,
        "min": min,
        "round": round,
        "sin": math.sin,
        "sinh": math.sinh,
        "sqrt": math.sqrt,
        "sym_bool": bool,
        "sym_float": float,
        "sym_int": int,
        "sym_max": max,
        "sym_min": min,
        "sym_sum": sum,
        "tan": math.tan,
        "tanh": math.tanh,
        "trunc": math.trunc,
    }
)

SIZE_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "aten.sym_numel.default": "{0}.numel()",
        "aten.sym_size.int": "{0}.size({1})",
        "aten.sym_storage_offset.default": "{0}.storage_offset()",
        "aten.sym_stride.int": "{0}.stride({1})",
    }
)
"""Operators that a method of the tensor answers sooner."""


TORCH_LIBRARIES: Mapping[str, str] = MappingProxyType(
    {
        "onnx": "torch.onnx.ops",
        "prims": "torch._prims",
        "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
        "torch_attn": "torch.nn.attention.varlen",
    }
)
"""Namespaces of operators that a module of torch registers, but not `import torch`."""


def python_code(op: str, args: list[str], names: Names) -> str:
    """Return the code of an operation on sizes."""
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
    """Return every overload that a graph calls, at any depth, by its name in the plan.

    Raises:
        ProgramError: if torch has no such operator, or it does not take the arguments that it is given.
    """
    operators: dict[str, OpOverload[..., Any]] = {}
    for call in calls_in(graph):
        if call.op not in operators:
            operators[call.op] = find_operator(call.op, where)
        schema = operators[call.op]._schema
        positional = sum(not each.kwarg_only for each in schema.arguments)
        known = {each.name for each in schema.arguments[len(call.args) :]}
        if len(call.args) > positional or not known.issuperset(name for name, _ in call.kwargs):
            raise ProgramError(
                "the program calls an operator with arguments that it does not take",
                where=where,
                found=f"{len(call.args)} arguments and {[name for name, _ in call.kwargs]} for {schema}",
                hint="install the torch version that the program requires",
            )
    return operators


def calls_in(graph: Graph) -> Iterator[OpCall]:
    """Yield the operator calls of a graph, at any depth."""
    for instruction in graph.instructions:
        if isinstance(instruction, OpCall):
            yield instruction
        for nested in nested_graphs(instruction):
            yield from calls_in(nested)


def find_operator(name: str, where: str) -> OpOverload[..., Any]:
    """Return the overload `namespace.name.overload`; none that opens a file, for a program is arithmetic on tensors."""
    namespace, packet, overload = name.split(".")
    if namespace in TORCH_LIBRARIES:
        importlib.import_module(TORCH_LIBRARIES[namespace])
    try:
        operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except (AttributeError, RuntimeError):
        operator = None
    if not isinstance(operator, OpOverload):
        raise ProgramError(
            "the program calls an operator that torch does not have here",
            where=where,
            found=name,
            hint="install the torch version that the program requires; if a library registers the operator, name its"
            " module in `imports` of the recipe, build the wheel again, and until then import it before loading",
        )
    if any(each.name == "filename" for each in operator._schema.arguments):
        raise ProgramError(
            "the program calls an operator that opens files",
            where=where,
            found=name,
            hint="read the file in the model's own code, before the export",
        )
    return operator


def may_return_alias(operator: OpOverload[..., Any]) -> bool:
    """Return whether a result may share memory with an argument.

    The schema says so, except for composites (`dropout` returns its argument at inference).
    """
    if any(each.alias_info is not None for each in operator._schema.returns):
        return True
    name = str(operator.name())  # type: ignore[no-untyped-call]
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
