"""Which operations inductor compiles to native code that stands alone and gives eager's numbers."""

from __future__ import annotations

from functools import cache

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hatch_lower.backends.aoti.exact import STD, STD_MEAN
from hatch_lower.backends.aoti.layers import why_not_quantized
from hatch_lower.backends.aoti.sizes import why_not_sizes
from hatch_lower.backends.engine_partitioner import INTEGERS, why_not_target, why_not_tensors
from hatch_lower.exir.graph.nodes import result_tensors
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.runtime.torch_private.inductor import is_generated, is_taken_apart_or_called
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name, has_composite_kernel, schema_of

DTYPES = frozenset({*INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64})

# Composites that inductor lowers at least as well whole as decomposed; inductor matches attention only when whole, and
# a decomposed standard deviation has lost its digits
KEPT_OPERATORS: tuple[OpOverload, ...] = (
    torch.ops.aten.scaled_dot_product_attention.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.layer_norm.default,
    torch.ops.aten.group_norm.default,
    torch.ops.aten.softmax.int,
    torch.ops.aten.log_softmax.int,
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv2d.padding,
    torch.ops.aten.conv3d.default,
    torch.ops.aten.silu.default,
    torch.ops.aten.hardswish.default,
    STD,
    STD_MEAN,
)


def is_symbolic(node: Node) -> bool:
    """Return whether a node computes a size or a condition on sizes, and no tensor."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def why_not_compiled(node: Node, exclude: frozenset[str]) -> str:
    target = torch_operator(node.target)
    reason = why_not_target(node, exclude)
    if not reason and isinstance(target, OpOverload):
        reason = why_not_operator(target, node)
    elif not reason and not is_symbolic(node):
        reason = f"`{getattr(target, '__name__', target)}` is not an operator"
    return reason or why_not_tensor_values(node)


def why_not_operator(op: OpOverload, node: Node) -> str:
    name = str(op)
    if is_random(op, node):
        return f"`{name}` draws random numbers, and compiled code would draw others than eager"
    if torch.Tag.data_dependent_output in op.tags or any(
        free_unbacked_symbols(tensor) for tensor in result_tensors(node)
    ):
        return f"the result of `{name}` has a size that depends on its input's contents"
    if base_name(op) == "_assert_async":
        return f"`{name}` checks contents, which the program does itself"
    if schema_of(op).is_mutable:
        return f"`{name}` changes its input"
    if op is torch.ops.aten.view.dtype:
        return f"inductor cannot write into views of the results of `{name}`"
    if op is torch.ops.aten.pow.Scalar and not node.meta["val"].is_floating_point():
        return f"inductor's `{name}` gives floating-point numbers for integers"
    if op is torch.ops.aten.scatter.value_reduce:
        return f"inductor's `{name}` makes fewer values than there may be places"
    if base_name(op) in ("any", "all") and any(tensor.dtype is torch.uint8 for tensor in result_tensors(node)):
        return f"inductor's `{name}` gives Booleans for uint8"
    if has_negative_factor(op, node):
        return f"inductor passes negative factors of `{name}` as uint8"
    if op.namespace == "quantized_decomposed" and has_native_code(op) and (reason := why_not_quantized(node)):
        return reason
    if reason := why_not_sizes(node):
        return reason
    if op in KEPT_OPERATORS or (has_native_code(op) and not needs_missing_function(op, node)):
        return ""
    return f"inductor has no native code for `{name}`"


def has_negative_factor(op: OpOverload, node: Node) -> bool:
    # of a product that is added to something, in uint8
    names = {argument.name for argument in schema_of(op).arguments}
    if "beta" not in names or all(tensor.dtype is not torch.uint8 for tensor in result_tensors(node)):
        return False
    given = named_arguments(node)
    factors = (given.get(name) for name in ("alpha", "beta"))
    return any(isinstance(factor, (int, float)) and factor < 0 for factor in factors)


def why_not_tensor_values(node: Node) -> str:
    for source in (node, *node.all_input_nodes):
        value = source.meta.get("val")
        if is_symbolic(source) and (isinstance(value, torch.SymFloat) or free_unbacked_symbols(value)):
            return f"`{source.name}` is a number that is known at run time only"
    return why_not_tensors(node, DTYPES)


def is_random(op: OpOverload, node: Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    names = {argument.name for argument in schema_of(op).arguments}
    given = named_arguments(node)
    # dropout draws no random numbers when switched off
    if "train" in names:
        return given.get("train") is not False
    if "dropout_p" in names:
        return bool(given.get("dropout_p", 0.0))
    return True


def needs_missing_function(op: OpOverload, node: Node) -> bool:
    # inductor would call libtorch in a way that has no C function
    if op is torch.ops.aten.avg_pool1d.default:
        kernel = node.args[1] if len(node.args) > 1 else node.kwargs.get("kernel_size")
        return not isinstance(kernel, (list, tuple)) or any(not isinstance(size, int) or size > 25 for size in kernel)
    return op is torch.ops.aten.median.dim


@cache
def has_native_code(op: OpOverload) -> bool:
    if op.namespace not in ("aten", "prims", "quantized_decomposed"):
        return False
    if is_taken_apart_or_called(op):
        return True
    generated = is_generated(op)
    if generated is not None:
        return generated
    # A composite (`upsample_nearest2d.vec`) becomes the overload that computes the result.
    default = getattr(op.overloadpacket, "default", op)
    return default is not op and has_composite_kernel(op) and has_native_code(default)
