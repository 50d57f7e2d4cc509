"""Symbolic sizes of a partition, each of which native code must read off a tensor, and calls for which inductor
differs from eager for some sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sympy
import torch
from torch.fx import Graph, Node, Proxy

from hatch_lower.exir.graph.nodes import result_tensors
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.lowering.unlike_eager import UNLIKE_EAGER, is_between_other_places, is_of_doubles
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name
from hatch_lower.runtime.torch_private.recurrent import RECURRENT
from hatch_lower.runtime.torch_private.symbols import compute, is_computable

aten = torch.ops.aten

NEAREST = 1  # of the modes of `grid_sampler_2d`
# core operators, which no program takes apart, and inductor does
APART = {aten.upsample_nearest2d.vec: is_of_doubles, aten.upsample_bilinear2d.vec: is_between_other_places}


def why_not_sizes(node: Node) -> str:
    op = torch_operator(node.target)
    if op in RECURRENT and UNLIKE_EAGER[op](node):
        return f"inductor takes `{op}` apart into operations of each step, and the number of steps is dynamic"
    unlike = {**UNLIKE_EAGER, **APART}.get(op)
    if unlike is not None and unlike(node):
        return f"inductor decomposes `{op}` into operations whose result differs from eager's"
    if op is aten.grid_sampler_2d.default and named_arguments(node)["interpolation_mode"] == NEAREST:
        return f"inductor's `{op}` rounds places between two elements differently from eager"
    if isinstance(op, OpOverload) and "_adaptive_" in f"_{base_name(op)}" and has_symbolic_windows(node):
        return f"inductor needs the window sizes of `{op}`, and so compiles fixed sizes only"
    return ""


def has_symbolic_windows(node: Node) -> bool:
    # of an input of a dynamic size, inductor would read as much as its example has, whatever the call gives
    shapes = [tensor.shape for each in (node, *node.all_input_nodes) for tensor in result_tensors(each)]
    return any(isinstance(size, torch.SymInt) for shape in shapes for size in shape[1:])


class SizeSource(NamedTuple):
    """Where a symbol is found, or an expression that is taken as a whole: a size of a tensor, divided."""

    tensor: int  # its position
    dim: int
    divisor: int = 1


def find_size_sources(shapes: Sequence[Sequence[int | torch.SymInt]]) -> dict[sympy.Expr, SizeSource]:
    """Return where each symbol can be read: plain sizes first, then multiples, then expressions as a whole."""
    sizes = [
        (size.node.expr, tensor, dim)
        for tensor, shape in enumerate(shapes)
        for dim, size in enumerate(shape)
        if isinstance(size, torch.SymInt) and size.node.expr.free_symbols
    ]
    sources: dict[sympy.Expr, SizeSource] = {}
    for expression, tensor, dim in sizes:
        if isinstance(expression, sympy.Symbol) and expression not in sources:
            sources[expression] = SizeSource(tensor, dim)
    for expression, tensor, dim in sizes:
        unknown = [symbol for symbol in expression.free_symbols if symbol not in sources]
        factor = expression / unknown[0] if len(unknown) == 1 else sympy.S.Zero
        if factor.is_Integer and factor > 0:
            sources[unknown[0]] = SizeSource(tensor, dim, int(factor))
    # the remaining expressions cannot be solved for single symbols
    for expression, tensor, dim in sizes:
        if expression not in sources and any(symbol not in sources for symbol in expression.free_symbols):
            sources[expression] = SizeSource(tensor, dim)
    return sources


def is_resolvable(expression: sympy.Expr, sources: Mapping[sympy.Expr, SizeSource]) -> bool:
    if expression in sources:
        return True
    return all(symbol in sources for symbol in expression.free_symbols) and is_computable(expression)


def rebuild_expression(
    expression: sympy.Expr, sources: Mapping[sympy.Expr, SizeSource], tensors: Sequence[Node], graph: Graph
) -> object:
    """Write nodes that compute an expression from the sizes of tensors; `KeyError` if a symbol has no source."""
    whole = sources.get(expression)
    if whole is not None:
        return read_source(whole, tensors, graph)
    values = {
        symbol: Proxy(read_source(sources[symbol], tensors, graph))
        for symbol in sorted(expression.free_symbols, key=str)
    }
    result = compute(expression, values)
    return result.node if isinstance(result, Proxy) else result


def read_source(source: SizeSource, tensors: Sequence[Node], graph: Graph) -> Node:
    size = graph.call_function(torch.ops.aten.sym_size.int, (tensors[source.tensor], source.dim))
    return size if source.divisor == 1 else graph.call_function(operator.floordiv, (size, source.divisor))
