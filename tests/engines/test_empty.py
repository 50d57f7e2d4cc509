"""Calls with tensors without elements: they do not reach an engine that was not made for them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.exports import Workshop, packaged_report, settings_of, write_folder
from support.kept_events import Events
from torch import nn
from torch.export import Dim

import hatch_lower
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import EmptyError
from hatch_lower.format.expression import Compound
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.runtime.inputs import is_growing

pytestmark = pytest.mark.torch


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.linear(x).relu()
        return hidden.t(), {"mask": hidden > 0}


class Summed(Rows):
    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x).sum(0), x * 2


class Counted(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        return x * 2 + self.calls[0]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.conv(x).relu()


def loaded(
    folder: Path, module: nn.Module, *args: Any, sizes: Any, backend: str = "reference", arrays: str = "torch"
) -> Any:
    shop = Workshop(folder)
    source = capture_model("net", Model(module.eval(), {"forward": Method(args, dynamic_shapes=sizes)}), Events())
    report, _ = shop.build(source, settings_of(Recipe("default", (BackendChoice(backend),))))
    return hatch_lower.load(write_folder(folder / "_lowered", packaged_report(report)), arrays=arrays)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference backend stand for an engine that takes no tensor without elements."""
    run: Callable[..., Any] = ReferenceDelegate.run

    def refuse_empty(self: Any, inputs: Sequence[Any]) -> Any:
        assert all(value.numel() for value in inputs if isinstance(value, torch.Tensor))
        return run(self, inputs)

    monkeypatch.setattr(ReferenceDelegate, "run", refuse_empty)
    monkeypatch.setattr(ReferenceDelegate, "without_elements", "refuse")


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")


SIZES = {"x": {0: Dim("rows", min=0, max=64)}}


@pytest.mark.usefixtures("refusing")
def test_a_call_without_elements_goes_round_the_delegate(tmp_path: Path) -> None:
    module = Rows()
    model = loaded(tmp_path, module, torch.randn(3, 4), sizes=SIZES)
    for rows in (0, 1, 3):
        x = torch.randn(rows, 4)
        (first, masks), (expected, expected_masks) = model(x), module(x)
        torch.testing.assert_close(first, expected)
        assert torch.equal(masks["mask"], expected_masks["mask"])


@pytest.mark.usefixtures("refusing")
def test_arrays_without_elements_go_round_the_delegate(tmp_path: Path) -> None:
    model = loaded(tmp_path, Rows(), torch.randn(3, 4), sizes=SIZES, arrays="numpy")
    first, masks = model(np.zeros((0, 4), np.float32))
    assert (first.shape, first.dtype, masks["mask"].dtype) == ((3, 0), np.float32, np.bool_)


@pytest.mark.usefixtures("refusing")
def test_a_call_with_some_elements_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, Summed(), torch.randn(3, 4), sizes=SIZES)
    assert model(torch.randn(1, 4))[0].shape == (3,)
    with pytest.raises(EmptyError, match="the delegate `reference` takes no tensor without elements") as caught:
        model(torch.randn(0, 4))
    assert "float32[0, 4]" in caught.value.found
    assert "write `min=1` in the `Dim` of the size" in caught.value.hint


@pytest.mark.usefixtures("refusing")
def test_state_changes_in_a_call_without_elements_or_it_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, Counted(), torch.randn(3, 4), sizes=SIZES)
    assert model(torch.zeros(1, 4))[0, 0] == 1
    try:
        model(torch.zeros(0, 4))
    except EmptyError:
        assert model(torch.zeros(1, 4))[0, 0] == 2
    else:
        assert model(torch.zeros(1, 4))[0, 0] == 3


def test_a_delegate_that_computes_them_gets_calls_of_which_some_tensors_have_elements(tmp_path: Path) -> None:
    module = Summed()
    model = loaded(tmp_path, module, torch.randn(3, 4), sizes=SIZES)
    x = torch.randn(0, 4)
    torch.testing.assert_close(model(x), module(x))


@pytest.mark.parametrize("engine", ["executorch", "onnxruntime", "openvino"])
@pytest.mark.parametrize("sizes", ["batch", "image"])
def test_no_images_are_none_in_each_engine(tmp_path: Path, engine: str, sizes: str) -> None:
    pytest.importorskip({"executorch": "executorch.runtime"}.get(engine, engine))
    module = Images()
    shapes: Any = {0: Dim("batch", max=64)} if sizes == "batch" else {2: Dim("height", min=5, max=64)}
    model = loaded(tmp_path, copy.deepcopy(module), torch.randn(2, 3, 16, 16), sizes={"x": shapes}, backend=engine)
    for number in (0, 1, 9) if sizes == "batch" else (5, 9):
        x = torch.randn(number, 3, 16, 16) if sizes == "batch" else torch.randn(2, 3, number, 16)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-5)


def test_sizes_that_grow_with_their_symbols_are_known() -> None:
    assert is_growing(Compound("mul", ("n", Compound("floordiv", (Compound("add", ("n", 3)), 2)))))
    assert not is_growing(Compound("add", ("n", -3)))
    assert not is_growing(Compound("floordiv", ("n", "m")))
    assert not is_growing(Compound("sub", ("n", 3)))
