"""Convolutions whose weights are packed at load, in the layout that oneDNN computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.runtime.torch_private.inductor import float_convolution

aten = torch.ops.aten
DIMENSIONS = 4  # of images and weights
SIDE = 32  # image size assumed where the real size is known at run time only: weights packed for 32 fit most sizes

Call = Callable[..., Node]  # writes a call of an operator


@dataclass(frozen=True, slots=True)
class Places:
    """The position of a convolution's weights, and the facts besides sizes that their packed layout depends on."""

    constant: int  # their position among the constants
    zero_point: int | None  # of unsigned bytes; `None` for floating-point numbers
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    size: tuple[int, ...]  # number of images, their height and width


def places_of(node: Node, image: Node, weight: Node, constant: int, zero_point: int | None = None) -> Places:
    given = named_arguments(node)
    pairs = (given.get(name, default) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)))
    where = (tuple(pair) * (2 // len(pair)) if isinstance(pair, Sequence) else (pair, pair) for pair in pairs)
    stride, padding, dilation = where
    (rows, _, *sides), kernel = image.meta["val"].shape, weight.meta["val"].shape[2:]
    places = zip(sides, kernel, dilation, strict=True)
    sides = [side if isinstance(side, int) else max(SIDE, length * step) for side, length, step in places]
    size = rows if isinstance(rows, int) and rows else 1, *sides
    return Places(constant, zero_point, stride, padding, dilation, given.get("groups", 1), size)


def may_copy(constant: torch.Tensor) -> bool:
    """Return whether a constant may be weights that are copied at load."""
    # a cache of keys is a buffer with as many dimensions: a copy would not reach the method that fills the cache
    is_float = constant.dtype is torch.float32 and isinstance(constant, nn.Parameter)
    return constant.dim() == DIMENSIONS and (is_float or constant.dtype is torch.int8)


def is_of_floats(node: Node) -> bool:
    """Return whether an operation is a convolution of float32 whose weights can be laid out for all of its calls."""
    if torch_operator(node.target) is not aten.conv2d.default:
        return False
    given = named_arguments(node)
    values = [given[name].meta["val"] for name in ("input", "weight")]
    # Of other numbers of images, heights and widths, a call would lay out a layout: twice as slow as without.
    return all(
        value.dtype is torch.float32
        and value.dim() == DIMENSIONS
        and all(isinstance(size, int) and size for size in value.shape)
        for value in values
    )


def write_of_floats(call: Call, image: Any, weight: Node, bias: Any, places: Places) -> Node:
    where = [list(pair) for pair in (places.padding, places.stride, places.dilation)]
    return call(float_convolution(), image, weight, bias, *where, places.groups, "none", [], "")  # no fused operation
