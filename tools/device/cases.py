"""The models of the device checks: networks with example inputs, dynamic sizes, and recipes. Each is a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.export import Dim

from hatch_lower import Method, Model

from . import nets

HALF, BRAIN = torch.float16, torch.bfloat16
Inputs = tuple[Tensor, ...]
RECIPES = ("gpu", "portable")
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    dtype: torch.dtype = torch.float32
    dynamic: tuple[tuple[int, str, int, int], ...] = ()  # dimension of the input, its name, least and most
    more: Callable[[], list[Inputs]] = list  # inputs of other sizes
    methods: tuple[str, ...] = ("forward",)
    recipes: tuple[str, ...] = RECIPES
    has_state: bool = False
    eager_on_gpu: bool = True  # false where torch has no kernel for a GPU: eager on the CPU is the reference

    def module(self) -> nn.Module:
        return nets.fill(self.make()).to(self.dtype)

    def model(self) -> Model:
        """Return the model for the export."""
        shapes = {dim: Dim(name, min=least, max=most) for dim, name, least, most in self.dynamic}
        dynamic = (shapes,) if shapes else None
        return Model(
            self.module(), methods={name: Method(args=self.inputs(), dynamic_shapes=dynamic) for name in self.methods}
        )

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.module().state_dict().items() if tensor.is_floating_point()}

    def is_large(self) -> bool:
        """Return whether the weights stay outside of the wheel."""
        module = self.make()
        count = sum(tensor.numel() for tensor in module.state_dict().values())
        return bool(count * self.dtype.itemsize > 2 * MEGABYTE)


def masked(dtype: torch.dtype) -> Case:
    def inputs() -> Inputs:
        mask = torch.ones(32, 32, dtype=torch.bool).tril(3)
        return nets.floats(2, 32, 64, dtype=dtype), mask

    return Case(nets.Masked, inputs, dtype)


def unmasked(dtype: torch.dtype) -> Case:
    return Case(nets.Unmasked, lambda: (nets.floats(2, 32, 64, dtype=dtype),), dtype)


def images(count: int, size: int, dtype: torch.dtype = torch.float32) -> Callable[[], Inputs]:
    return lambda: (nets.floats(count, 3, size, size, dtype=dtype),)


def words(*shape: int) -> Inputs:
    return (nets.integers(30000, *shape),)


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "mlp": Case(nets.Mlp, lambda: (nets.floats(8, 64),), recipes=("gpu", "ptx", "onnx", "cpu", "portable")),
        "mlp_dynamic": Case(
            nets.Mlp,
            lambda: (nets.floats(8, 64),),
            dynamic=((0, "batch", 1, 4096),),
            more=lambda: [(nets.floats(size, 64),) for size in (1, 7, 4096)],
        ),
        "conv": Case(nets.Conv, images(2, 32)),
        "attention": unmasked(torch.float32),
        "attention_fp16": unmasked(HALF),
        "attention_bf16": unmasked(BRAIN),
        "attention_mask": masked(torch.float32),
        "attention_mask_fp16": masked(HALF),
        "attention_mask_bf16": masked(BRAIN),
        "resnet": Case(nets.resnet, images(1, 224)),
        "resnet_fp16": Case(nets.resnet, images(8, 224, HALF), HALF),
        "bert": Case(nets.Bert, lambda: words(1, 128), methods=("forward", "embed")),
        "bert_dynamic": Case(
            lambda: nets.Bert(layers=4, width=256, heads=4),
            lambda: words(2, 128),
            dynamic=((0, "batch", 1, 64), (1, "length", 2, 512)),
            more=lambda: [words(1, 2), words(3, 77), words(5, 512)],
        ),
        "vit_fp16": Case(nets.VisionTransformer, images(4, 224, HALF), HALF),
        "decoder": Case(
            nets.Decoder,
            lambda: (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
            has_state=True,
        ),
        "unet": Case(nets.UNet, images(1, 64), recipes=("gpu", "ptx", "onnx", "portable")),
        "products": Case(
            nets.Products,
            lambda: (nets.integers(1 << 40, 8, 16), nets.integers(1 << 20, 16, 4)),
            eager_on_gpu=False,
        ),
        "mixed": Case(nets.Mixed, lambda: (nets.floats(8, 16), nets.integers(100, 8, 32))),
    }
)
