"""Calls with factors, limits and other options that an engine reads otherwise than eager, in every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.export import Dim
from torch.nn import Parameter

from hatch_lower.backends.testing.bench import Bench, Exports, KitBackend
from hatch_lower.backends.testing.case import Case, KitModule, module
from hatch_lower.backends.testing.comparison import run_case

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "onnxruntime": ("onnxruntime", {}),
    "openvino": ("openvino", {}),
    "executorch": ("executorch", {}),
    "portable operators": ("executorch", {"portable-operators": True}),
}
NAN, INF = math.nan, math.inf


def unwritten_terms(self: KitModule, x: Tensor, z: Tensor) -> object:
    # memory that nothing was written to, which may hold NaN, in a sum that leaves it out
    matrices = torch.addmm(z, x, x, beta=0), torch.addmm(z, z, x, alpha=0, beta=0), torch.addmm(x, x, z, alpha=0)
    stacked = torch.baddbmm(z[None], x[None], x[None], beta=0), torch.addbmm(z, x[None], x[None], beta=0, alpha=2)
    rows = torch.addmv(z[0], x, x[0], beta=0), torch.addmv(x[0], z, x[0], alpha=0), torch.addr(z, x[0], x[1], beta=0)
    return *matrices, *stacked, *rows, x * 2


def joined_limits(self: KitModule, x: Tensor) -> object:
    # several limits of one value: a rule that joins two of them must not lose others
    upper = x.clamp_max(2).clamp_max(1.5), x.clamp_max(1).clamp_max(-0.5), x.clamp(0, 0), x.clamp(2, -1)
    lower = x.clamp_min(-1).clamp_max(2), x.clamp_min(0).clamp_max(1), x.clamp(-2, 3).clamp(-1, 5), x.relu().clamp(1, 4)
    return *upper, *lower, x.clamp_min(2).clamp_min(1), F.relu6(x.relu()), F.hardtanh(x, -2, 1)


def no_dimensions(self: KitModule, x: Tensor) -> object:
    # an empty list means none to conditions, and all to sums
    return torch.any(x > 0, ()), torch.all(x > 0, (), keepdim=True), x.sum(()), x.mean((), keepdim=True), x * 2


def copied_inputs(self: KitModule, x: Tensor) -> object:
    # what changes nothing is left out by an engine, and a result is then but an input
    return x.clone(), F.dropout(x, 0.5, False), x.detach(), x[:, 0:5], x.unsqueeze(0), x.reshape(-1), x.exp()


def rows_in_groups(self: KitModule, x: Tensor) -> object:
    return F.group_norm(x, 2), F.group_norm(x[:, None] * 2, 1), x.exp()


def values_left_over(self: KitModule, x: Tensor) -> object:
    # fewer places than values: those beyond are not scattered
    places = torch.tensor([[0, 2], [1, 0]])
    table = torch.zeros(3, 5)
    return torch.scatter_add(table, 0, places, x), torch.scatter(table, 1, places[:1], x), x * 2


def computed_parameters(self: KitModule, x: Tensor) -> object:
    # what parameters are computed to would take a gradient; running values of a norm must not
    return F.instance_norm(x, self.spread, self.spread, use_input_stats=False), x * 2


def padded_results(self: KitModule, x: Tensor) -> object:
    # a transposed convolution adds less than its stride, or than its dilation
    wide = F.conv_transpose1d(x, self.weight, stride=2, dilation=3, output_padding=2)
    return wide, F.conv_transpose1d(x, self.weight, stride=2, output_padding=1)


DYNAMIC = ("copied inputs", "rows in groups")
PROGRAMS: dict[str, tuple[Callable[..., object], tuple[tuple[Tensor, ...], ...]]] = {
    "terms that are left out": (
        unwritten_terms,
        tuple((torch.arange(9.0).reshape(3, 3) + 1, torch.full((3, 3), value)) for value in (1.0, NAN, INF)),
    ),
    "no dimensions": (no_dimensions, ((torch.arange(-3.0, 3.0).reshape(2, 3),),)),
    "copied inputs": (copied_inputs, tuple((torch.rand(rows, 5),) for rows in (4, 2, 0, 1, 40, 3))),
    "rows in groups": (rows_in_groups, tuple((torch.rand(rows, 4),) for rows in (4, 2, 9))),
    "computed parameters": (computed_parameters, ((torch.rand(2, 4, 5),),)),
    "padded results": (padded_results, ((torch.rand(2, 4, 5),),)),
    "values left over": (values_left_over, ((torch.rand(4, 5),),)),
    "joined limits": (joined_limits, ((torch.linspace(-6, 6, 24),), (torch.linspace(-1, 2, 24),))),
    "joined limits of integers": (joined_limits, ((torch.arange(-8, 8, dtype=torch.int32),),)),
    "joined limits of float64": (joined_limits, ((torch.linspace(-6, 6, 24, dtype=torch.float64),),)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_options_of_calls_are_eagers(engine: str, program: str, tmp_path: Path) -> None:
    name, options = ENGINES[engine]
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    forward, calls = PROGRAMS[program]
    dynamic = {"x": {0: Dim("rows", max=40)}} if program in DYNAMIC else None
    case = Case(
        program,
        lambda data: module(
            forward, spread=Parameter(torch.arange(1.0, 5)), weight=Parameter(torch.arange(24.0).reshape(4, 2, 3))
        ),
        lambda data: calls,
        dynamic,
    )
    bench = Bench(KitBackend(name, options), tmp_path, Exports())
    if bench.lowered(case).partitions:
        run_case(bench, case)
