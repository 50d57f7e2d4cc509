"""Products of quantized matrices as products of integers, in place of ONNX Runtime's own, which have faults:

- It rounds the bias of a product between `DequantizeLinear` and `QuantizeLinear` to multiples of the product's scale.
  Written as `MatMulInteger`, which it fuses with the scale and the bias that follow, a product is exact.
- It does not check that a sum of products fits into 32 bits, nor that the scales belong to a dimension of the result.
  Otherwise, an operand is dequantized here by arithmetic that ONNX Runtime does not match.
- A convolution of integers needs an integer bias. ONNX Runtime must not round biases, as it then also rounds float
  weights; so the bias is rounded here.
- Without VNNI, sums of products of signed and unsigned bytes overflow in 16 bits. There ONNX Runtime makes constant
  weights unsigned, and this module makes computed operands unsigned. ONNX Runtime then refuses a model in which two
  products share a weight or a zero point: each product gets its own copy here.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

LONGEST = 1 << 15  # sums of so many products of two bytes do not overflow
BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True, slots=True)
class Factor:
    """A dequantized operand of a product."""

    source: ir.Node  # its `DequantizeLinear`
    integers: ir.Value
    turned: bool  # whether the product reads the operand transposed

    @property
    def shape(self) -> list[object]:
        sizes = list(self.integers.shape or ())
        return [*sizes[:-2], *reversed(sizes[-2:])] if self.turned else [*sizes]

    @property
    def dtype(self) -> ir.DataType | None:
        return self.integers.dtype

    def is_scaled_along(self, dim: int | None) -> bool:
        """Return whether the operand has a single scale, or a scale for each index of a dimension of the product's."""
        scale, zero_point = self.source.inputs[1:3]
        shapes = [None if value is None or value.shape is None else value.shape for value in (scale, zero_point)]
        if all(shape is not None and len(shape) == 0 for shape in shapes):
            return True
        rank = len(self.shape)
        if dim is None or rank < 2 or any(shape is None or len(shape) != 1 for shape in shapes):
            return False
        axis = self.source.attributes.get_int("axis", 1) % rank
        return (rank - 1 - axis if self.turned else axis) == dim % rank


def multiply_integers(graph: ir.Graph, constants: Collection[ir.Value]) -> None:
    """Write products of quantized operands as products of integers; of the inputs, `constants` stand for constants."""
    known = known_at_load(graph, constants)
    for node in list(graph):
        if node.op_type == "MatMulInteger" and node.inputs[1] not in known:
            ProductPlace(graph, node).make_right_unsigned()
        if node.op_type not in ("Gemm", "MatMul", "Conv") or node.domain:
            continue
        left, right = factor_of(node, 0), factor_of(node, 1)
        if left is None or right is None:
            continue
        varies = right.integers not in known
        if node.op_type == "Conv":
            exact = is_convolution_of_integers(left, right) and not varies
            if exact and has_bias(node) and is_quantized(node.outputs[0]):
                ProductPlace(graph, node).round_bias(left, right)
        elif exact := is_product_of_integers(node, left, right) and (not varies or right.is_scaled_along(None)):
            ProductPlace(graph, node).write_product(left, right, varies=varies)
        if not exact:
            ProductPlace(graph, right.source).spell_out()
    separate_operands(graph)


def known_at_load(graph: ir.Graph, constants: Collection[ir.Value]) -> set[ir.Value]:
    """Return the values that no input of a call changes."""
    known = {*graph.initializers.values(), *constants}
    for node in graph:
        # a branch or body also takes values that are no inputs of its node
        has_body = any(attribute.type in BODIES for attribute in node.attributes.values())
        if not has_body and all(value is None or value in known for value in node.inputs):
            known.update(node.outputs)
    return known


def separate_operands(graph: ir.Graph) -> None:
    """Give each product of integers a right operand, and its zero point, that no other has."""
    taken: set[ir.Node | ir.Value] = set()
    for node in list(graph):
        if node.op_type == "MatMulInteger":
            owner, positions = node, (1, 3)
        elif node.op_type == "Conv" and (weight := factor_of(node, 1)) is not None:
            owner, positions = weight.source, (0, 2)
            if owner in taken:
                owner = ProductPlace(graph, node).copy_maker(owner)
                node.replace_input_with(1, owner.outputs[0])
            taken.add(owner)
        else:
            continue
        for position in positions:
            value = owner.inputs[position] if position < len(owner.inputs) else None
            if value is None:
                continue
            if value in taken:
                owner.replace_input_with(position, ProductPlace(graph, owner).copy_value(value))
            taken.add(value)


def factor_of(node: ir.Node, position: int) -> Factor | None:
    value = node.inputs[position]
    turned = bool(node.attributes.get_int(("transA", "transB")[position], 0))
    producer = maker_of(value)
    if producer is not None and producer.op_type == "Transpose" and value_rank(value) == 2:
        producer, turned = maker_of(producer.inputs[0]), not turned
    if producer is None or producer.op_type != "DequantizeLinear" or len(producer.inputs) < 3:
        return None
    integers = producer.inputs[0]
    return None if integers is None else Factor(producer, integers, turned)


def maker_of(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def value_rank(value: ir.Value | None) -> int:
    return 0 if value is None or value.shape is None else len(value.shape)


def is_convolution_of_integers(image: Factor, weight: Factor) -> bool:
    lengths = [length for length in weight.shape[1:] if isinstance(length, int)]
    known = 0 < len(lengths) == len(weight.shape) - 1 and math.prod(lengths) <= LONGEST
    return known and image.is_scaled_along(None) and weight.is_scaled_along(0)


def has_bias(node: ir.Node) -> bool:
    return len(node.inputs) > 2 and node.inputs[2] is not None


def is_quantized(value: ir.Value) -> bool:
    users = [use.node for use in value.uses()]
    if len(users) != 1 or value.is_graph_output():
        return False
    (user,) = users
    return user.op_type == "QuantizeLinear" or (user.op_type in ("Clip", "Relu") and is_quantized(user.outputs[0]))


def is_product_of_integers(node: ir.Node, left: Factor, right: Factor) -> bool:
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return False
    if len(left.shape) < 2 or len(right.shape) < 2 or left.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return False
    length = right.shape[-2]
    return isinstance(length, int) and length <= LONGEST and left.is_scaled_along(None) and right.is_scaled_along(-1)


class ProductPlace:
    """Writes the replacement of a node."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph = graph
        self._node = node

    def spell_out(self) -> None:
        """Dequantize by arithmetic."""
        source = self._node
        rank, axis = value_rank(source.inputs[0]), source.attributes.get_int("axis", 1)
        sizes = self._literal(np.array([-1 if dim == axis % max(rank, 1) else 1 for dim in range(rank)]))
        number, scale, zero_point = (self._add("Cast", value, to=int(ir.DataType.FLOAT)) for value in source.inputs[:3])
        if any(map(value_rank, source.inputs[1:3])):
            scale, zero_point = (self._add("Reshape", value, sizes) for value in (scale, zero_point))
        result = self._add("Mul", self._add("Sub", number, zero_point), scale)
        before = source.outputs[0]
        result.type, result.shape = before.type, before.shape
        ir.convenience.replace_all_uses_with(before, result)

    def write_product(self, left: Factor, right: Factor, *, varies: bool) -> None:
        node = self._node
        first, zero_point = self._unsigned(left)
        second = self._unsigned(right) if varies else (self._turned(right.integers, right), right.source.inputs[2])
        product = self._add("MatMulInteger", first, second[0], zero_point, second[1])
        scale = self._add("Mul", left.source.inputs[1], right.source.inputs[1])
        result = self._add("Mul", self._add("Cast", product, to=int(ir.DataType.FLOAT)), scale)
        if has_bias(node):
            result = self._add("Add", result, node.inputs[2])
        before = node.outputs[0]
        result.type, result.shape = before.type, before.shape
        ir.convenience.replace_nodes_and_values(self._graph, node, [node], [], [before], [result])

    def round_bias(self, image: Factor, weight: Factor) -> None:
        """Round the bias of a convolution to multiples of its products' scale, as an integer convolution needs."""
        scale = self._add("Mul", image.source.inputs[1], weight.source.inputs[1])
        steps = self._add("Round", self._add("Div", self._node.inputs[2], scale))
        integers = self._add("Cast", steps, to=int(ir.DataType.INT32))
        self._node.replace_input_with(2, self._add("DequantizeLinear", integers, scale, axis=0))

    def make_right_unsigned(self) -> None:
        """Replace a product whose right operand is signed without a zero point by an unsigned product."""
        node = self._node
        second = self._shifted(node.inputs[1])
        zero_point = node.inputs[2] if len(node.inputs) > 2 else None
        product = self._add("MatMulInteger", node.inputs[0], second, zero_point, self._literal(np.uint8(128)))
        before = node.outputs[0]
        product.type, product.shape = before.type, before.shape
        ir.convenience.replace_nodes_and_values(self._graph, node, [node], [], [before], [product])

    def copy_maker(self, maker: ir.Node) -> ir.Node:
        attributes = list(maker.attributes.values())
        node = ir.Node("", maker.op_type, maker.inputs, attributes, metadata_props=dict(maker.metadata_props))
        self._graph.insert_before(self._node, node)
        node.outputs[0].type, node.outputs[0].shape = maker.outputs[0].type, maker.outputs[0].shape
        return node

    def copy_value(self, value: ir.Value) -> ir.Value:
        """Return an equal value, which is another constant once ONNX Runtime has loaded the model."""
        if value.const_value is not None:
            return self._literal(value.const_value.numpy(), f"of {len(self._graph.initializers)}")
        maker = value.producer()
        if maker is not None:
            return self.copy_maker(maker).outputs[0]
        return self._add("Reshape", value, self._literal(np.array(list(value.shape or ()), dtype=np.int64)))

    def _unsigned(self, factor: Factor) -> tuple[ir.Value, ir.Value | None]:
        # on the left, since few processors have instructions for two signed operands
        scale, zero_point = factor.source.inputs[1:3]
        if zero_point is None or factor.dtype == ir.DataType.UINT8:
            return self._turned(factor.integers, factor), zero_point
        moved = self._moved(zero_point)
        maker = factor.integers.producer()
        if maker is not None and maker.op_type == "QuantizeLinear" and maker.inputs[2] is not None:
            value = self._add("QuantizeLinear", maker.inputs[0], maker.inputs[1], self._moved(maker.inputs[2]))
        else:
            value = self._add("QuantizeLinear", factor.source.outputs[0], scale, moved)
        value.dtype, value.shape = ir.DataType.UINT8, factor.integers.shape
        return self._turned(value, factor), moved

    def _moved(self, zero_point: ir.Value) -> ir.Value:
        tensor = ir.convenience.get_const_tensor(zero_point)
        if tensor is None:
            return self._shifted(zero_point)
        return self._literal((tensor.numpy().astype(np.int32) + 128).astype(np.uint8))

    def _shifted(self, value: ir.Value | None) -> ir.Value:
        wide = self._add("Cast", value, to=int(ir.DataType.INT32))
        return self._add("Cast", self._add("Add", wide, self._literal(np.int32(128))), to=int(ir.DataType.UINT8))

    def _turned(self, value: ir.Value, factor: Factor) -> ir.Value:
        if not factor.turned:
            return value
        rank = len(factor.shape)
        return self._add("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])

    def _literal(self, number: Any, owner: str = "") -> ir.Value:
        tensor = ir.tensor(np.asarray(number))
        name = f"literal {tensor.dtype.name} {number} {owner}"
        if name not in self._graph.initializers:
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.numpy().shape), const_value=tensor
            )
            self._graph.register_initializer(value)
        return self._graph.initializers[name]

    def _add(self, operator: str, *inputs: ir.Value | None, **attributes: int | list[int]) -> ir.Value:
        node = ir.node(operator, inputs, attributes, metadata_props=dict(self._node.metadata_props))
        self._graph.insert_before(self._node, node)
        return node.outputs[0]
