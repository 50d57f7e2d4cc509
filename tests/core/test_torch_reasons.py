"""What of a plan needs torch, and what a program requires in consequence: on plans written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.plans import (
    c,
    call,
    constant,
    delegate_entry,
    graph,
    method,
    op,
    parameter,
    plan_of,
    plan_value,
    python,
    tensor_input,
    v,
)

from hatch_lower.runtime.torch_reasons import TorchReason, array_requirements, torch_reasons

NUMPY = frozenset({"numbers"})
TABLE = tensor_input(2, 3)


def reasons(forward: Any, **fields: Any) -> list[tuple[str, str]]:
    plan = plan_of(plan_value(forward=forward, **fields))
    return [(reason.path, reason.what) for reason in torch_reasons(plan, NUMPY)]


def through(backend: str, entry: Any = TABLE) -> Any:
    calls = [call(0, [v(0)], [entry], 1), python("getitem", v(1), 0, out=2)]
    return {"forward": method([entry], calls, v(2)), "delegates": [delegate_entry(backend)]}


def test_a_delegate_that_takes_numpys_arrays_needs_no_torch() -> None:
    assert reasons(**through("numbers")) == []
    assert reasons(**through("tensors")) == [("0", "the delegate `tensors`")]


def test_views_and_arithmetic_on_sizes_need_no_torch() -> None:
    steps = [
        op("aten.sym_size.int", v(0), 1, out=1),
        python("mul", v(1), 2, out=2),
        op("aten.view.default", v(0), [v(2)], out=3),
        op("aten.clone.default", v(3), memory_format={"memory_format": "contiguous_format"}, out=4),
    ]
    assert reasons(method([TABLE], steps, v(4))) == []


def test_conversions_need_no_torch_except_of_dtypes_that_numpy_lacks() -> None:
    def converted(given: str, dtype: str) -> list[tuple[str, str]]:
        steps = [op("aten._to_copy.default", v(0), dtype={"dtype": dtype}, out=1)]
        return reasons(method([tensor_input(2, dtype=given)], steps, v(1)))

    assert converted("int64", "float32") == converted("int64", "bool") == []
    needs_torch = [("0", "`aten._to_copy.default`")]
    assert converted("int64", "float16") == converted("float32", "int64") == needs_torch
    assert converted("bfloat16", "float32") == converted("float8_e4m3fn", "float32") == needs_torch


def test_an_operator_that_computes_needs_torch_at_any_depth() -> None:
    inner = graph(1, [op("aten.neg.default", v(0), out=1)], v(1))
    same = graph(1, [], v(0))
    choice = {"kind": "cond", "predicate": v(1), "true": same, "false": inner, "args": [v(0)], "out": 2}
    loop = {"kind": "while", "condition": same, "body": inner, "args": [v(0)], "extra": [], "out": 3}
    found = reasons(method([TABLE, tensor_input(dtype="bool")], [choice, loop], v(0)))
    assert found == [("0.false.0", "`aten.neg.default`"), ("1.body.0", "`aten.neg.default`")]


def test_a_loop_over_rows_needs_torch_where_its_body_does() -> None:
    rows = {"kind": "map", "body": graph(1, [], v(0)), "args": [v(0)], "extra": [], "out": 1}
    assert reasons(method([TABLE], [rows], v(0))) == []
    rows["body"] = graph(1, [op("aten.sin.default", v(0), out=1)], v(1))
    assert reasons(method([TABLE], [rows], v(0))) == [("0.body.0", "`aten.sin.default`")]


def test_an_input_that_only_torch_has_needs_torch() -> None:
    literal = {"kind": "literal", "value": {"dtype": "float16"}}
    found = reasons(
        method([literal, tensor_input(2, dtype="complex32")], [], v(1), parameters=[parameter("kind"), parameter("x")])
    )
    assert found == [
        ("", "the input `kind`, which is torch.float16"),
        ("", "the input `x` of dtype complex32"),
    ]


def test_an_output_that_only_torch_has_needs_torch() -> None:
    value = plan_value(
        forward=method([TABLE], [], c("w")),
        storages=[("w", "float32", 2)],
        constants={"w": constant(0, 2, dtype="complex32")},
    )
    assert torch_reasons(plan_of(value), NUMPY) == (TorchReason("forward", "", "an output of dtype complex32"),)


def test_a_module_that_the_recipe_imports_needs_torch() -> None:
    plan = plan_of(plan_value(**through("numbers")))
    (reason,) = torch_reasons(plan, NUMPY, ("sounds.ops",))
    assert reason == TorchReason("", "", "the module `sounds.ops`, which registers torch operators")


@pytest.mark.parametrize(
    ("dtype", "needs_torch", "required"),
    [
        ("float32", False, ["numpy>=1.26"]),
        ("float32", True, ["torch>=2.11"]),
        ("bfloat16", False, ["ml_dtypes>=0.5", "numpy>=1.26"]),
        ("float8_e4m3fn", False, ["ml_dtypes>=0.5", "numpy>=1.26"]),
        ("bfloat16", True, ["torch>=2.11"]),
    ],
)
def test_arrays_are_torchs_or_numpys_with_the_dtypes_that_it_lacks(
    dtype: str, needs_torch: bool, required: list[str]
) -> None:
    plan = plan_of(plan_value(**through("numbers", tensor_input(2, dtype=dtype))))
    assert list(array_requirements(plan, needs_torch=needs_torch)) == required


def test_dtypes_that_numpy_lacks_matter_only_where_arrays_hold_them() -> None:
    storages = [("bfloat16:" + "0" * 64, "bfloat16", 2)]
    weight = {"storages": storages, "constants": {"w": constant(0, 2, dtype="bfloat16")}}
    bound = plan_of(plan_value(**(through("numbers") | {"delegates": [delegate_entry("numbers", "w")]}), **weight))
    assert array_requirements(bound, needs_torch=False) == ("numpy>=1.26",)
    returned = plan_of(plan_value(forward=method([], [op("aten.clone.default", c("w"), out=0)], v(0)), **weight))
    assert array_requirements(returned, needs_torch=False) == ("ml_dtypes>=0.5", "numpy>=1.26")
