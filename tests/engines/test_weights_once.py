"""Weights of every engine lie in the one constants file: odd ones, tied ones, and those that one method folds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import hatch_lower
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]

ENGINES = ["executorch", "onnxruntime", "openvino"]


class Odd(nn.Module):
    """Weights of no bytes, in two dtypes over one memory, not aligned, transposed, and of one scalar."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        memory = torch.randn(81)
        self.register_buffer("empty", torch.ones(0, 4))
        self.register_buffer("whole", memory[:64])
        self.register_buffer("bits", memory.view(torch.int32)[:64])
        self.register_buffer("shifted", memory[1:65].view(8, 8))
        self.register_buffer("turned", memory[17:81].view(8, 8).t())
        self.register_buffer("scalar", torch.tensor(0.5))
        self.register_buffer("three", torch.randn(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x @ self.shifted + x @ self.turned * self.scalar
        return y, torch.cat([x[:0, :4], self.empty]) + 1, self.bits + 1, self.whole * 2, y[:3, 0] * self.three


class Folding(nn.Module):
    """One method has a batch norm behind a convolution, which engines fold into it; the other the convolution alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(4, 16, 3)
        self.norm = nn.BatchNorm2d(16)
        nn.init.uniform_(self.norm.running_mean)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(x)))

    def plain(self, x: Tensor) -> Tensor:
        return torch.relu(self.convolution(x))


class Plain(nn.Module):
    def __init__(self, folding: Folding) -> None:
        super().__init__()
        self.convolution = folding.convolution

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.convolution(x))


def package(folder: Path, backend: str, args: tuple[Tensor, ...], **methods: nn.Module) -> Path:
    pytest.importorskip(backend)
    programs = {name: torch.export.export(module.eval(), args) for name, module in methods.items()}
    options = {"portable-operators": True} if backend == "executorch" else {}
    lowered = to_edge_transform_and_lower(programs, partitioner=[find_backend(backend).partitioner(options)])
    return save_program(lowered.to_executorch(), folder)


@pytest.mark.parametrize("backend", ENGINES)
def test_odd_weights_give_eagers_numbers(backend: str, tmp_path: Path) -> None:
    module, x = Odd().eval(), torch.randn(8, 8)
    model = hatch_lower.load(package(tmp_path / "out", backend, (x,), forward=module))
    for _ in range(2):
        for found, expected in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ENGINES)
def test_weights_that_one_method_folds_are_the_others_as_they_are(backend: str, tmp_path: Path) -> None:
    module, x = Folding().eval(), torch.randn(2, 4, 6, 6)
    model = hatch_lower.load(package(tmp_path / "out", backend, (x,), forward=module, plain=Plain(module)))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(x), module(x))
            torch.testing.assert_close(model.plain(x), module.plain(x))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_batch_norms_that_the_model_has_folded_are_in_its_weights(backend: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    (code,) = re.findall(r"```python\n(.*?def fold_batch_norms.*?)```", text, re.DOTALL)
    shown: dict[str, Any] = {}
    exec(code, shown)
    module, x = Folding().eval(), torch.randn(2, 4, 6, 6)
    folded = shown["fold_batch_norms"](Folding().eval())
    assert isinstance(folded.norm, nn.Identity)
    folder = package(tmp_path / "out", backend, (x,), forward=folded)
    (constants,) = folder.rglob("*.safetensors")
    with safe_open(constants, "pt") as file:
        sizes = sorted(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert sizes == [16, 16 * 4 * 3 * 3]
    with torch.no_grad():
        torch.testing.assert_close(hatch_lower.load(folder)(x), module(x))
