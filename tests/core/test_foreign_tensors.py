"""Tensors whose elements are not, or not all, in memory: each is an `InputError` that names the kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.exports import Workshop, packaged_report, settings_of, write_folder
from support.kept_events import Events
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

import hatch_lower
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import InputError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y


@pytest.fixture(scope="module", params=["", "reference"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("net")
    sizes = {"x": {0: Dim("rows", min=0, max=64)}, "y": {0: Dim("rows", min=0, max=64)}}
    method = Method((torch.randn(4, 6), torch.randn(4, 6)), dynamic_shapes=sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HATCH_LOWER_CACHE", "off")
        source = capture_model("net", Model(Net().eval(), {"forward": method}), Events())
        recipe = Recipe("default", (BackendChoice(request.param),) if request.param else ())
        report, _ = Workshop(folder).build(source, settings_of(recipe))
    return hatch_lower.load(write_folder(folder / "_lowered", packaged_report(report)))


def freed() -> torch.Tensor:
    x = torch.randn(4, 6)
    x.untyped_storage().resize_(0)
    return x


def cut(x: torch.Tensor, size: int) -> torch.Tensor:
    x.untyped_storage().resize_(size)
    return x


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)])


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)], layout=torch.jagged)


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.randn(4, 6)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(4, 6), 0.1, 0, torch.qint8)


KINDS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "freed": (freed, "the memory was freed: sizes and strides need 96 bytes, but only 0 are left"),
    "a freed parameter": (lambda: nn.Parameter(freed(), requires_grad=True), "the memory was freed"),
    "cut": (
        lambda: cut(torch.randn(4, 6), 92),
        "a part of the memory was freed: sizes and strides need 96 bytes, but only 92 are left",
    ),
    "cut behind an offset": (
        lambda: cut(torch.randn(8, 6)[4:], 96),
        "sizes and strides need 192 bytes, but only 96 are left",
    ),
    "cut with gaps": (
        lambda: cut(torch.randn(4, 12)[:, ::2], 96),
        "sizes and strides need 188 bytes, but only 96 are left",
    ),
    "cut and repeated": (lambda: cut(torch.randn(6).expand(4, 6), 20), "only 20 are left"),
    "cut and transposed": (lambda: cut(torch.randn(6, 4).t(), 80), "only 80 are left"),
    "nested": (nested, "a nested tensor"),
    "jagged": (jagged, "a nested tensor"),
    "fake": (fake, "a tensor of the class `FakeTensor`, which wraps other tensors and has no memory"),
    "quantized": (quantized, "qint8[4, 6]: the dtype must be float32"),
    "on no device": (lambda: torch.randn(4, 6, device="meta"), "on the device meta"),
    "sparse": (lambda: torch.randn(4, 6).to_sparse(), "of the layout sparse_coo"),
    "compressed": (lambda: torch.eye(4, 6).to_sparse_csr(), "of the layout sparse_csr"),
    "zeros without memory": (lambda: torch._efficientzerotensor((4, 6)), "a tensor without memory"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [True, False])
def test_tensors_without_their_elements_in_memory_are_refused(model: Any, kind: str, first: bool) -> None:
    make, reason = KINDS[kind]
    given = (make(), torch.randn(4, 6)) if first else (torch.randn(4, 6), make())
    with pytest.raises(InputError) as caught:
        model(*given)
    assert f"for `{'x' if first else 'y'}`" in caught.value.what
    assert reason in caught.value.found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "transform",
    [
        lambda call, x: torch.func.vmap(call)(x),
        lambda call, x: torch.func.vmap(call, in_dims=1)(x),
        lambda call, x: torch.func.grad(lambda value: call(value).sum())(x),
        lambda call, x: torch.func.jvp(call, (x,), (x,)),
        lambda call, x: torch.func.vmap(torch.func.jacrev(call))(x),
        lambda call, x: torch.func.functionalize(call)(x),
    ],
)
def test_wrappers_of_transformations_are_refused(model: Any, transform: Callable[..., Any]) -> None:
    x = torch.randn(2, 4, 6)

    def call(value: torch.Tensor) -> torch.Tensor:
        return model(value.reshape(-1, 6), torch.zeros(value.numel() // 6, 6))

    with pytest.raises(InputError, match=r"torch\.func"):
        transform(call, x)


def test_usual_tensors_are_taken(model: Any) -> None:
    base = torch.randn(8, 12)
    for x in (
        base[:4, :6],
        base[4:, 6:],
        base[:4, ::2],
        base.t()[:6, :6].contiguous()[2:],
        torch.randn(1, 6).expand(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(0, 6),
        torch.randn(4, 6, requires_grad=True),
        nn.Parameter(torch.randn(4, 6)),
        torch.imag(torch.randn(4, 6, dtype=torch.complex64).conj()),
    ):
        y = torch.randn(len(x), 6)
        torch.testing.assert_close(model(x, y), x.detach() * 2 + y)
