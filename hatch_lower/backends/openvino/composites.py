"""Composites that another backend wants whole, in the operators that OpenVINO's frontend knows.

What one backend of a recipe keeps whole is whole for all, so a convolution comes here in one form or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
Call = tuple[OpOverload, tuple[object, ...]]


def taken_apart(composite: OpOverload, given: Mapping[str, object], rank: int) -> Call:
    defaults = {argument.name: argument.default_value for argument in composite._schema.arguments}
    return COMPOSITES[composite]({**defaults, **given}, rank)


def convolution(given: Mapping[str, object], rank: int) -> Call:
    count = rank - 2
    sizes = (for_each(given[name], count) for name in ("stride", "padding", "dilation"))
    tensors = (given["input"], given["weight"], given["bias"])
    return aten.convolution.default, (*tensors, *sizes, False, [0] * count, given["groups"])


def for_each(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def layer_norm(given: Mapping[str, object], rank: int) -> Call:
    # it gives mean and deviation, too
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    return aten.native_layer_norm.default, tuple(given[name] for name in names)


def max_pool(given: Mapping[str, object], rank: int) -> Call:
    # it gives indices, too
    sizes = (for_each(given[name], 2) for name in ("kernel_size", "stride", "padding", "dilation"))
    return aten.max_pool2d_with_indices.default, (given["self"], *sizes, given["ceil_mode"])


def softmax(given: Mapping[str, object], rank: int) -> Call:
    # the last argument: the dtype stays
    return aten._softmax.default, (given["self"], given["dim"], False)


def log_softmax(given: Mapping[str, object], rank: int) -> Call:
    return aten._log_softmax.default, (given["self"], given["dim"], False)


COMPOSITES: Mapping[OpOverload, Callable[[Mapping[str, object], int], Call]] = MappingProxyType(
    {
        aten.conv1d.default: convolution,
        aten.conv2d.default: convolution,
        aten.conv3d.default: convolution,
        aten.layer_norm.default: layer_norm,
        aten.log_softmax.int: log_softmax,
        aten.max_pool2d.default: max_pool,
        aten.softmax.int: softmax,
    }
)

# of their results only the first is that of a composite
WITH_INDICES = frozenset({aten.native_layer_norm.default, aten.max_pool2d_with_indices.default})
