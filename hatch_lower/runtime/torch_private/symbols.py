"""Symbolic sizes: torch's sympy functions, ranges of symbols, and evaluation of expressions with other values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.functions import CeilToInt as CeilToInt
from torch.utils._sympy.functions import CleanDiv as CleanDiv
from torch.utils._sympy.functions import FloatPow as FloatPow
from torch.utils._sympy.functions import FloatTrueDiv as FloatTrueDiv
from torch.utils._sympy.functions import FloorDiv as FloorDiv
from torch.utils._sympy.functions import FloorToInt as FloorToInt
from torch.utils._sympy.functions import Identity as Identity
from torch.utils._sympy.functions import IntTrueDiv as IntTrueDiv
from torch.utils._sympy.functions import LShift as LShift
from torch.utils._sympy.functions import Max as Max
from torch.utils._sympy.functions import Min as Min
from torch.utils._sympy.functions import Mod as Mod
from torch.utils._sympy.functions import ModularIndexing as ModularIndexing
from torch.utils._sympy.functions import PowByNatural as PowByNatural
from torch.utils._sympy.functions import PythonMod as PythonMod
from torch.utils._sympy.functions import RoundDecimal as RoundDecimal
from torch.utils._sympy.functions import RoundToInt as RoundToInt
from torch.utils._sympy.functions import RShift as RShift
from torch.utils._sympy.functions import ToFloat as ToFloat
from torch.utils._sympy.functions import TruncToFloat as TruncToFloat
from torch.utils._sympy.functions import TruncToInt as TruncToInt
from torch.utils._sympy.functions import Where as Where
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo as int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges
from torch.utils._sympy.value_ranges import bound_sympy as bound_sympy

# torch's functions of symbols, by name
FUNCTIONS: Mapping[str, type[sympy.Basic]] = {
    name: value
    for name, value in vars(functions).items()
    if isinstance(value, type) and issubclass(value, sympy.Basic) and inspect.getmodule(value) is functions
}


def bounds_of(symbol: sympy.Symbol, environment: Any) -> ValueRanges[sympy.Expr] | None:
    """Return the range of a symbol in the environment of a symbolic value (`value.node.shape_env`)."""
    bounds: ValueRanges[sympy.Expr] | None = environment.var_to_range.get(symbol)
    return bounds


def compute(expression: sympy.Expr, values: Mapping[sympy.Expr, object]) -> object:
    """Evaluate an expression with Python's operators; the values of symbols are numbers or `Proxy` objects."""
    return sympy_interp(TracedAnalysis, dict(values), expression)


def is_computable(expression: sympy.Expr) -> bool:
    """Return whether `compute` supports all functions in an expression."""
    return all(type(function) in COMPUTABLE for function in expression.atoms(sympy.Function, sympy.Piecewise))


COMPUTABLE = frozenset(
    {
        *(CeilToInt, CleanDiv, FloatPow, FloatTrueDiv, FloorDiv, FloorToInt, Identity, IntTrueDiv, Max, Min, Mod),
        *(ModularIndexing, PowByNatural, PythonMod, RoundToInt, ToFloat, TruncToInt, sympy.Max, sympy.Min, sympy.Mod),
    }
)


def call_or_trace(function: Callable[..., Any], *values: Any) -> Any:
    traced = next((value for value in values if isinstance(value, torch.fx.Proxy)), None)
    return function(*values) if traced is None else traced.tracer.create_proxy("call_function", function, values, {})


def traced_conversion(function: Callable[..., Any]) -> staticmethod[[Any, object], Any]:
    return staticmethod(lambda x, dtype: call_or_trace(function, x))


class TracedAnalysis(PythonReferenceAnalysis):
    # for functions that torch computes with numbers only, or not at all

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def identity(x: Any) -> Any:
        return x

    @staticmethod
    def modular_indexing(base: Any, divisor: Any, modulus: Any) -> Any:
        return base // divisor % modulus

    trunc_to_int = traced_conversion(math.trunc)
    ceil_to_int = traced_conversion(math.ceil)
    floor_to_int = traced_conversion(math.floor)
    round_to_int = traced_conversion(round)
    to_dtype = traced_conversion(torch.sym_float)

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return call_or_trace(torch.sym_min, a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return call_or_trace(torch.sym_max, a, b)


def function_name(kind: type[sympy.Basic], prefix: str) -> str:
    """Return the name of a torch function without a prefix: `sqrt` of `OpaqueUnaryFn_sqrt`; empty if different."""
    name = kind.__name__
    return name.removeprefix(prefix) if FUNCTIONS.get(name) is kind and name.startswith(prefix) else ""


def unsimplified(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """Return the original expression of a symbolic value, without torch's later replacements of symbols."""
    expression: sympy.Basic = value.node._expr
    return expression


def source_of_size(name: str) -> Any:
    """Return a source object for the value of a symbol made by hand."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)
