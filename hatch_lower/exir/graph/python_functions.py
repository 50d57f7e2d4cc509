"""Python's and torch's functions that graphs call on sizes, and on sequences."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import torch

# function to its name in plans and portable partitions
PYTHON_FUNCTIONS: Mapping[object, str] = {
    **{
        getattr(operator, name): name
        for name in (
            *("abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne"),
            *("neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor"),
        )
    },
    **{getattr(math, name): name for name in ("ceil", "floor", "trunc")},
    **{getattr(torch, name): name for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")},
    **{
        getattr(torch, f"_sym_{name}"): name
        for name in (
            *("acos", "asin", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
        )
        if hasattr(torch, f"_sym_{name}")
    },
    torch.sym_sum: "sym_sum",
    abs: "abs",
    bool: "sym_bool",
    float: "sym_float",
    int: "sym_int",
    max: "max",
    min: "min",
    round: "round",
}
