"""Calls of the core ATen operators, small enough to be run with every combination of dtypes.

Most are told from the schema: tensors of two by three ones, dimension 0, one literal of each kind for a scalar. Those
that need other arguments are in `CALLS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from hatch_lower.exir.dialects.edge.dtypes import REGULAR_DTYPES, full_name, is_tensor_type

__all__ = ["Slot", "call_variants", "core_operators"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in a call.

    Args:
        shape: its shape.
        value: what all its elements are.
        listed: how many are given in a list; 0: one that is in no list.
    """

    shape: tuple[int, ...]
    value: int = 1
    listed: int = 0

    def make(self, dtype: torch.dtype, device: str) -> Any:
        """Return the tensor, or the list of tensors."""
        made = [torch.full(self.shape, self.value, dtype=dtype, device=device) for _ in range(self.listed or 1)]
        return made if self.listed else made[0]


def tensor(*shape: int) -> Slot:
    """Return a tensor of ones."""
    return Slot(shape)


def zeros(*shape: int) -> Slot:
    """Return a tensor of zeros."""
    return Slot(shape, 0)


IMAGE, VOLUME, ROW = tensor(1, 2, 4, 4), tensor(1, 1, 4, 4, 4), tensor(2)
POOL, POOL3 = [2, 2], [2, 2, 2]

CALLS: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "aten::_adaptive_avg_pool2d": (IMAGE, [2, 2]),
        "aten::_adaptive_avg_pool2d_backward": (tensor(1, 2, 2, 2), IMAGE),
        "aten::_adaptive_avg_pool3d": (VOLUME, [2, 2, 2]),
        "aten::_cdist_forward": (tensor(2, 3), tensor(2, 3), 2.0, None),
        "aten::_embedding_bag": (tensor(4, 3), tensor(2), zeros(2), False, 0, False, tensor(2), False, -1),
        "aten::_local_scalar_dense": (tensor(),),
        "aten::_native_batch_norm_legit.no_stats": (IMAGE, ROW, ROW, True, 0.1, 1e-5),
        "aten::_native_batch_norm_legit_no_training": (IMAGE, ROW, ROW, ROW, ROW, 0.1, 1e-5),
        "aten::adaptive_avg_pool1d": (tensor(2, 4), [2]),
        "aten::addmm": (tensor(2, 2), tensor(2, 3), tensor(3, 2)),
        "aten::as_strided": (tensor(2, 3), [2, 2], [1, 1]),
        "aten::avg_pool1d": (tensor(2, 4), [2], [2]),
        "aten::avg_pool2d": (IMAGE, POOL),
        "aten::avg_pool2d_backward": (tensor(1, 2, 2, 2), IMAGE, POOL, POOL, [0, 0], False, True, None),
        "aten::avg_pool3d": (VOLUME, POOL3),
        "aten::bmm": (tensor(2, 2, 3), tensor(2, 3, 2)),
        "aten::cat": (Slot((2, 3), listed=2),),
        "aten::clamp.Tensor": (tensor(2, 3), tensor(2, 3), tensor(2, 3)),
        "aten::col2im": (tensor(1, 8, 4), [4, 4], POOL, [1, 1], [0, 0], POOL),
        "aten::constant_pad_nd": (tensor(2, 3), [1, 1]),
        "aten::convolution": (IMAGE, tensor(2, 2, 2, 2), ROW, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        "aten::convolution_backward": (
            tensor(1, 2, 3, 3), IMAGE, tensor(2, 2, 2, 2), [2], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3,
        ),
        "aten::embedding": (tensor(4, 3), tensor(2)),
        "aten::embedding_dense_backward": (tensor(2, 3), tensor(2), 4, -1, False),
        "aten::empty_strided": ([2, 3], [3, 1]),
        "aten::expand": (tensor(2, 3), [2, 2, 3]),
        "aten::grid_sampler_2d": (IMAGE, tensor(1, 2, 2, 2), 0, 0, False),
        "aten::index.Tensor": (tensor(2, 3), Slot((2,), listed=1)),
        "aten::index_put": (tensor(2, 3), Slot((2,), listed=1), tensor(2, 3)),
        "aten::index_select": (tensor(2, 3), 0, tensor(2)),
        "aten::masked_scatter": (tensor(2, 3), tensor(2, 3), tensor(2, 3)),
        "aten::max_pool2d_with_indices": (IMAGE, POOL),
        "aten::max_pool2d_with_indices_backward": (
            tensor(1, 2, 2, 2), IMAGE, POOL, POOL, [0, 0], [1, 1], False, tensor(1, 2, 2, 2),
        ),
        "aten::max_pool3d_with_indices": (VOLUME, POOL3),
        "aten::mm": (tensor(2, 3), tensor(3, 2)),
        "aten::native_group_norm": (IMAGE, ROW, ROW, 1, 2, 16, 1, 1e-5),
        "aten::native_group_norm_backward": (
            IMAGE, IMAGE, tensor(1, 1), tensor(1, 1), ROW, 1, 2, 16, 1, [True] * 3,
        ),
        "aten::native_layer_norm": (tensor(2, 3), [3], tensor(3), tensor(3), 1e-5),
        "aten::native_layer_norm_backward": (
            tensor(2, 3), tensor(2, 3), [3], tensor(2, 1), tensor(2, 1), tensor(3), tensor(3), [True] * 3,
        ),
        "aten::permute": (tensor(2, 3), [1, 0]),
        "aten::reflection_pad1d": (tensor(2, 3), [1, 1]),
        "aten::reflection_pad2d": (IMAGE, [1, 1, 1, 1]),
        "aten::reflection_pad3d": (VOLUME, [1] * 6),
        "aten::repeat": (tensor(2, 3), [1, 2]),
        "aten::replication_pad2d": (IMAGE, [1, 1, 1, 1]),
        "aten::replication_pad3d": (VOLUME, [1] * 6),
        "aten::select_scatter": (tensor(2, 3), tensor(3), 0, 1),
        "aten::split_with_sizes": (tensor(2, 3), [1, 1]),
        "aten::squeeze.dims": (tensor(2, 3), [0]),
        "aten::topk": (tensor(2, 3), 1),
        "aten::upsample_bilinear2d.vec": (IMAGE, [8, 8], False, None),
        "aten::upsample_nearest2d.vec": (IMAGE, [8, 8], None),
        "aten::view": (tensor(2, 3), [3, 2]),
    }
)  # fmt: skip

STRINGS = MappingProxyType({"rounding_mode": ("floor", "trunc", None), "reduce": ("sum", "mean", "amax")})
SCALARS = (True, 2, 1.5)


def core_operators() -> list[OpOverload]:
    """Return the functional core ATen operators that take or return tensors, by name."""
    # torch's namespaces list only what was asked for so far
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    found = []
    for name, _, overload in (each.partition(".") for each in names):
        op = getattr(getattr(torch.ops.aten, name), overload or "default")
        if torch.Tag.core in op.tags and not op._schema.is_mutable:
            found.append(op)
    return sorted(found, key=full_name)


def call_variants(op: OpOverload) -> Iterator[dict[str, Any]]:
    """Yield calls of an operator as argument name to value, with a `Slot` for each tensor.

    They differ in the kinds of literals, in dtypes that are arguments, in which optional tensors are given, and for
    pointwise operators in which tensors have no dimensions: dtypes are promoted by all of that.
    """
    given = CALLS.get(full_name(op))
    arguments = op._schema.arguments
    choices: dict[str, Sequence[Any]] = {}
    for position, argument in enumerate(arguments):
        if given is not None and position < len(given):
            value = given[position]
            choices[argument.name] = [value, None] if str(argument.type) == "Optional[Tensor]" else [value]
        elif argument.name == "dtype":
            choices[argument.name] = [None, *REGULAR_DTYPES]
        elif str(argument.real_type) in ("number", "Optional[number]") and not has_default(argument):
            choices[argument.name] = SCALARS
        elif argument.name in STRINGS and op.namespace == "aten":
            choices[argument.name] = STRINGS[argument.name]
        elif full_name(op) == "aten::clamp":
            choices[argument.name] = [tensor(2, 3)] if argument.name == "self" else [*SCALARS, None]
        elif not has_default(argument):
            choices[argument.name] = [default_for(argument)]
    for values in product(*choices.values()):
        call = dict(zip(choices, values, strict=True))
        yield call
        yield from rank_variants(op, call)


def has_default(argument: Any) -> bool:
    """Return whether a call may leave an argument out."""
    return bool(argument.has_default_value())


def default_for(argument: Any) -> Any:
    """Return an argument of two-dimensional calls by its type."""
    kind = str(argument.real_type)
    if is_tensor_type(argument.type):
        return tensor(2, 3)
    plain = {"bool": False, "float": 0.5, "Optional[int]": None, "Optional[bool]": True, "number": 2, "str": "none"}
    if kind in plain:
        return plain[kind]
    if kind in ("int", "SymInt"):
        return 2 if argument.name == "n" else 0
    return [2, 3] if argument.name == "size" else [0]


def rank_variants(op: OpOverload, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a pointwise call with tensors without dimensions in the place of some, not all, of its tensors."""
    names = [name for name, value in call.items() if isinstance(value, Slot)]
    if torch.Tag.pointwise not in op.tags or len(names) < 2:
        return
    for flat in product([False, True], repeat=len(names)):
        if any(flat) and not all(flat):
            changed = {name: replace(call[name], shape=()) for name, yes in zip(names, flat, strict=True) if yes}
            yield {**call, **changed}
