"""The backend in docs/backends.md is taken from the page, installed, and computes what eager does."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.runtime.delegates import DelegateBlob

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"


@pytest.fixture
def tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Install the page's backend as a distribution would be."""
    for folder in ("tape", "tape-1.0.dist-info"):
        (tmp_path / folder).mkdir()
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        path = re.match(r"# (tape/\w+\.py)\n", code)
        assert path is not None
        (tmp_path / path[1]).write_text(code)
    groups = re.findall(r'\[project\.entry-points\."(.*?)"\]\ntape = "(.*?)"', PAGE.read_text())
    assert [group for group, _ in groups] == ["hatch_lower.backends", "hatch_lower.delegates"]
    entry_points = "".join(f"[{group}]\ntape = {value}\n" for group, value in groups)
    (tmp_path / "tape-1.0.dist-info" / "entry_points.txt").write_text(entry_points)
    (tmp_path / "tape-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tape\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("tape.compile")
    importlib.import_module("tape.run")
    yield sys.modules["tape"]
    for name in [each for each in sys.modules if each.split(".")[0] == "tape"]:
        del sys.modules[name]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.relu(image * self.scale + image).cumsum(0) * self.scale


def test_the_page_s_backend_computes_what_eager_does(tape: ModuleType, tmp_path: Path) -> None:
    image = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    edge = to_edge(torch.export.export(Net().eval(), (image,)))
    lowered = lower_methods({"forward": edge}, {"forward": tape.compile.TapeBackend.partitioner({})})["forward"]
    assert (lowered.partitions, lowered.delegated) == (2, 4)
    assert set(lowered.reasons.values()) == {"a tape holds sums, products and ReLUs of tensors only"}
    calls = [module for module in lowered.program.graph_module.children() if isinstance(module, LoweredBackendModule)]
    for module in calls:
        blob = tmp_path / "blob.json"
        blob.write_bytes(module.processed_bytes)
        inputs = [torch.randn(each.meta["val"].shape) for each in inputs_of(module)]
        delegate = tape.run.TapeDelegate.load(DelegateBlob(blob), [])
        expected = module.original_module.graph_module(*inputs)
        assert all(torch.equal(a, b) for a, b in zip(delegate.run(inputs), expected, strict=True))
        assert module.meta is not None
        assert sorted(module.meta["debug_handle_map"]) == list(range(len(module.meta["debug_handle_map"])))


def inputs_of(module: LoweredBackendModule) -> list[torch.fx.Node]:
    return [node for node in module.original_module.graph.nodes if node.op == "placeholder"]
