"""Sizes that depend on inputs: torch's expressions as the plan's, and the ranges of symbols."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    CeilToInt,
    CleanDiv,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    Identity,
    IntTrueDiv,
    LShift,
    Max,
    Min,
    Mod,
    ModularIndexing,
    OpaqueUnaryFn_sqrt,
    PowByNatural,
    PythonMod,
    RoundDecimal,
    RoundToInt,
    RShift,
    ToFloat,
    TruncToFloat,
    TruncToInt,
    Where,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.canonical import Encoder
from hatch_lower.format.arguments import Symbol
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.expression import Compound, Expression, evaluate_size
from hatch_lower.pipeline.emit.symbols import SizeSymbols
from hatch_lower.runtime.names import CodeNames, expression_code

pytestmark = pytest.mark.torch

A = sympy.Symbol("s77", integer=True, positive=True)
B = sympy.Symbol("s3", integer=True, positive=True)


def symbols(ranges: Any = None, labels: Any = None) -> SizeSymbols:
    return SizeSymbols(ranges or {}, labels or {}, "model.forward")


@pytest.mark.parametrize(
    "expression",
    [
        A + 2 * B + 1,
        A - B,
        A**3,
        FloorDiv(A + 7, 3),
        CleanDiv(A, 2),
        Mod(A, 5),
        PythonMod(A - 9, 5),
        Max(A, B),
        Min(A, B, 3),
        PowByNatural(A, sympy.Integer(2)),
        IntTrueDiv(A * 4, sympy.Integer(2)),
        ModularIndexing(A, sympy.Integer(2), sympy.Integer(3)),
        Identity(A),
        sympy.Integer(7),
        TruncToInt(sympy.Float(2.3) * ToFloat(A)),
        TruncToInt(sympy.Float(0.1 + 0.2) * ToFloat(A) + 1),
        TruncToInt(IntTrueDiv(A, sympy.Integer(3))),
        CeilToInt(IntTrueDiv(A, B)),
        FloorToInt(FloatTrueDiv(ToFloat(A), sympy.Float(1.7))),
        RoundToInt(sympy.Float(0.5) * ToFloat(A)),
        TruncToInt(RoundDecimal(sympy.Float(0.37) * ToFloat(A), sympy.Integer(1))),
        TruncToInt(TruncToFloat(sympy.Float(0.7) * ToFloat(A)) * sympy.Float(1.5)),
        TruncToInt(OpaqueUnaryFn_sqrt(ToFloat(A * B))),
        TruncToInt(FloatPow(ToFloat(A), sympy.Float(0.5))),
        TruncToInt(ToFloat(A) ** 2 * sympy.Float(0.3)),
        TruncToInt(Max(ToFloat(A), sympy.Float(7.5))),
        PowByNatural(sympy.Integer(2), A),
        LShift(A, sympy.Integer(2)),
        RShift(A, sympy.Integer(1)),
        BitwiseFn_bitwise_and(A, B),
        Where(sympy.Gt(A, B), A, B + 1),
        sympy.Piecewise((A, sympy.Or(sympy.Ge(A, 10), sympy.Eq(B, 1))), (2 * B, True)),
        sympy.Abs(A - B),
    ],
)
def test_expressions_keep_their_value(expression: Any) -> None:
    known = symbols()
    known.expr(A)
    known.expr(B)
    converted = decode(Expression, json.loads(canonical_json(encode(known.expr(expression)))), "plan")
    names = CodeNames([])
    code = compile(expression_code(converted, {"s0": "a", "s1": "b"}, names), "code", "eval")
    for a, b in itertools.product((*range(1, 12), 33, 40), (1, 2, 8, 33)):
        expected = int(expression.xreplace({A: sympy.Integer(a), B: sympy.Integer(b)}))
        assert evaluate_size(converted, {"s0": a, "s1": b}) == expected
        assert eval(code, {**names.objects, "a": a, "b": b}) == expected


@pytest.mark.parametrize(
    "expression",
    [
        IntTrueDiv(A, sympy.Integer(3)),
        sympy.sqrt(A),
        A ** (-1),
        A * sympy.Rational(1, 2),
        sympy.Float(0.5) * ToFloat(A),
        sympy.Piecewise((A, sympy.Gt(A, B))),
    ],
)
def test_other_expressions_are_refused(expression: Any) -> None:
    with pytest.raises(EdgeError, match="a size depends on the inputs in a way that a plan cannot express") as caught:
        symbols().expr(expression)
    assert caught.value.where == "model.forward"
    assert caught.value.hint == (
        "compute the size from sizes with Python's arithmetic, `min`, `max`, `round`, and functions of `math`"
    )


def test_factors_that_agree_in_fifteen_digits_are_told_apart() -> None:
    near = [TruncToInt(sympy.Float(factor) * ToFloat(A)) for factor in (0.3, 0.1 + 0.2)]
    texts = [Encoder().text(expression) for expression in near]
    assert texts[0] != texts[1]
    assert symbols().expr(near[0]) != symbols().expr(near[1])


def test_the_error_names_the_expression() -> None:
    with pytest.raises(EdgeError) as caught:
        symbols().expr(sympy.sqrt(A))
    assert caught.value.found == "`sqrt(s77)`"


def test_names_follow_the_order_of_appearance() -> None:
    known = symbols(labels={"s3": "batch"})
    assert known.expr(B) == "s0"
    assert known.expr(A * 2) == Compound("mul", (2, "s1"))
    assert [each.name for each in known.ranges().values()] == ["batch", "s1"]
    assert known.rename("u0 <= s77 and s3 != s4") == "u0 <= s1 and s0 != s4"


def test_the_form_does_not_depend_on_torchs_names() -> None:
    def form(first: str, second: str) -> Any:
        one, other = (sympy.Symbol(name, integer=True, positive=True) for name in (first, second))
        known = symbols()
        known.expr(one)
        known.expr(other)
        return known.expr(other * 3 + one * other + 5), known.expr(Max(one, other, one * other))

    assert form("s77", "s3") == form("s3", "s77") == form("a1", "b2")


def test_ranges() -> None:
    ranges = {A: ValueRanges(2, 1024), B: ValueRanges(sympy.Integer(0), int_oo)}
    known = symbols(ranges)
    known.expr(A + B)
    found = {(each.min, each.max) for each in known.ranges().values()}
    assert found == {(2, 1024), (0, None)}


def test_a_symbol_without_a_range() -> None:
    known = symbols()
    known.expr(A)
    assert known.ranges() == {"s0": Symbol(0, None, "s0")}


def test_a_multiple_says_how_small_a_symbol_may_be() -> None:
    known = symbols({2 * A: ValueRanges(0, 32), A: ValueRanges(2, 16)})
    known.expr(2 * A)
    assert known.ranges() == {"s0": Symbol(0, 16, "s0")}
    stated = symbols({A: ValueRanges(2, 16)})
    stated.expr(A)
    assert stated.ranges() == {"s0": Symbol(2, 16, "s0")}


def test_integers_stay() -> None:
    assert symbols().expr(5) == 5


def test_only_conditions_over_inputs_in_range_are_proved() -> None:
    made = torch.nn.Linear(2, 2)
    program = torch.export.export(
        made, (torch.ones(3, 2),), dynamic_shapes={"input": {0: torch.export.Dim("batch", min=2, max=9)}}, strict=False
    )
    size = next(node.meta["val"].shape[0] for node in program.graph.nodes if node.name == "input")
    known = symbols(program.range_constraints)
    assert not known.proves(torch.SymBool(size.node.le(size.node.wrap_int(9))))
    known.expr(size)
    known.close_inputs()
    assert known.proves(torch.SymBool(size.node.le(size.node.wrap_int(9))))
    assert known.proves(torch.SymBool(size.node.ge(size.node.wrap_int(2))))
    assert not known.proves(torch.SymBool(size.node.le(size.node.wrap_int(8))))
    assert known.proves(True)
    assert not known.proves(False)
    assert not known.proves(None)
