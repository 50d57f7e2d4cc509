"""Norms in the executorch backend, which XNNPACK computes of other operations, as exactly as eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

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

BATCH, HEIGHT, WIDTH = Dim("batch", min=0, max=8), Dim("height", max=64), Dim("width", max=64)
NORMS: dict[str, tuple[nn.Module, tuple[int, ...], Any, tuple[int, ...]]] = {
    "a row": (nn.LayerNorm(64), (3, 64), {0: BATCH}, (8, 64)),
    "rows": (nn.LayerNorm(64), (2, 7, 64), {0: BATCH, 1: WIDTH}, (8, 64, 64)),
    "rows without bias": (nn.LayerNorm(64, bias=False), (2, 64), {0: BATCH}, (0, 64)),
    "images": (nn.LayerNorm((8, 6, 6)), (2, 8, 6, 6), {0: BATCH}, (8, 8, 6, 6)),
    "an image": (nn.LayerNorm((8, 6)), (8, 6), None, (8, 6)),
    "groups": (nn.GroupNorm(4, 16), (2, 16, 12, 20), {0: BATCH, 2: HEIGHT, 3: WIDTH}, (3, 16, 64, 33)),
    "no groups": (nn.GroupNorm(4, 16, affine=False), (2, 16, 3, 4), {0: BATCH}, (0, 16, 3, 4)),
    "groups of signals": (nn.GroupNorm(4, 16), (2, 16, 12), {0: BATCH}, (8, 16, 12)),
    "groups of volumes": (nn.GroupNorm(4, 16), (2, 16, 3, 4, 5), {0: BATCH}, (1, 16, 3, 4, 5)),
    "channels": (nn.InstanceNorm2d(6), (2, 6, 9, 11), {0: BATCH, 2: HEIGHT, 3: WIDTH}, (8, 6, 64, 33)),
    "channels of signals": (nn.InstanceNorm1d(6), (2, 6, 9), {0: BATCH}, (7, 6, 9)),
}


def lower(module: nn.Module, x: Tensor, sizes: Any = None, **options: object) -> LoweredProgram:
    program = torch.export.export(module, (x,), dynamic_shapes=None if sizes is None else (sizes,))
    return to_edge_transform_and_lower(program, partitioner=[ExecutorchBackend.partitioner(options)]).to_executorch()


def far_from_zero(*sizes: int) -> Tensor:
    """Numbers with a mean of 3000 and a deviation of 3, of whose squares no digit that matters is left."""
    return torch.randn(sizes) * 3 + 3000


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_eagers_where_the_mean_is_far_from_zero(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, sizes, dynamic, others = NORMS[name]
    module = module.eval()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    lowered = lower(module, far_from_zero(*sizes), dynamic)
    assert not lowered.reasons["forward"]
    loaded = hatch_lower.load(save_program(lowered, tmp_path / "out"))
    for x in (far_from_zero(*sizes), far_from_zero(*others)):
        torch.testing.assert_close(loaded(x), module(x).detach(), rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    ("module", "x", "sizes", "reason"),
    [
        (
            nn.GroupNorm(4, 16),
            torch.randn(2, 16, 12),
            {0: BATCH, 2: WIDTH},
            "XNNPACK can reshape the input of `aten.native_group_norm.default` for at most a single size that is known"
            " at run time only",
        ),
        (
            nn.BatchNorm2d(6, track_running_stats=False),
            torch.randn(2, 6, 4, 4),
            None,
            "XNNPACK can compute `aten._native_batch_norm_legit.no_stats` for each image by itself only",
        ),
    ],
)
def test_a_norm_that_xnnpack_cannot_compute_is_left_by_the_portable_kernels(
    module: nn.Module, x: Tensor, sizes: Any, reason: str
) -> None:
    lowered = lower(module.eval(), x, sizes, **{"portable-operators": True})
    assert reason in lowered.reasons["forward"].values()
    assert not get_lowered_backend_modules(lowered.exported_program().graph_module)


def test_a_norm_is_left_where_numbers_may_not_be_finite() -> None:
    lowered = lower(nn.LayerNorm(8), torch.randn(2, 8), **{"portable-operators": True, "finite-only": False})
    assert set(lowered.reasons["forward"].values()) == {
        "XNNPACK's `aten.native_layer_norm.default` gives other results than eager for NaN or infinity, and"
        " `finite-only` is false"
    }


def test_the_mean_and_the_deviation_of_a_norm_are_not_taken() -> None:
    class Statistics(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return torch.native_layer_norm(x, [8], None, None, 1e-5)

    lowered = lower(Statistics(), torch.randn(2, 8))
    assert set(lowered.reasons["forward"].values()) == {
        "a result of `aten.native_layer_norm.default` beside the first is used"
    }


def test_every_operation_by_which_a_norm_is_computed_leads_back_to_it() -> None:
    lowered = lower(nn.GroupNorm(4, 16).eval(), torch.randn(2, 16, 8, 8))
    (partition,) = get_lowered_backend_modules(lowered.exported_program().graph_module)
    (norm,) = (node for node in partition.original_module.graph.nodes if "group_norm" in node.name)
    handles = partition.result.debug_handle_map or {}
    assert len(handles) > 5
    assert all(norm.meta["debug_handle"] in each for each in handles.values())
