"""Operators that read the memory of their input, which engines leave to torch together with what lies there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hatch_lower
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.capture._config import EdgeCompileConfig
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "executorch": "executorch", "aoti": "torch"}


class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        strided = torch.as_strided
        doubled = torch.cat([x * 2, x])
        of_views = strided((x * 2)[1:], (3, 4), (4, 1), 2), strided((x + 1).t(), (4, 2), (2, 1), 1) * 2
        overlapping = (
            strided(x.exp(), (5, 4), (2, 1)).sum(1),
            strided(strided(x + 1, (2, 6), (6, 1), 1), (3, 2), (1, 3)),
        )
        of_inputs = strided(x, (3, 3), (1, 4), 1) * 2, strided(x[1:], (3, 3), (1, 4)) - 1
        of_parts = strided(doubled.split(3)[1], (2, 2), (1, 1), 3) + 1, doubled.sigmoid().sum(1)
        copies = torch.as_strided_copy((x * 2)[:, 1:], (2, 3), (3, 1), 1), x.relu() @ x
        written = torch.as_strided_scatter((x * 2)[1:], x[:2, :2] + 7, (2, 2), (1, 2)) + 1
        return *of_views, *overlapping, *of_inputs, *of_parts, *copies, written


@pytest.mark.parametrize("backend", LIBRARIES)
def test_memory_is_read_as_eager_reads_it(backend: str, tmp_path: Path) -> None:
    if find_spec(LIBRARIES[backend]) is None:
        pytest.skip(f"{backend} is not installed")
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    options = {"portable-operators": True} if backend == "executorch" else {}
    aten = torch.ops.aten
    lowered = to_edge_transform_and_lower(
        torch.export.export(Views(), (x,)),
        partitioner=[find_backend(backend).partitioner(options)],
        compile_config=EdgeCompileConfig(preserve_ops=[aten.as_strided_copy.default, aten.as_strided_scatter.default]),
    ).to_executorch()
    reasons = set(lowered.reasons["forward"].values())
    assert "`aten.as_strided.default` reads the memory of its input, which an engine lays out in its own way" in reasons
    assert "`aten_as_strided_default` reads its memory, which an engine lays out in its own way" in reasons
    results = hatch_lower.load(save_program(lowered, tmp_path / "out"))(x)
    for result, expected in zip(results, Views()(x), strict=True):
        torch.testing.assert_close(result, expected)
