"""Attention as ONNX's own operator `Attention`, which ONNX Runtime computes without transposed copies of heads.

The operator is newer than the other operators of a model. ONNX Runtime's kernel takes float32 and a positive scale,
needs elements, and repeats neither batches, heads, nor rows and columns of a mask. A row without a visible key is 0 in
eager and from ONNX Runtime 1.32 on, and NaN in 1.23. The kernel takes the lowest number in a mask of floats for minus
infinity, where eager does not: only masks of Booleans are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
from onnxscript import BOOL, FLOAT
from onnxscript.onnx_opset import opset20, opset23
from torch.fx import Graph, Node

from hatch_lower.exir.graph.nodes import Ranges, may_be_zero
from hatch_lower.exir.graph.operators import named_arguments, torch_operator

ATTENTION_OPSET = 23
HEADS_FIRST = (0, 2, 1, 3)  # order of dimensions between [batch, length, heads, …] and [batch, heads, length, …]

op: Any = opset20
newer: Any = opset23
Value: TypeAlias = Any


def attend_once(
    query: FLOAT,
    key: FLOAT,
    value: FLOAT,
    attn_mask: BOOL | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    if attn_mask is None:
        return newer.Attention(query, key, value, is_causal=int(is_causal), **options)[0]
    shape: Any = attn_mask.shape
    rank, whole = len(shape), attn_mask
    lengths: list[Any] = [each.shape for each in (query, key)]
    if list(shape)[-2:] != [each[2] for each in lengths]:
        rows, columns = (op.Shape(each, start=2, end=3) for each in (query, key))
        whole = op.Expand(whole, op.Concat(*([op.Constant(value_ints=[1])] * (rank - 2)), rows, columns, axis=0))
    if rank == 3:
        whole = op.Unsqueeze(whole, op.Constant(value_ints=[0]))
    result = newer.Attention(query, key, value, whole, **options)[0]
    # the reduction and the conversions are the same in all layers that share a mask
    visible = op.ReduceMax(op.Cast(attn_mask, to=ir.DataType.INT32), op.Constant(value_ints=[-1]), keepdims=1)
    return op.Where(op.Cast(visible, to=ir.DataType.BOOL), result, op.Constant(value_float=0.0))


def choose_attention(graph: Graph, ranges: Ranges) -> bool:
    """Let `attend_once` translate the calls of attention for which the kernel is right; return whether any is there."""
    chosen = [node for node in graph.nodes if node.op == "call_function" and is_attended(node, ranges)]
    for node in chosen:
        node.target = attend_once
    return bool(chosen)


def is_attended(node: Node, ranges: Ranges) -> bool:
    if torch_operator(node.target) is not torch.ops.aten.scaled_dot_product_attention.default:
        return False
    given = named_arguments(node)
    query, key, value = (given[name].meta["val"] for name in ("query", "key", "value"))
    mask = given.get("attn_mask")
    if given.get("dropout_p") or given.get("enable_gqa") or any(each.ndim != 4 for each in (query, key, value)):
        return False
    if mask is not None and (mask.meta["val"].dtype != torch.bool or not 2 <= mask.meta["val"].ndim <= 4):
        return False
    scale = given.get("scale")
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        return False
    if any(len({str(each.shape[place]) for each in (query, key, value)}) > 1 for place in (0, 1)):
        return False
    # ONNX Runtime 1.23 shows a single query all keys
    square = str(query.shape[2]) == str(key.shape[2])
    return (
        query.dtype == torch.float32
        and (square or not given.get("is_causal"))
        and not any(may_be_zero(size, ranges) for each in (query, key, value) for size in each.shape)
    )


def join_heads(graph: ir.Graph) -> None:
    """Let attention read the heads where a projection wrote the heads, side by side."""
    for node in list(graph):
        if node.op_type != "Attention" or node.domain:
            continue
        node.resize_outputs(1)  # the others are the keys and values again, and the products
        sources = [split_heads(value) for value in node.inputs[:3]]
        found = attention_results(node)
        if found is None or any(source is None for source in sources):
            continue
        result, turns = found
        counts: list[Any] = [source.shape[2] for source in sources if source is not None and source.shape is not None]
        for position, source in enumerate(sources):
            if source is not None:
                node.replace_input_with(position, write_joined(node, source))
        node.attributes["q_num_heads"] = ir.AttrInt64("q_num_heads", counts[0])
        node.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", counts[1])
        write_split(node, result, turns)


def split_heads(value: ir.Value | None) -> ir.Value | None:
    """Return the value [batch, length, heads, size] that a transpose makes [batch, heads, length, size]."""
    producer = None if value is None else value.producer()
    if producer is None or not exchanges_heads(producer):
        return None
    source = producer.inputs[0]
    known = source is not None and source.shape is not None and all(isinstance(size, int) for size in source.shape[2:])
    return source if known else None


def exchanges_heads(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and tuple(node.attributes.get_ints("perm", ())) == HEADS_FIRST


def attention_results(node: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """Return the result of attention, after rows are cleared, and the transposes that alone use the result."""
    (result,) = node.outputs
    users = [user for user, _ in result.uses()]
    if len(users) == 1 and clears_rows(users[0], result) and not result.is_graph_output():
        (result,) = users[0].outputs
        users = [user for user, _ in result.uses()]
    turns = list(filter(exchanges_heads, users))
    alone = len(turns) == len(users) and not result.is_graph_output()
    return (result, turns) if alone and turns and turns[0].outputs[0].shape is not None else None


def clears_rows(node: ir.Node, value: ir.Value) -> bool:
    """Return whether a node clears rows of a value, the same rows in all heads."""
    if node.op_type != "Where" or node.inputs[1] is not value:
        return False
    condition, other = (None if each is None else each.shape for each in (node.inputs[0], node.inputs[2]))
    if condition is None or other is None or len(other) or len(condition) < 2:
        return False
    return condition[-1] == 1 and (len(condition) == 2 or condition[-3] == 1)


def write_joined(node: ir.Node, source: ir.Value) -> ir.Value:
    """Return the heads [batch, length, heads, size] as a value [batch, length, heads * size]."""
    shape, producer = source.shape, source.producer()
    before = producer.inputs[0] if producer is not None and producer.op_type == "Reshape" else None
    if before is not None and before.shape is not None and before.shape == joined_shape(shape):
        return before
    return write_before(node, "Reshape", source, [0, 0, -1])


def joined_shape(heads: Any) -> ir.Shape:
    batch, length, count, size = heads
    return ir.Shape([batch, length, count * size])


def write_split(node: ir.Node, result: ir.Value, turns: Sequence[ir.Node]) -> None:
    """Let the result of attention, and the rows that are cleared, have the heads side by side."""
    heads: Any = turns[0].outputs[0].shape
    last = result.producer()
    if last is not None and last is not node:
        condition: Any = last.inputs[0]
        rank = len(condition.shape)
        if rank > 2:
            last.replace_input_with(0, write_before(last, "Squeeze", condition, [rank - 3]))
    joined = joined_shape(heads)
    node.outputs[0].shape = result.shape = joined
    for turn in turns:
        (turned,) = turn.outputs
        for user, _ in list(turned.uses()):
            (reshaped,) = user.outputs[:1]
            if user.op_type == "Reshape" and reshaped.shape == joined and not reshaped.is_graph_output():
                reshaped.replace_all_uses_with(result)
        split = write_before(turn, "Reshape", result, [0, 0, *list(heads)[2:]])
        split.shape, split.type = turned.shape, turned.type
        turned.replace_all_uses_with(split, replace_graph_outputs=True)


def write_before(node: ir.Node, op_type: str, value: ir.Value, numbers: list[int]) -> ir.Value:
    """Write an operation on a value and a list of numbers before a node, for the same operation of the program."""
    graph = node.graph
    assert graph is not None
    constant = ir.node("Constant", [], {"value_ints": numbers})
    written = ir.node(op_type, [value, constant.outputs[0]], metadata_props=dict(node.metadata_props))
    graph.insert_before(node, [constant, written])
    return written.outputs[0]
