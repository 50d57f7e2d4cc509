"""The operations that ExecuTorch's portable kernels take: kernels in the runtime itself, without a delegate.

An unsuitable call gives an error or other numbers than eager, or ends the process. Calls found to be unsuitable are
left outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hatch_lower.backends.engine_partitioner import INTEGERS, ZERO_FACTOR, complete_arguments, why_not_tensors
from hatch_lower.backends.executorch.run import extension
from hatch_lower.backends.executorch.sizes import VIEWS, aten_names, numbers_of, why_not_size_numbers, why_not_view
from hatch_lower.backends.partition_copy import REMAINDERS, is_floored
from hatch_lower.exir.graph.nodes import MAY_BE_ZERO, Ranges, may_be_zero, result_tensors
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.runtime.torch_private.operators import schema_of

NUMBERS = frozenset({torch.float32, *INTEGERS})
CAST = "dim_order_ops::_to_dim_order_copy.out"  # ExecuTorch's replacement of `aten._to_copy`

# kept whole for XNNPACK; ExecuTorch decomposes them into operators with kernels
WHOLE = aten_names("hardswish.default linear.default max_pool2d.default prelu.default")

# Their kernels may give a number where eager gives NaN, or the other way round: always, or where an argument is this.
NAN_LOSING: Mapping[str, tuple[str, object] | None] = {
    "aten._cdist_forward.default": ("p", 0.0),
    "aten.gelu.default": ("approximate", "none"),
    "aten.grid_sampler_2d.default": None,
    "aten.max_pool2d.default": None,
    "aten.max_pool2d_with_indices.default": None,
    "aten.pow.Tensor_Scalar": ("exponent", 0.5),
    "aten.sign.default": None,
}

# Their kernels end the process where a tensor has no elements.
NEVER_EMPTY = aten_names("amax.default amin.default")

# Their kernels give an error where a result is smaller than its reserved memory.
NEVER_DYNAMIC = aten_names("_upsample_bilinear2d_aa.default empty.memory_format")

# Their kernels give an error for a tensor without dimensions, or end the process.
NEVER_SCALAR = aten_names("cumsum.default sum.dim_IntList unfold.default")

# Their kernels take indices of 64 bits.
LONG_INDICES = aten_names("gather.default scatter.src scatter.value scatter_add.default")

# Their kernels compute integers as float64: int64 with 53 bits, and powers without wrapping around.
ROUNDING = aten_names("div.Tensor_mode div.Scalar_mode fmod.Tensor fmod.Scalar sum.dim_IntList")
POWERS = aten_names("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar")

POOLS = aten_names("_adaptive_avg_pool2d.default avg_pool2d.default max_pool2d.default max_pool2d_with_indices.default")

Sizes = Sequence[int | torch.SymInt]


def portable_kernels() -> frozenset[str]:
    # operators that ExecuTorch's runtime can run without a delegate
    return frozenset(extension()._get_operator_names())


def why_not_portable(node: Node, copy: Node, kernels: frozenset[str], ranges: Ranges, *, finite: bool) -> str:
    target = torch_operator(node.target)
    name = str(target)
    if torch.Tag.nondeterministic_seeded in target.tags:
        return f"`{name}` draws random numbers, and another library would draw others than eager"
    if schema_of(target).is_mutable:
        return f"`{name}` changes its input"
    values = [value for source in (node, *node.all_input_nodes) for value in result_tensors(source)]
    # for a tensor without elements, the number of nonzero elements is known
    sized_by_contents = torch.Tag.data_dependent_output in target.tags or name == "aten.nonzero.default"
    if sized_by_contents or any(free_unbacked_symbols(value) for value in values):
        return f"`{name}` has a size that depends on its input's contents"
    wanted = CAST if name == "aten._to_copy.default" else None
    if wanted is None and name not in WHOLE and hasattr(copy.target, "to_out_variant"):
        try:
            variant = copy.target.to_out_variant()
        except RuntimeError:
            return f"ExecuTorch has no variant of `{name}` that writes into given memory"
        wanted = f"{schema_of(variant).name}.{schema_of(variant).overload_name}"
    if wanted not in kernels and name not in WHOLE:
        return f"ExecuTorch has no kernel for `{name}`"
    reason = why_not_tensors(node, NUMBERS, unbacked=True)
    if not reason and name in VIEWS and list(numbers_of(copy)):
        return why_not_view(node, ranges)
    return reason or why_not_size_numbers(copy, ranges) or why_not_kernel(node, ranges, finite=finite)


def why_not_kernel(node: Node, ranges: Ranges, *, finite: bool) -> str:
    name = str(torch_operator(node.target))
    given = complete_arguments(node)
    kernel = f"ExecuTorch's kernel for `{name}`"
    if name == "aten.max_pool2d_with_indices_backward.default":
        return f"{kernel} adds to uninitialized memory"
    if is_floored(node) and name not in REMAINDERS:
        return f"{kernel} rounds a quotient down after rounding may have reached the next whole number"
    if not finite and loses_nan(node):
        return f"{kernel} gives other results than eager for NaN or infinity, and `finite-only` is false"
    if name == "aten.addmm.default" and 0 in (given["alpha"], given["beta"]):
        return ZERO_FACTOR
    if name == "aten.narrow_copy.default" and given["dim"] < 0:
        return f"{kernel} counts no dimension from the end"
    if name == "aten.constant_pad_nd.default" and any(isinstance(size, int) and size < 0 for size in given["pad"]):
        return f"{kernel} can only add elements, not remove any"
    if name in NEVER_DYNAMIC and not all(isinstance(size, int) for size in node.meta["val"].shape):
        return f"{kernel} gives no size that is known at run time only"
    tensors = [tensor for source in node.all_input_nodes for tensor in result_tensors(source)]
    if name == "aten.cat.default" and len({tensor.dtype for tensor in tensors}) > 1:
        return f"{kernel} takes tensors of a single type only"
    if name in LONG_INDICES and given["index"].meta["val"].dtype != torch.int64:
        return f"{kernel} takes indices of the type int64 only"
    if name in REMAINDERS and not node.meta["val"].is_floating_point():
        return f"{kernel} gives integers the sign of the dividend, and eager that of the divisor"
    if name in ROUNDING and any(tensor.dtype == torch.int64 for tensor in tensors):
        return f"{kernel} computes int64 with the digits of float64"
    if name in POWERS and not node.meta["val"].is_floating_point():
        return f"{kernel} does not let integers wrap around"
    return why_not_operand(name, kernel, tensors[0].shape, given, ranges) if tensors else ""


def why_not_operand(name: str, kernel: str, sizes: Sizes, given: Mapping[str, Any], ranges: Ranges) -> str:
    if name in NEVER_SCALAR and not sizes and given.get("dim", 0) != []:
        return f"{kernel} takes no tensor without dimensions"
    if name == "aten.unbind_copy.int" and len(sizes) == 1:
        return f"{kernel} gives no tensors without dimensions"
    if name == "aten.convolution.default" and len(sizes) not in (3, 4):
        return f"{kernel} takes tensors with three and four dimensions only"
    if name in NEVER_EMPTY:
        return why_not_empty(kernel, sizes, ranges)
    if name == "aten._log_softmax.default" and sizes:
        # the dimensions before may be empty
        return why_not_empty(kernel, sizes[given["dim"] :], ranges)
    if name in POOLS and len(sizes) == 3:
        return why_not_empty(kernel, sizes[:1], ranges)
    if name == "aten.var_mean.correction":
        return why_not_mean(kernel, sizes, given)
    return ""


def why_not_mean(kernel: str, sizes: Sizes, given: Mapping[str, Any]) -> str:
    reduced = [sizes[dim] for dim in given["dim"] or range(len(sizes))] if sizes else []
    correction = 1 if given["correction"] is None else given["correction"]
    if all(isinstance(size, int) for size in reduced) and math.prod(map(int, reduced)) > correction:
        return ""
    return f"{kernel} gives no mean of so few elements that they have no variance"


def why_not_empty(kernel: str, sizes: Sizes, ranges: Ranges) -> str:
    empty = [size for size in sizes if may_be_zero(size, ranges)]
    if not empty:
        return ""
    known = any(isinstance(size, int) for size in empty)
    return f"{kernel} takes no tensor without elements" + ("" if known else f", and {MAY_BE_ZERO}")


def loses_nan(node: Node) -> bool:
    name = str(torch_operator(node.target))
    if name not in NAN_LOSING or not any(tensor.is_floating_point() for tensor in result_tensors(node)):
        return False
    argument = NAN_LOSING[name]
    return argument is None or complete_arguments(node)[argument[0]] == argument[1]
