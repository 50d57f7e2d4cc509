"""ATen operators that a plan may call on NumPy arrays: views, copies, sizes, assertions, conversions, `gather`.

Each function has the parameters of its ATen overload, with the same order, names and meaning. A memory format is the
plan's `Special`. Arguments that torch refuses raise the same classes of errors as in torch.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hatch_lower.format.arguments import Special
from hatch_lower.format.graph import OpCall
from hatch_lower.runtime.arrays import ArrayOperator

Array: TypeAlias = "np.ndarray[Any, Any]"

# orders of dimensions in memory, from the outermost to the innermost
MEMORY_ORDERS = {"channels_last": (0, 2, 3, 1), "channels_last_3d": (0, 2, 3, 4, 1)}


def view(self: Array, size: Sequence[int]) -> Array:
    found = reshape(self, size)
    if found.size and not self.flags.c_contiguous and not np.may_share_memory(found, self):
        msg = f"view of sizes {list(size)} is not possible over sizes {self.shape} and strides {self.strides}"
        raise RuntimeError(msg)
    return found


def reshape(self: Array, shape: Sequence[int]) -> Array:
    if any(extent < -1 for extent in shape):  # NumPy would infer the size for any negative number
        raise RuntimeError(f"invalid shape dimension in {list(shape)}")
    return self.reshape(tuple(shape))


def permute(self: Array, dims: Sequence[int]) -> Array:
    return np.transpose(self, tuple(dims))


def transpose(self: Array, dim0: int, dim1: int) -> Array:
    one, other = normalize_dimension(self, dim0), normalize_dimension(self, dim1)
    return self.swapaxes(one, other) if self.ndim else self


def t(self: Array) -> Array:
    if self.ndim > 2:
        raise RuntimeError(f"t() takes at most two dimensions, and is given {self.ndim}")
    turned: Array = self.T
    return turned


def unsqueeze(self: Array, dim: int) -> Array:
    return np.expand_dims(self, dim)


def squeeze(self: Array) -> Array:
    return self.squeeze()


def squeeze_dim(self: Array, dim: int) -> Array:
    return squeeze_dims(self, (dim,))


def squeeze_dims(self: Array, dim: Sequence[int]) -> Array:
    places = [normalize_dimension(self, each) for each in dim]
    if len(set(places)) != len(places):
        raise RuntimeError(f"a dimension appears twice in {list(dim)}")
    return self.squeeze(tuple(each for each in places if self.ndim and self.shape[each] == 1))


def expand(self: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    new = len(size) - self.ndim
    if new < 0 or any(extent < 0 for extent in size[:new]) or any(extent < -1 for extent in size):
        raise RuntimeError(f"sizes {self.shape} cannot be expanded to {list(size)}")
    shape, strides = list(size[:new]), [0] * new
    for extent, own, step in zip(size[new:], self.shape, self.strides, strict=True):
        if extent not in (-1, own) and own != 1:
            raise RuntimeError(f"sizes {self.shape} cannot be expanded to {list(size)}")
        shape.append(own if extent == -1 else extent)
        strides.append(step if extent in (-1, own) else 0)
    # not `broadcast_to`, which returns a read-only view
    return as_strided(self, shape, strides)


def slice_tensor(self: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    if step <= 0:
        raise RuntimeError(f"slice step must be positive, not {step}")
    return self[(slice(None),) * dimension(self, dim) + (slice(start, end, step),)]


def select(self: Array, dim: int, index: int) -> Array:
    # with the ellipsis, NumPy returns a 0-d array instead of a scalar
    return self[(slice(None),) * dimension(self, dim) + (index, ...)]


def split(self: Array, split_size: int, dim: int = 0) -> list[Array]:
    extent = self.shape[dimension(self, dim)]
    if split_size < 0 or (split_size == 0 and extent):
        raise RuntimeError(f"split_size {split_size} for a dimension of {extent}")
    starts = range(0, extent, split_size) if extent else range(1)
    return [slice_tensor(self, dim, start, start + split_size) for start in starts]


def split_with_sizes(self: Array, split_sizes: Sequence[int], dim: int = 0) -> list[Array]:
    extent = self.shape[dimension(self, dim)]
    if sum(split_sizes) != extent or any(size < 0 for size in split_sizes):
        raise RuntimeError(f"split_sizes {list(split_sizes)} for a dimension of {extent}")
    parts, start = [], 0
    for size in split_sizes:
        parts.append(slice_tensor(self, dim, start, start + size))
        start += size
    return parts


def unbind(self: Array, dim: int = 0) -> list[Array]:
    return [select(self, dim, index) for index in range(self.shape[dimension(self, dim)])]


def alias(self: Array) -> Array:
    return self


def clone(self: Array, *, memory_format: Special | None = None) -> Array:
    name = "preserve_format" if memory_format is None else memory_format.name
    if name == "contiguous_format":
        return copy_in_order(self, range(self.ndim))
    if name == "preserve_format":
        return copy_in_order(self, dense_order(self))
    if self.ndim != len(MEMORY_ORDERS[name]):
        raise RuntimeError(f"{name} of {self.ndim} dimensions")
    return copy_in_order(self, MEMORY_ORDERS[name])


def to_copy(self: Array, *, dtype: np.dtype[Any], memory_format: Special | None = None, **_: object) -> Array:
    with np.errstate(all="ignore"):  # as torch, without a warning of numbers that become infinite
        copy: Array = clone(self, memory_format=memory_format).astype(dtype, order="K", copy=False)
    return copy


def gather(self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    if index.dtype.kind != "i" or self.ndim != index.ndim:
        raise RuntimeError(f"an index of {index.dtype} with {index.ndim} dimensions for {self.ndim}")
    dim = normalize_dimension(self, dim)
    if not self.ndim:
        return gather(self[None], 0, index[None])[0, ...]
    if any(own < wanted for axis, (own, wanted) in enumerate(zip(self.shape, index.shape, strict=True)) if axis != dim):
        raise RuntimeError(f"an index of the sizes {index.shape} for {self.shape}")
    if index.size and not (index.min() >= 0 and index.max() < self.shape[dim]):  # NumPy would count from the end
        raise RuntimeError(f"an index between {index.min()} and {index.max()} for {self.shape[dim]} elements")
    read = self[tuple(slice(None) if axis == dim else slice(size) for axis, size in enumerate(index.shape))]
    found: Array = np.take_along_axis(read, index, dim)
    return found


def full(size: Sequence[int], fill_value: object, *, dtype: np.dtype[Any], **_: object) -> Array:
    return np.full(tuple(size), fill_value, dtype)


def sym_size(self: Array, dim: int) -> int:
    size: int = self.shape[normalize_dimension(self, dim)]
    return size


def sym_stride(self: Array, dim: int) -> int:
    step: int = self.strides[normalize_dimension(self, dim)]
    return step // self.itemsize


def sym_numel(self: Array) -> int:
    return self.size


def item(self: Array) -> object:
    if self.size != 1:
        raise RuntimeError(f"an array of {self.size} elements is no number")
    return self.item()


def assert_scalar(self: object, assert_msg: str) -> None:
    if not self:
        raise RuntimeError(assert_msg)


def assert_array(self: Array, assert_msg: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    assert_scalar(item(self), assert_msg)


def check_range(size: int, *, min: int | None = None, max: int | None = None) -> None:
    if (min is not None and size < min) or (max is not None and size > max):
        raise RuntimeError(f"{size} is not between {min} and {max}")


def check_size(size: int, *, min: int | None = None, max: int | None = None) -> None:
    check_range(size, min=0 if min is None else min, max=max)


def normalize_dimension(array: Array, dim: int) -> int:
    """Return a dimension as a number from 0; as in torch, a 0-d array counts as 1-d here."""
    count = max(1, array.ndim)
    if not -count <= dim < count:
        raise IndexError(f"dimension {dim} of {array.ndim}")
    return dim % count


def dimension(array: Array, dim: int) -> int:
    if not array.ndim:
        raise IndexError(f"dimension {dim} of 0")
    return normalize_dimension(array, dim)


def dense_order(array: Array) -> list[int]:
    """Return torch's order of dimensions, outermost first, for a copy with `preserve_format`."""
    shape, strides = array.shape, array.strides
    inward = list(range(array.ndim - 1, -1, -1))
    if array.flags.c_contiguous:
        return inward[::-1]
    dense = sorted((each for each in inward if shape[each] != 1), key=lambda each: (strides[each], shape[each]))
    steps = itertools.accumulate((shape[each] for each in dense), operator.mul, initial=array.itemsize)
    if array.size and all(strides[each] == step for each, step in zip(dense, steps, strict=False)):
        return [*(each for each in range(array.ndim) if shape[each] == 1), *reversed(dense)]
    # with gaps or overlaps: insertion sort by strides, in which dimensions of stride 0 keep their place, as in torch
    for index in range(1, array.ndim):
        current = index
        for other in range(index - 1, -1, -1):
            inner, outer = inward[other], inward[current]
            if strides[inner] == 0 or strides[outer] == 0:
                continue
            if strides[inner] < strides[outer]:
                break
            if strides[inner] > strides[outer] or shape[inner] > shape[outer]:
                inward[other], inward[current] = outer, inner
                current = other
    return inward[::-1]


def copy_in_order(array: Array, order: Sequence[int]) -> Array:
    back = sorted(range(len(order)), key=order.__getitem__)
    copy: Array = array.transpose(order).copy(order="C")
    return np.transpose(copy, back)


def copied(function: Callable[..., Any]) -> Callable[..., Any]:
    def copy(self: Array, *args: Any, **kwargs: Any) -> Any:
        found = function(self, *args, **kwargs)
        return [each.copy(order="C") for each in found] if isinstance(found, list) else found.copy(order="C")

    return copy


# views with a twin that returns copies: `permute`, `permute_copy`
VIEWS: Mapping[str, Callable[..., Any]] = {
    "alias.default": alias,
    "detach.default": alias,
    "expand.default": expand,
    "permute.default": permute,
    "select.int": select,
    "slice.Tensor": slice_tensor,
    "split.Tensor": split,
    "split_with_sizes.default": split_with_sizes,
    "squeeze.default": squeeze,
    "squeeze.dim": squeeze_dim,
    "squeeze.dims": squeeze_dims,
    "t.default": t,
    "transpose.int": transpose,
    "unbind.int": unbind,
    "unsqueeze.default": unsqueeze,
}

NUMPY_OPERATORS: Mapping[str, ArrayOperator] = MappingProxyType(
    {
        **{f"aten.{name}": ArrayOperator(function, may_alias=True) for name, function in VIEWS.items()},
        **{f"aten.{name.replace('.', '_copy.')}": ArrayOperator(copied(function)) for name, function in VIEWS.items()},
        "aten._assert_async.default": ArrayOperator(assert_array),
        "aten._assert_async.msg": ArrayOperator(assert_array),
        "aten._assert_scalar.default": ArrayOperator(assert_scalar),
        "aten._local_scalar_dense.default": ArrayOperator(item),
        "aten._to_copy.default": ArrayOperator(to_copy),
        "aten._unsafe_view.default": ArrayOperator(view, may_alias=True),
        "aten.clone.default": ArrayOperator(clone),
        "aten.full.default": ArrayOperator(full),
        "aten.gather.default": ArrayOperator(gather),
        "aten.lift_fresh.default": ArrayOperator(alias, may_alias=True),
        "aten.lift_fresh_copy.default": ArrayOperator(copied(alias)),
        "aten.reshape.default": ArrayOperator(reshape, may_alias=True),
        "aten.sym_constrain_range.default": ArrayOperator(check_range),
        "aten.sym_constrain_range_for_size.default": ArrayOperator(check_size),
        "aten.sym_numel.default": ArrayOperator(sym_numel),
        "aten.sym_size.int": ArrayOperator(sym_size),
        "aten.sym_stride.int": ArrayOperator(sym_stride),
        "aten.view.default": ArrayOperator(view, may_alias=True),
        "aten.view_copy.default": ArrayOperator(copied(reshape)),
    }
)

CONVERSION = "aten._to_copy.default"
# NumPy rounds conversions to other dtypes otherwise than torch, or has no such dtype
RESULTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        CONVERSION: frozenset({"bool", "float32", "float64"}),
        "aten.full.default": frozenset({"bool", "float32", "float64", "int32", "int64"}),
    }
)


def runs_on_numpy(call: OpCall) -> bool:
    """Return whether a call of a plan computes on NumPy arrays what it computes on tensors."""
    if call.op not in RESULTS:
        return call.op in NUMPY_OPERATORS
    dtype, layout = (call.kwargs.get(name) for name in ("dtype", "layout"))
    is_strided = layout is None or (isinstance(layout, Special) and layout.name == "strided")
    return is_strided and isinstance(dtype, Special) and dtype.name in RESULTS[call.op]
