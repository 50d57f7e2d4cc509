"""A partition for inductor's CUDA half: constants and inputs as stand-ins on a GPU that need not exist."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import Node

from hatch_lower.backends.aoti.prepare import AotiCopy, FakeInputs
from hatch_lower.backends.cuda.attention import ATTENTION, choose_kernel, write_attention
from hatch_lower.exir.graph.operators import named_arguments, torch_operator

INDEX = 0  # of the GPU in the generated code; the library is opened for any GPU


class CudaCopy(AotiCopy):
    backend_id: ClassVar[str] = "cuda"
    device: ClassVar[str] = f"cuda:{INDEX}"

    def stand_ins(self, constants: Sequence[torch.Tensor], fakes: FakeInputs) -> Sequence[torch.Tensor]:
        return [fakes.make(constant) for constant in constants]

    def write_operation(self, node: Node, index: int) -> object:
        call = partial(self._write, index)
        if torch_operator(node.target) is ATTENTION and (kernel := choose_kernel(node)) is not None:
            named = {name: self._copied(value) for name, value in named_arguments(node).items()}
            return write_attention(call, node, kernel, named)
        if multiplies_integers(node):
            left, right = (self._copied(value) for value in node.args)
            return write_integer_product(call, left, right, node.meta["val"].dtype)
        return on_the_gpu(super().write_operation(node, index))

    def _copied(self, value: Any) -> Any:
        return self.values[value] if isinstance(value, Node) else value


PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


def multiplies_integers(node: Node) -> bool:
    # libtorch multiplies no matrices of integers on a GPU
    return torch_operator(node.target) in PRODUCTS and not node.meta["val"].is_floating_point()


def write_integer_product(call: Any, left: Any, right: Any, dtype: torch.dtype) -> Any:
    aten = torch.ops.aten
    terms = call(aten.mul.Tensor, call(aten.unsqueeze.default, left, -1), call(aten.unsqueeze.default, right, -3))
    return call(aten.sum.dim_IntList, terms, [-2], dtype=dtype)


def on_the_gpu(value: object) -> object:
    """Return a copied node whose literal devices are the GPU: the graph is of a program for the CPU."""
    if isinstance(value, Node) and isinstance(value.kwargs.get("device"), torch.device):
        value.kwargs = {**value.kwargs, "device": torch.device("cuda", INDEX)}
    return value
