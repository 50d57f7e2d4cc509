"""Softmax of masked rows in the executorch backend, which XNNPACK computes of other operations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

import hatch_lower
from hatch_lower.backends.executorch.compile import ExecutorchBackend
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.program._program import LoweredProgram, to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytest.importorskip("executorch")

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

LOWEST = torch.finfo(torch.float32).min
BATCH, ROWS = Dim("batch", min=1, max=4), Dim("rows", min=2, max=16)


class Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Softmax(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._safe_softmax(x, self.dim)


def lower(module: nn.Module, inputs: tuple[Tensor, ...], sizes: Any = None, **options: object) -> LoweredProgram:
    program = torch.export.export(module, inputs, dynamic_shapes=sizes)
    return to_edge_transform_and_lower(program, partitioner=[ExecutorchBackend.partitioner(options)]).to_executorch()


def tensors(batch: int, rows: int) -> tuple[Tensor, ...]:
    """Return query, key, value and a mask, of which the first two rows hide all and others some columns."""
    mask = torch.where(torch.rand(batch, 1, rows, rows) > 0.5, 0.0, -math.inf)
    mask[..., 0] = 0
    mask[:, :, :2] = -math.inf
    return (*torch.randn(3, batch, 3, rows, 8), mask)


@pytest.mark.parametrize("portable", [False, True])
def test_attention_to_nothing_is_zero_in_one_partition_of_any_size(portable: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = [{0: BATCH, 2: ROWS}] * 3 + [{0: BATCH, 2: ROWS, 3: ROWS}]
    lowered = lower(Attention(), tensors(2, 9), tuple(sizes), **{"portable-operators": portable})
    assert len(get_lowered_backend_modules(lowered.exported_program().graph_module)) == 1
    assert not lowered.reasons["forward"]
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for inputs in (tensors(2, 9), tensors(4, 16)):
        result = loaded(*inputs)
        assert not result[:, :, :2].any()
        torch.testing.assert_close(result, Attention()(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "row",
    [
        [LOWEST] * 4,
        [LOWEST, -math.inf, -math.inf, LOWEST],
        [LOWEST, -math.inf, 1.0, 0.0],
        [LOWEST / 2, LOWEST, -math.inf, LOWEST / 2],
        [3e38, 3e38, -3e38, -math.inf],
        [-math.inf] * 4,
        [-1e30, 1e30, 0.0, -math.inf],
    ],
)
def test_the_lowest_number_is_not_taken_for_minus_infinity(row: list[float], tmp_path: Path) -> None:
    lowered = lower(Softmax(-1), (torch.zeros(2, 4),))
    assert not lowered.reasons["forward"]
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    x = torch.tensor([row, [0.0, 1.0, 2.0, 3.0]])
    torch.testing.assert_close(loaded(x), torch.ops.aten._safe_softmax(x, -1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("dim", "options"), [(0, {}), (-1, {"finite-only": False}), (-1, {"exclude": ["aten._safe_softmax.default"]})]
)
def test_a_softmax_of_masked_rows_that_xnnpack_cannot_compute_is_decomposed(
    dim: int, options: dict[str, object]
) -> None:
    lowered = lower(Softmax(dim), (torch.randn(2, 4),), **options)
    reasons = lowered.reasons["forward"].values()
    assert "XNNPACK has no kernel for `aten.where.self`" in reasons
    assert not any("_safe_softmax" in reason for reason in reasons)
