"""Small models that PT2E quantizes to 8-bit integers, as users do it: export, prepare, calibrate, convert."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    """Three linear layers; almost all of its bytes are weights of the first two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


class ConvNet(nn.Module):
    """Two convolutions, a pool, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.head(self.pool(self.features(image)).flatten(1))
        return result


def mlp(width: int = 32, rows: int = 4) -> tuple[nn.Module, tuple[Tensor]]:
    """Return the floating-point MLP and example inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Mlp(width).eval(), (torch.randn(rows, width),)


def conv_net(width: int = 8, size: int = 8) -> tuple[nn.Module, tuple[Tensor]]:
    """Return the floating-point net and example inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ConvNet(width).eval(), (torch.randn(2, 3, size, size),)


@contextmanager
def quiet() -> Iterator[None]:
    """Let torchao and ExecuTorch warn about their own imports and calls of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@quiet()
def xnnpack_quantizer(*, dynamic: bool = False) -> Any:
    """Return ExecuTorch's quantizer: symmetric weights of each channel; activations by calibration, or of each call."""
    pytest.importorskip("executorch")
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )

    class WithoutNorms(XNNPACKQuantizer):
        """It looks for no batch norm, which no model of a test has: that exports 12 graphs each time, for 3 s."""

        SUPPORTED_PATTERNS = tuple(each for each in XNNPACKQuantizer.SUPPORTED_PATTERNS if "_bn" not in each.name)

    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    return WithoutNorms().set_global(config)


@quiet()
def x86_quantizer(*, dynamic: bool = False) -> Any:
    """Return torchao's quantizer for Inductor: symmetric weights of each channel, unsigned activations."""
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    return X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config(is_dynamic=dynamic))


@quiet()
def quantized(model: nn.Module, inputs: tuple[Tensor, ...], quantizer: Any = None) -> torch.fx.GraphModule:
    """Return a model quantized by PT2E and calibrated with its inputs; by default with `xnnpack_quantizer()`."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    chosen = xnnpack_quantizer() if quantizer is None else quantizer
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), chosen)
    with torch.no_grad():
        prepared(*inputs)
    converted: torch.fx.GraphModule = convert_pt2e(prepared)
    return converted
