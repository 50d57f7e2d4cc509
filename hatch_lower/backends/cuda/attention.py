"""Scaled dot-product attention as one call of libtorch.

Eager asks the GPU which kernel to use. A build has no GPU to ask, so the rule is fixed: FlashAttention for float16 and
bfloat16 without a mask, the memory-efficient kernel else, and a formula where neither kernel takes the head size. The
conditions are of torch's `sdp_utils.cpp`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from hatch_lower.backends.partition_copy import memory_order
from hatch_lower.exir.graph.operators import named_arguments

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
HALF = (torch.float16, torch.bfloat16)
LARGEST_FLASH_HEAD = 256
HEADS_INNER = [0, 2, 1, 3]  # both kernels' results: batch, length, heads, head size from the outermost in memory on

Call = Callable[..., Any]  # writes an operation


def choose_kernel(node: Node) -> Any:
    """Return the operator for an attention node; `None` for the formula, which inductor compiles."""
    given = named_arguments(node)
    query, key, value = (given[name].meta["val"] for name in ("query", "key", "value"))
    sizes = {tensor.shape[-1] for tensor in (query, key, value)}
    alike = len({tensor.dtype for tensor in (query, key, value)}) == 1 and query.dim() == key.dim() == value.dim() == 4
    if not alike or given.get("dropout_p") or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    if query.shape[1] != key.shape[1] and given.get("enable_gqa"):
        return None
    mask = given.get("attn_mask")
    is_square = str(query.shape[2]) == str(key.shape[2])
    if query.dtype in HALF and mask is None and len(sizes) == 1 and (is_square or not given.get("is_causal")):
        (size,) = sizes
        if size <= LARGEST_FLASH_HEAD and size % 8 == 0:
            return FLASH
    step = 8 if query.dtype in HALF else 4
    if query.dtype not in (*HALF, torch.float32) or any(size % step for size in sizes):
        return None
    if mask is not None and mask.meta["val"].dtype not in (torch.bool, query.dtype):
        return None
    return EFFICIENT


def write_attention(call: Call, node: Node, kernel: Any, arguments: dict[str, Any]) -> Any:
    """Write an attention node as one call of a kernel; `arguments` are the node's in the copied graph, by name."""
    operands = [arguments[name] for name in ("query", "key", "value")]
    is_causal, scale = bool(arguments.get("is_causal", False)), arguments.get("scale")
    if kernel is FLASH:
        results = call(FLASH, *operands, 0.0, is_causal, False, scale=scale)
    else:
        bias = None if arguments.get("attn_mask") is None else write_bias(call, node, arguments)
        results = call(EFFICIENT, *operands, bias, False, 0.0, is_causal, scale=scale)
    result = call(operator.getitem, results, 0)
    if memory_order(node.meta["val"]) != HEADS_INNER:
        result = call(torch.ops.aten.clone.default, result, memory_format=torch.contiguous_format)
    return result


def write_bias(call: Call, node: Node, arguments: dict[str, Any]) -> Any:
    """Write a mask as the kernel takes it: numbers to add, for each row and column of all heads."""
    aten = torch.ops.aten
    given, mask = named_arguments(node), arguments["attn_mask"]
    query, key = given["query"].meta["val"], given["key"].meta["val"]
    if given["attn_mask"].meta["val"].dtype is torch.bool:
        like = {"dtype": query.dtype, "device": torch.device("cuda", 0)}
        zero, lowest = (call(aten.full.default, [], number, **like) for number in (0.0, float("-inf")))
        mask = call(aten.where.self, mask, zero, lowest)
    sizes = [
        size if isinstance(size := value.shape[dim], int) else call(aten.sym_size.int, arguments[name], dim)
        for name, value, dim in (("query", query, 0), ("query", query, 1), ("query", query, 2), ("key", key, 2))
    ]
    return call(aten.expand.default, mask, sizes)
