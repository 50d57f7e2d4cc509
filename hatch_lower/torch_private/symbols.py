"""Symbolic sizes: torch's own functions of sympy, the ranges of symbols, and expressions computed with other values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import (
    CleanDiv,
    FloorDiv,
    Identity,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
)
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

__all__ = [
    "CleanDiv",
    "FloorDiv",
    "Identity",
    "IntTrueDiv",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "PowByNatural",
    "PythonMod",
    "ValueRanges",
    "bound_sympy",
    "compute",
    "int_oo",
    "source_of_size",
    "unsimplified",
]


def compute(expression: sympy.Expr, values: Mapping[sympy.Expr, Any]) -> Any:
    """Return an expression of Python's operators applied to what its symbols stand for."""
    return sympy_interp(PythonReferenceAnalysis, dict(values), expression)


def unsimplified(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Basic:
    """Return the expression of a symbolic value without what torch found out about its symbols later."""
    expression: sympy.Basic = value.node._expr
    return expression


def source_of_size(name: str) -> Any:
    """Return what says, of a symbol that is made by hand, where its value comes from."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)
