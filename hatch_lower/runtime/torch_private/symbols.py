"""Symbolic sizes: torch's own functions of sympy, the ranges of symbols, and expressions computed with other values."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.functions import CleanDiv as CleanDiv
from torch.utils._sympy.functions import FloorDiv as FloorDiv
from torch.utils._sympy.functions import Identity as Identity
from torch.utils._sympy.functions import IntTrueDiv as IntTrueDiv
from torch.utils._sympy.functions import Max as Max
from torch.utils._sympy.functions import Min as Min
from torch.utils._sympy.functions import Mod as Mod
from torch.utils._sympy.functions import ModularIndexing as ModularIndexing
from torch.utils._sympy.functions import PowByNatural as PowByNatural
from torch.utils._sympy.functions import PythonMod as PythonMod
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo as int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges
from torch.utils._sympy.value_ranges import bound_sympy as bound_sympy

# torch's functions of symbols by their names
FUNCTIONS: Mapping[str, type[sympy.Basic]] = {
    name: value
    for name, value in vars(functions).items()
    if isinstance(value, type) and issubclass(value, sympy.Basic) and inspect.getmodule(value) is functions
}


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What torch knows of a symbol beside its name."""

    hint: int | None  # the example's size
    bounds: ValueRanges[sympy.Expr] | None
    size_like: bool  # not of an input, and taken to be a size


def known_facts(environment: Any, symbol: sympy.Symbol) -> SymbolFacts:
    """Return what the environment of a symbolic value (`value.node.shape_env`) knows of a symbol."""
    hint = environment.backed_var_to_val.get(symbol)
    bounds = environment.var_to_range.get(symbol)
    return SymbolFacts(None if hint is None else int(hint), bounds, symbol in environment.size_like)


def environment_of(symbols: Iterable[tuple[sympy.Symbol, SymbolFacts]]) -> Any:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment: Any = ShapeEnv()
    for symbol, facts in symbols:
        if facts.hint is not None:
            environment.backed_var_to_val[symbol] = sympy.Integer(facts.hint)
        if facts.bounds is not None:
            environment.var_to_range[symbol] = facts.bounds
        if facts.size_like:
            environment.size_like.add(symbol)
    return environment


def symbolic(expression: sympy.Basic, environment: Any, kind: type, hint: Any) -> Any:
    from torch.fx.experimental.sym_node import SymNode

    classes: Mapping[type, Any] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
    return classes[kind](SymNode(expression, environment, kind, hint))


def compute(expression: sympy.Expr, values: Mapping[sympy.Expr, object]) -> object:
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
