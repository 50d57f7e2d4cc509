"""Outputs lie in memory in eager's order, also where `torch.export` foretells another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import Workshop, files_of, key_of, packaged_report, settings_of, write_folder
from support.kept_events import Events
from torch import Tensor, nn
from torch.export import Dim

import hatch_lower
from hatch_lower import Method, Model
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.output_order import OutputLayout, in_eagers_order, layouts_of
from hatch_lower.runtime.torch_private import tensors

pytestmark = pytest.mark.torch

BACKENDS = [
    "",
    "reference",
    *(
        pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
        for name in ("onnxruntime", "openvino", "executorch")
    ),
    "aoti",
]


class Tokens(nn.Module):
    """Logits of images that come from rows of tokens, as SegFormer's; eager's convolution of one is contiguous."""

    def __init__(self, result: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.last = nn.Conv2d(8, 5, 1)
        self.result = result

    def forward(self, tokens: Tensor) -> Any:
        return self.result(self.last(tokens.permute(0, 2, 1).reshape(tokens.shape[0], 8, 4, -1)))


def nested(logits: Tensor) -> Any:
    return {"logits": logits, "all": (logits, None, [logits.permute(0, 2, 3, 1), logits.relu(), logits.sum()])}


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE", "off")


def captured(module: nn.Module, tokens: Tensor, sizes: Any = None) -> CapturedModel:
    return capture_model("net", Model(module.eval(), {"forward": Method((tokens,), dynamic_shapes=sizes)}), Events())


def ordered(module: nn.Module, tokens: Tensor, sizes: Any = None) -> tuple[CapturedModel, CapturedModel]:
    """Return a captured model, and the same as a build has it."""
    source = captured(module, tokens, sizes)
    return source, in_eagers_order(source, {"forward": layouts_of(module(tokens))})


def build(
    folder: Path, module: nn.Module, tokens: Tensor, backend: str, sizes: Any = None, arrays: str = "torch"
) -> tuple[Any, list[str]]:
    """Return a loaded model, and what its build noted."""
    recipe = Recipe("default", (BackendChoice(backend),) if backend else ())
    report, events = Workshop(folder).build(captured(module, tokens, sizes), settings_of(recipe))
    written = write_folder(folder / "_lowered", packaged_report(report))
    return hatch_lower.load(written, arrays=arrays), events.notes()


def strides(outputs: Any) -> list[tuple[int, ...] | None]:
    return [leaf.stride() if isinstance(leaf, Tensor) else None for leaf in tensors.tree_leaves(outputs)]


# Orders.


@pytest.mark.parametrize(
    ("shape", "stride", "order"),
    [
        ((2, 5, 4, 6), (120, 24, 6, 1), (0, 1, 2, 3)),
        ((2, 5, 4, 6), (120, 1, 30, 5), (0, 2, 3, 1)),
        ((1, 5, 4, 6), (7, 24, 6, 1), (0, 1, 2, 3)),
        ((1, 5, 4, 6), (1, 1, 30, 5), (0, 2, 3, 1)),
        ((), (), ()),
        ((2, 3), (4, 1), None),  # with gaps
        ((2, 3), (0, 1), None),
        ((0, 3), (3, 1), None),  # without elements
    ],
)
def test_an_order_is_known_of_elements_side_by_side(
    shape: tuple[int, ...], stride: tuple[int, ...], order: tuple[int, ...] | None
) -> None:
    assert OutputLayout(shape, stride).order() == order


def test_without_elements_any_order_holds() -> None:
    assert OutputLayout((0, 3, 2), (6, 1, 3)).lies_in((0, 1, 2))


# Programs.


def test_a_program_whose_outputs_lie_as_foretold_is_left_alone() -> None:
    source, same = ordered(Tokens(nested), torch.randn(2, 24, 8))
    assert same.methods[0] is source.methods[0]


def test_no_other_size_is_computed_where_outputs_lie_as_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.pipeline.output_order.eager_outputs", lambda *_: pytest.fail("eager is called"))
    ordered(Tokens(), torch.randn(2, 24, 8), {"tokens": {0: Dim("images", max=8)}})


def test_an_output_that_is_returned_twice_is_copied_once() -> None:
    _, model = ordered(Tokens(nested), torch.randn(1, 24, 8))
    copies = [node for node in model.methods[0].program.graph.nodes if node.target is torch.ops.aten.clone.default]
    assert len(copies) == 3  # the logits, and two results of these


def test_an_order_that_depends_on_a_size_is_left_alone() -> None:
    # eager gives one image contiguous, and the channels of several innermost
    source = captured(Tokens(), torch.randn(2, 24, 8), {"tokens": {0: Dim("images", max=8)}})
    eager = {"forward": [OutputLayout((2, 5, 4, 6), (120, 24, 6, 1))]}
    assert in_eagers_order(source, eager).methods[0].program is source.methods[0].program


def test_the_key_says_which_outputs_are_copied() -> None:
    source, model = ordered(Tokens(), torch.randn(1, 24, 8))
    again = ordered(source.eager, torch.randn(1, 24, 8))[1]
    assert key_of(model).graphs != key_of(source).graphs
    assert key_of(again).graphs == key_of(model).graphs


# Builds.


def test_a_recipe_that_is_lowered_alone_has_the_order_that_it_has_among_others(tmp_path: Path) -> None:
    whole = settings_of(Recipe("plain", verify=False), Recipe("checked"), check=False)
    alone = replace(whole, models=(replace(whole.models[0], recipes=("plain",)),))
    source = captured(Tokens(), torch.randn(1, 24, 8))
    shop = Workshop(tmp_path)
    plans = [files_of(shop.build(source, settings)[0])["net/plain.json"] for settings in (whole, alone)]
    assert plans[0] == plans[1]
    assert b"aten.clone.default" in plans[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_have_eagers_strides(backend: str, tmp_path: Path) -> None:
    module, width = Tokens(nested), Dim("width", min=2, max=16)
    model, notes = build(tmp_path, module, torch.randn(1, 24, 8), backend, {"tokens": {1: 4 * width}})
    for count in (24, 40):
        tokens = torch.randn(1, count, 8)
        found, expected = model(tokens), module(tokens)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert strides(found) == strides(expected)
        found["logits"].view(-1)
    assert not any("strides" in note for note in notes)


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_outputs_have_eagers_strides_on_numpys_arrays(tmp_path: Path) -> None:
    module = Tokens(nested)
    tokens = torch.randn(1, 24, 8)
    model, _ = build(tmp_path, module, tokens, "onnxruntime", arrays="numpy")
    found, expected = model(tokens.numpy()), module(tokens)
    for one, other in zip(tensors.tree_leaves(found), tensors.tree_leaves(expected), strict=True):
        if other is not None:
            assert tuple(step // one.itemsize for step in one.strides) == other.stride()


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_an_output_whose_order_depends_on_a_size_is_named(tmp_path: Path) -> None:
    images = {"tokens": {0: Dim("images", min=1, max=8)}}
    _, (note,) = build(tmp_path, Tokens(), torch.randn(2, 24, 8), "onnxruntime", images)
    assert note.startswith(
        "`output` has the strides [120, 1, 30, 5] that `torch.export` predicts, where eager has [120,"
    )
