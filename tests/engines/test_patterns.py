"""Patterns of models that transformers' exporters patch before an engine gets them: right here without a patch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.older import EXECUTORCH
from torch import Tensor, nn
from torch.export import Dim

import hatch_lower
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ENGINES = [
    *(
        pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
        for name in ("onnxruntime", "openvino")
    ),
    EXECUTORCH,
]
PLACES = torch.tensor([0, 2, 2])
ROWS = torch.tensor([[0, 1, 1, 0, 2, 1, 0, 0]])


def written_columns(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., PLACES] = torch.finfo(x.dtype).min
    return y


def rolled_and_written(x: Tensor) -> Tensor:
    y = torch.roll(x, 1, -1)
    y[..., 0] = 5
    return torch.roll(y, (1, -2), (1, 2))


def rotated_pairs(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    angles = torch.arange(4.0)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(3)


# of a tensor of shape (batch, 4, rows, 8), and a mask of shape (batch, 1, rows, rows)
PATTERNS: Mapping[str, Callable[[Tensor, Tensor], Any]] = {
    "attention to nothing": lambda x, mask: F.scaled_dot_product_attention(x, x, x, mask),
    "attention to infinite scores": lambda x, mask: F.scaled_dot_product_attention(
        x, x, x, torch.where(mask, 0.0, -math.inf)
    ),
    "grouped heads, and a scale": lambda x, _: F.scaled_dot_product_attention(
        x, x[:, :2], x[:, :2], scale=1.0, enable_gqa=True
    ),
    "written columns": lambda x, _: written_columns(x),
    "written rows": lambda x, mask: x.masked_fill(mask[..., :1], 1.5),
    "a rolled tensor": lambda x, _: rolled_and_written(x),
    "an index shorter than the tensor": lambda x, _: x.gather(1, torch.tensor([[[[3, 1]], [[0, 2]]]])),
    "counted Booleans": lambda _, mask: mask.cumsum(-1),
    "a smaller image": lambda x, _: F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
    "the largest by place": lambda x, _: x[0, 0].scatter_reduce(0, ROWS, x[1, 0], "amax", include_self=False),
    "a spectrum": lambda x, _: torch.fft.irfft(torch.fft.rfft(x) * 2),
    "complex numbers": lambda x, _: rotated_pairs(x),
    "the largest so far": lambda x, _: torch.cummax(x, 2),
    "the average in a window beyond the tensor": lambda x, _: F.avg_pool2d(x, 20, ceil_mode=True),
    "the largest in a window beyond the tensor": lambda x, _: F.max_pool2d(x, 20, ceil_mode=True),
    "padding to a multiple": lambda x, _: F.pad(x, (0, 0, 0, -x.shape[2] % 4)).sum(2),
    "nothing in front": lambda x, _: torch.cat([torch.zeros(1, 4, 0, 8).expand(x.shape[0], -1, -1, -1), x], 2) * 2,
    "infinite limits": lambda x, _: x.clamp(-math.inf, 0.5),
    "fractions of whole numbers": lambda _, mask: (1.0 - mask.long(), mask.long() * 2.0),
}


class Patterns(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        return {name: pattern(x, mask) for name, pattern in PATTERNS.items()}


def call_of(batch: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return arguments with rows that see nothing."""
    x = torch.randn(batch, 4, rows, 8, generator=torch.Generator().manual_seed(rows))
    mask = torch.ones(batch, 1, rows, rows, dtype=torch.bool).tril()
    mask[-1, :, :2] = False
    return x, mask


def after(place: str) -> Callable[[str], str]:
    return lambda text: f"{place}: {text}"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pattern_that_exporters_patch_is_right_at_other_sizes(engine: str, tmp_path: Path) -> None:
    module, options = Patterns(), {"portable-operators": True} if engine == "executorch" else {}
    batch, rows = Dim("batch", min=2, max=8), Dim("rows", min=3, max=19)
    shapes = ({0: batch, 2: rows}, {0: batch, 2: rows, 3: rows})
    program = torch.export.export(module, call_of(3, 6), dynamic_shapes=shapes)
    lowered = to_edge_transform_and_lower(
        program,
        partitioner=[find_backend(engine).partitioner(options)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),  # as in a build
    ).to_executorch()
    assert get_lowered_backend_modules(lowered.exported_program().graph_module)
    model = hatch_lower.load(save_program(lowered, tmp_path / "program"))
    for sizes in ((3, 6), (2, 9), (4, 19)):
        found, expected = model(*call_of(*sizes)), module(*call_of(*sizes))
        for name, each in expected.items():
            torch.testing.assert_close(
                found[name], each, rtol=1e-4, atol=1e-5, equal_nan=True, msg=after(f"{name}, {sizes}")
            )
