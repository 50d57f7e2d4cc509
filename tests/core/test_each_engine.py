"""One small model through each engine that is installed: from the export to eager's numbers from the saved program.

The builds of `e2e/claims` have native code of `aoti`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hatch_lower import load
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

ENGINES = {
    "executorch": ("executorch", "ExecutorchBackend"),
    "onnxruntime": ("onnxscript", "OnnxruntimeBackend"),
    "openvino": ("openvino", "OpenvinoBackend"),
}
"""The library of each engine, and the name of its compile half."""


class Two(nn.Module):
    """Two layers, whose output keeps eager's strides where it is made contiguous."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))), -1).t().contiguous()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_takes_two_layers_and_gives_eagers_numbers(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, name = ENGINES[engine]
    pytest.importorskip(library)
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")
    backend = getattr(import_module(f"hatch_lower.backends.{engine}.compile"), name)
    module, x = Two().eval(), torch.linspace(-1, 1, 24).reshape(3, 8)
    program = torch.export.export(module, (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[backend.partitioner({})]).to_executorch()
    assert get_lowered_backend_modules(lowered.exported_program().graph_module)
    found, expected = load(save_program(lowered, tmp_path / "saved"))(x), module(x)
    torch.testing.assert_close(found, expected.detach())
    assert found.stride() == expected.stride()
