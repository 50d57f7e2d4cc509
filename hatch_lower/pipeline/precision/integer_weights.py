"""Weights as integers of 8 or 4 bits, which a method turns into floating point where it reads the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.surgery import attribute_of
from hatch_lower.pipeline.precision.halves import is_in, unused_name
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

aten = torch.ops.aten

GROUP = 32  # neighboring weights of a row that share a scale, in 4 bits
LEAST_ELEMENTS = 1024  # elements of a weight; integers and scales of a smaller weight take as many bytes


def quantize_weights(
    module: GraphModule,
    bits: int,
    *,
    tables_alone: bool,
    kept: Iterable[str],
    state: Collection[str] = (),
    by_index: bool = False,
) -> None:
    """Replace float32 weights of linear layers, convolutions and embeddings by integers with a scale per row.

    `tables_alone` leaves all but the tables of embeddings. `kept` are paths of modules, and `state` names of tensors
    that calls change, without integers. Rows of linear layers and embeddings have 4 bits where `bits` is 4 and their
    length is a multiple of 32; convolutions have 8 bits. `by_index`: tables of integers are read by `aten.index`, for
    ONNX Runtime, and else by `aten.embedding`.
    """
    paths, names = tuple(kept), ConstantNames(module)
    for node in list(module.graph.nodes):
        weight = weight_of(module, node)
        table = weight is not None and weight is node.args[0]
        if weight is None or is_in(node, paths) or (tables_alone and not table) or weight.target in state:
            continue
        values: torch.Tensor = attribute_of(module, str(weight.target)).detach()
        write = packed if bits == 4 and values.dim() == 2 and values.shape[1] % GROUP == 0 else in_bytes
        result = write(WeightMaker(module, node, str(weight.target), names, by_index), values, node if table else None)
        if table:
            node.replace_all_uses_with(result)
            module.graph.erase_node(node)
        else:
            node.replace_input_with(weight, result)
    remove_unread(module)
    module.graph.lint()
    module.recompile()


PLACES = {"embedding": 0, "linear": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1}  # of the weight among the arguments


def weight_of(module: GraphModule, node: Node) -> Node | None:
    """Return the node of an operation's weight, if integers can replace the weight."""
    operator = torch_operator(node.target)
    place = PLACES.get(base_name(operator)) if isinstance(operator, OpOverload) else None
    weight = node.args[place] if place is not None else None
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return None
    values = attribute_of(module, str(weight.target))
    suits = isinstance(values, torch.Tensor) and values.dtype is torch.float32 and values.numel() >= LEAST_ELEMENTS
    return weight if suits else None


class ConstantNames:
    """Names of the constants that replace weights, in a module without such names."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._names: dict[tuple[str, str], str] = {}

    def of(self, weight: str, part: str) -> tuple[str, bool]:
        """Return the name of a part of a weight, and whether another operation has already made the constant."""
        if (weight, part) in self._names:
            return self._names[weight, part], True
        # the plain name is the same for `a.b_c` and `a_b.c`
        name = unused_name(f"{weight.replace('.', '_')}_{part}", dir(self._module))
        self._names[weight, part] = name
        return name, False


class WeightMaker:
    """Adds constants and operations before an operation of a module."""

    def __init__(self, module: GraphModule, place: Node, weight: str, names: ConstantNames, by_index: bool) -> None:
        self._module = module
        self._place = place
        self._weight = weight
        self._names = names
        self._by_index = by_index

    def constant(self, part: str, values: torch.Tensor) -> Node:
        name, exists = self._names.of(self._weight, part)
        if not exists:
            self._module.register_buffer(name, values)
        with self._module.graph.inserting_before(self._place):
            return self._marked(self._module.graph.get_attr(name))

    def call(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        with self._module.graph.inserting_before(self._place):
            return self._marked(self._module.graph.call_function(operator, args, kwargs))

    def rows(self, values: Node, table: Node | None) -> Node:
        """Return the rows of a constant that a lookup in a table takes; without a lookup, the whole constant."""
        if table is None:
            return values
        if self._by_index:
            return self.call(aten.index.Tensor, values, [table.args[1]])
        return self.call(aten.embedding.default, values, *table.args[1:])

    def _marked(self, node: Node) -> Node:
        copied = ("stack_trace", "nn_module_stack")
        node.meta.update({key: self._place.meta[key] for key in copied if key in self._place.meta})
        return node


def in_bytes(maker: WeightMaker, values: torch.Tensor, table: Node | None) -> Node:
    """Return float32 weights of integers of 8 bits with a scale for each row of the first dimension.

    A product of scales and floats is as exact as eager in every engine; ONNX Runtime rounds the activations of a linear
    layer, too, where the weights are dequantized by its own operator.
    """
    integers, scales = as_integers(values, (1, *values.shape[1:]), 127)
    rows = maker.rows(maker.constant("int8", integers.to(torch.int8)), table)
    floats = maker.call(aten._to_copy.default, rows, dtype=torch.float32)
    factors = maker.constant("scales", scales.reshape(-1, *[1] * (values.dim() - 1)))
    return maker.call(aten.mul.Tensor, floats, maker.rows(factors, table))


def packed(maker: WeightMaker, values: torch.Tensor, table: Node | None) -> Node:
    """Return float32 weights of integers of 4 bits, of which a byte holds two, with a scale for 32 neighbors.

    Plain arithmetic in float32 takes a byte apart exactly, and every engine has it.
    """
    integers, scales = as_integers(values, (1, GROUP), 7)
    low, high = (integers + 8).to(torch.uint8).reshape(len(integers), -1, 2).unbind(2)
    byte = maker.call(
        aten._to_copy.default, maker.rows(maker.constant("int4", low + 16 * high), table), dtype=torch.float32
    )
    upper = maker.call(aten.floor.default, maker.call(aten.div.Tensor, byte, 16.0))
    lower = maker.call(aten.sub.Tensor, byte, maker.call(aten.mul.Tensor, upper, 16.0))
    row = maker.call(aten.flatten.using_ints, maker.call(aten.stack.default, [lower, upper], -1), -2, -1)
    groups = maker.call(aten.unflatten.int, maker.call(aten.sub.Tensor, row, 8.0), -1, [-1, GROUP])
    factors = maker.rows(maker.constant("scales", scales.reshape(len(integers), -1)), table)
    scaled = maker.call(aten.mul.Tensor, groups, maker.call(aten.unsqueeze.default, factors, -1))
    return maker.call(aten.flatten.using_ints, scaled, -2, -1)


def as_integers(values: torch.Tensor, block: tuple[int, ...], most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights as integers from `-most` to `most`, and the scale of each block."""
    from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

    limits = -most, most
    symmetric = choose_qparams_affine(
        values, MappingType.SYMMETRIC, block, torch.int8, *limits, zero_point_dtype=torch.int64
    )
    integers: torch.Tensor = quantize_affine(values, block, *symmetric, torch.int8, *limits)
    scales: torch.Tensor = symmetric[0]
    return integers, scales


def remove_unread(module: GraphModule) -> None:
    """Remove weights that no operation reads any more."""
    module.graph.eliminate_dead_code()
    read = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, _ in named:
        if name not in read:
            path, _, last = name.rpartition(".")
            delattr(module.get_submodule(path), last)
