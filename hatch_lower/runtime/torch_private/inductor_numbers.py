"""Correct widths of integers in inductor's code, where inductor treats integers as memory indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import sympy
import torch

from hatch_lower.runtime.torch_private.symbols import ValueRanges, bound_sympy

Ranges: TypeAlias = "Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]"

# Dtypes whose vectors fill a register only in part: inductor's vectors have as many elements as floats in a register
NARROW = frozenset({torch.int8, torch.uint8, torch.int16})
WHOLE = NARROW | {torch.int32, torch.int64}
LONGEST = 2**47  # bytes in the address space of a process, a limit for sizes without an upper bound


@contextmanager
def exact_numbers() -> Iterator[None]:
    """Patch inductor so that numbers computed from indices wrap around and convert by the rules of their dtypes."""
    from torch._inductor.codegen.common import CSEProxy
    from torch._inductor.codegen.cpp import CppVecKernel
    from torch._inductor.index_propagation import IndexPropagation
    from torch._inductor.ir import Reduction

    propagation: Any = IndexPropagation
    kernel: Any = CppVecKernel
    reduction: Any = Reduction
    proxy: Any = CSEProxy
    propagate, arange = propagation.propagate_sympy, kernel.arange
    bound, reduce = proxy._bound_variable, reduction.__dict__["create"]

    def propagate_exactly(self: Any, name: str, args: Any, kwargs: Any) -> Any:
        # Inductor combines arithmetic on indices into a single formula and loses the dtypes between.
        result = propagate(self, name, args, kwargs)
        given = [value for value in (*args, *kwargs.values()) if getattr(value, "is_symbolic", False)]
        if not given or not result.is_symbolic:
            return result
        sizes = {symbol: places_below(size) for symbol, size in self.indirect_var_ranges.items()}
        ranges = {**dict(self.var_to_range), **sizes}
        if all(is_exact(each.value.expr, each.value.dtype, ranges) for each in (*given, result)):
            return result
        return self.fallback(name, args, kwargs)

    def arange_widely(self: Any, index: Any, stride: Any) -> Any:
        # Inductor writes the step as a C++ literal, which has 32 bits, and multiplies in C++.
        return arange(self, index, WideStep(stride))

    propagation.propagate_sympy, kernel.arange = propagate_exactly, arange_widely
    proxy._bound_variable, reduction.create = bounding_by_dtypes(bound), classmethod(reducing_widely(reduce))
    try:
        yield
    finally:
        propagation.propagate_sympy, kernel.arange = propagate, arange
        proxy._bound_variable, reduction.create = bound, reduce


def bounding_by_dtypes(bound: Any) -> Callable[..., ValueRanges[sympy.Expr]]:
    """Return inductor's function for the bounds of a number, changed to consider wrap-around.

    Inductor checks an index, and wraps a negative index, only if the bounds allow a bad or a negative index.
    """

    def bound_exactly(self: Any, name: str, *args: Any, **named: Any) -> ValueRanges[sympy.Expr]:
        from torch._inductor.codegen.common import CSEVariable
        from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

        given = [value for value in args if isinstance(value, CSEVariable)]
        if not given:
            bounds: ValueRanges[sympy.Expr] = bound(self, name, *args, **named)
        elif named or name == "masked" or not hasattr(self.vr_analysis, name):
            return ValueRanges.unknown()
        else:
            known = [value.bounds if isinstance(value, CSEVariable) else value for value in args]
            bounds = getattr(self.vr_analysis, name)(*known)
        dtype = getattr(DtypePropagationOpsHandler(), name)(*args, **named)
        if (
            dtype is torch.bool and not bounds.is_bool
        ):  # bounds of integers, which the condition of `where` must not have
            return ValueRanges.unknown()
        if not isinstance(dtype, torch.dtype) or dtype not in WHOLE:
            return bounds
        rounded = any(value.dtype is not None and value.dtype.is_floating_point for value in given)
        return limit_to_dtype(bounds, dtype, rounded=rounded)

    return bound_exactly


def limit_to_dtype(bounds: ValueRanges[sympy.Expr], dtype: torch.dtype, *, rounded: bool) -> ValueRanges[sympy.Expr]:
    """Return bounds for integers of a dtype, from bounds computed as if integers were unlimited."""
    least, greatest = whole_numbers(dtype)
    if not (least <= bounds.lower and bounds.upper <= greatest):
        return ValueRanges(least, greatest)
    # The computed bounds of floating-point numbers ignore rounding.
    return ValueRanges(0 if bounds.lower >= 0 else least, greatest) if rounded else bounds


def reducing_widely(create: Any) -> Callable[..., Any]:
    """Return inductor's function for a reduction, changed to reduce narrow integers as int32.

    Inductor reduces a whole register, and torch fills the part of a register after the elements with ones. Without the
    change, sums are too large, and the maximum of negative numbers is 1. int32 wraps around to the same narrow integer.
    """

    def reduce(
        cls: Any,
        device: object,
        dst_dtype: torch.dtype,
        src_dtype: torch.dtype,
        inner_fn: Any,
        *args: Any,
        **named: Any,
    ) -> Any:
        from torch._inductor.ir import Reduction
        from torch._inductor.lowering import to_dtype
        from torch._inductor.virtualized import ops

        def inner_widely(*places: Any) -> Any:
            given = inner_fn(*places)
            if isinstance(given, tuple):  # number and index
                return ops.to_dtype(given[0], torch.int32), *given[1:]
            return ops.to_dtype(given, torch.int32)

        if src_dtype not in NARROW:
            return create.__func__(cls, device, dst_dtype, src_dtype, inner_fn, *args, **named)
        widened = torch.int32 if dst_dtype in NARROW else dst_dtype
        result = create.__func__(cls, device, widened, torch.int32, inner_widely, *args, **named)
        if widened is dst_dtype:
            return result
        if isinstance(result.data.data, Reduction):
            result.realize()
        return to_dtype(result, dst_dtype)

    return reduce


class WideStep:
    def __init__(self, step: object) -> None:
        self._step = step

    def __str__(self) -> str:
        return f"static_cast<int64_t>({self._step})"


def places_below(size: sympy.Expr | int) -> ValueRanges[sympy.Expr]:
    return ValueRanges(0, bound_sympy(sympy.Integer(size) if isinstance(size, int) else size).upper - 1)


def is_exact(expression: sympy.Expr | float, dtype: torch.dtype, ranges: Ranges) -> bool:
    """Return whether a dtype can represent every value of an expression."""
    if not isinstance(expression, sympy.Basic) or expression.is_number:
        number = float(expression) if dtype.is_floating_point else int(expression)
        least, greatest = whole_numbers(dtype)
        if not dtype.is_floating_point:
            return least <= number <= greatest
        return number != number or torch.tensor(number, dtype=dtype).item() == number
    if not expression.is_integer:
        return False
    known = {symbol: limit_to_longest(ranges[symbol]) for symbol in expression.free_symbols if symbol in ranges}
    bounds = bound_sympy(expression, known)
    least, greatest = whole_numbers(dtype)
    return bool(least <= bounds.lower and bounds.upper <= greatest)


def limit_to_longest(places: ValueRanges[sympy.Expr]) -> ValueRanges[sympy.Expr]:
    return ValueRanges(places.lower, min(places.upper, sympy.Integer(LONGEST)))


def whole_numbers(dtype: torch.dtype) -> tuple[int, int]:
    """Return the bounds between which a dtype can represent every integer."""
    if dtype is torch.bool:
        return 0, 1
    if dtype.is_floating_point:
        greatest = round(2 / torch.finfo(dtype).eps)
        return -greatest, greatest
    limits = torch.iinfo(dtype)
    return limits.min, limits.max
