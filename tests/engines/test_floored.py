"""Quotients that are rounded down, and remainders: every engine gives the whole number that eager gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.older import EXECUTORCH
from torch import Tensor, nn
from torch.export import Dim

import hatch_lower
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]


class Multiples(nn.Module):
    """Of multiples of a divisor, rounding decides which whole number the quotient is next to."""

    def forward(self, x: Tensor, divisor: Tensor, counts: Tensor) -> Any:
        return (
            x // 3.7,
            torch.floor_divide(x, divisor),
            torch.div(x, -divisor, rounding_mode="floor"),
            torch.div(x, divisor, rounding_mode="trunc"),
            x % 3.7,
            x % -divisor,
            x.half() // 3.5,
            counts // 0.7,
            x.double() // divisor.double(),
            x // x.shape[0],
            x % x.shape[0],
        )


@pytest.mark.parametrize("engine", ["aoti", "onnxruntime", EXECUTORCH])
def test_a_multiple_of_a_divisor_is_divided_as_eager_does(engine: str, tmp_path: Path) -> None:
    module = Multiples()
    args = torch.arange(-300, 300) * 3.7, torch.tensor([3.7]), torch.arange(100)
    options = {"portable-operators": True} if engine == "executorch" else {}
    program = torch.export.export(module, args, dynamic_shapes=({0: Dim("length", min=1, max=999)}, None, None))
    lowered = to_edge_transform_and_lower(
        program, partitioner=[find_backend(engine).partitioner(options)]
    ).to_executorch()
    assert get_lowered_backend_modules(lowered.exported_program().graph_module)
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(*args)
    for number, (given, expected) in enumerate(zip(results, module(*args), strict=True)):
        assert torch.equal(given, expected), f"result {number}"
    left = {reason for name, reason in lowered.reasons["forward"].items() if "div_tensor_mode" in name}
    assert not left or engine == "executorch"
    assert all("next whole number" in reason or "float64" in reason or "float16" in reason for reason in left)
