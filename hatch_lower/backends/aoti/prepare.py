"""A partition in inductor's canonical form: canonical names, stand-ins for constants, and fresh symbols.

The form drops all differences between equal partitions (names of nodes, parameters and symbols, example sizes,
contents of tensors), so equal partitions give equal bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputSpec
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint

from hatch_lower.backends.aoti.activations import write_unfused
from hatch_lower.backends.aoti.exact import is_inexact_function, write_exactly
from hatch_lower.backends.aoti.layers import (
    CHOOSE,
    DEQUANTIZE,
    Operand,
    Places,
    has_signed_integers,
    is_large_linear,
    is_of_floats,
    operands_of,
    places_of,
    write_convolution,
    write_dequantized,
    write_linear,
    write_linear_of_floats,
    write_of_floats,
    write_parameters,
)
from hatch_lower.backends.aoti.sizes import find_size_sources, rebuild_expression
from hatch_lower.backends.partition_copy import (
    PartitionCopy,
    is_floored,
    memory_order,
    without_negatives,
    write_floored,
)
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.state import constant_of, mutated_targets, stand_ins
from hatch_lower.runtime.torch_private.programs import FakeTensorMode
from hatch_lower.runtime.torch_private.symbols import ValueRanges, source_of_size

ORIGIN = "hatch_lower.node"
HINTS = (61, 59, 67, 53, 71, 47, 73, 43, 79, 41, 37, 31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)
CHECKS = frozenset({"aten._assert_scalar", "aten._assert_tensor_metadata"})


class AotiCopy(PartitionCopy):
    """A partition for inductor: constants as attributes, sizes read off the tensors, changes of state as `copy_`."""

    backend_id: ClassVar[str] = "aoti"
    device: ClassVar[str] = "cpu"

    def __init__(
        self,
        program: ExportedProgram,
        *,
        multiplies: bool = False,
        prepacks: bool = False,
        onednn: bool = False,
        gelu: bool = False,
    ) -> None:
        self._has_onednn = onednn  # whether torch computes with oneDNN where the code runs
        self._fuses_gelu = gelu  # whether oneDNN's `gelu` is fast there
        self._may_multiply = multiplies  # whether the processor multiplies matrices of integers
        self._may_pack = prepacks  # whether loading may copy weights of floating-point numbers
        self.multiplies = False  # whether the partition does
        super().__init__(program)

    def write_placeholders(self, constants: Sequence[tuple[Node, InputSpec]]) -> None:
        self.attributes: dict[str, torch.Tensor] = {}
        # stand-ins for weights that are packed at load; each maps to its constant and convolution
        self.packed: dict[str, Places] = {}
        # convolutions whose results are copied into eager's order, with the results before
        self._unordered: dict[Node, Node] = {}
        self.constants = len(constants)
        changed = mutated_targets(self.program)
        self._weights = {node: place for place, (node, spec) in enumerate(constants) if spec.target not in changed}
        self._parameters = {node for node, spec in constants if spec.kind is InputKind.PARAMETER}
        # the example of each placeholder
        self.fakes: list[torch.Tensor] = []
        self.placeholders = {node.name: node for node in self.inputs}
        self.placeholders |= {str(spec.target): node for node, spec in constants}
        inputs = in_order_of_sizes([node for node in self.inputs if isinstance(node.meta.get("val"), torch.Tensor)])
        fakes = FakeInputs(self.program, inputs, self.device)
        tensors = self.stand_ins([constant_of(self.program, spec) for _, spec in constants], fakes)
        for (node, _), tensor in zip(constants, tensors, strict=True):
            name = f"c{len(self.attributes)}"
            self.attributes[name] = tensor
            self.values[node] = self.graph.create_node("get_attr", name, name=name)
        for node in inputs:
            name = f"x{len(self.passed)}"
            copied = self.graph.create_node("placeholder", name, name=name)
            copied.meta["val"] = fakes.make(node.meta["val"])
            self.fakes.append(copied.meta["val"])
            self.passed.append(self.inputs[node])
            self.values[node] = copied
        copies = [self.values[node] for node in inputs]
        for node in self.inputs:
            if node not in self.values:
                self.values[node] = self._write_symbol(node, fakes, copies)

    def stand_ins(self, constants: Sequence[torch.Tensor], fakes: FakeInputs) -> Sequence[torch.Tensor]:
        # stand-ins, since no code may depend on a constant's contents; stand-ins share memory where the constants do
        return stand_ins(constants)

    def _write_symbol(self, node: Node, fakes: FakeInputs, copies: Sequence[Node]) -> object:
        value = node.meta.get("val")
        if not isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            return value
        if not node.users:
            return None
        try:
            return rebuild_expression(value.node.expr, fakes.sources, copies, self.graph)
        except (KeyError, NotImplementedError) as error:
            what = "take a symbolic size that none of its tensor inputs has"
            raise self.refusal(what, f"placeholder `{node.name}`", str(value)) from error

    def write_operation(self, node: Node, index: int) -> object:
        if not node.users and is_check(node):  # the executor has checked the index
            return None
        target = torch_operator(node.target)
        args, kwargs = self.arguments(node)
        if target is CHOOSE and not kwargs:
            return write_parameters(partial(self._write, index), *args)
        if target is DEQUANTIZE and not kwargs:
            return write_dequantized(partial(self._write, index), *args)
        operands = operands_of(node) if self._may_multiply else None
        is_linear = target is torch.ops.aten.linear.default
        if operands is not None and (is_linear or operands[1].integers in self._weights):
            return self._write_layer(node, operands, index, is_linear=is_linear)
        if self._may_pack and is_of_floats(node):
            weight: Any = node.args[1]
            if weight in self._parameters.intersection(self._weights):
                return self._write_float_convolution(node, weight, index)
        if self._has_onednn and is_large_linear(node) and node.args[1] in self._weights:
            return write_linear_of_floats(partial(self._write, index), *args, **kwargs)
        if self._has_onednn:
            written = write_unfused(partial(self._write, index), node, self.values, gelu=self._fuses_gelu)
            if written is not None:
                return written
        if target is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        if target is torch.ops.aten.index_select.default:
            # Inductor counts a negative index from the end, where eager refuses the index.
            given: Any = node.args[2]
            indices = args[2]
            for step, (function, number) in enumerate(without_negatives(given)):
                indices = self._call(function, (indices, number), {}, f"i{index}_{step}", index)
            args = (*args[:2], indices)
        if is_floored(node):
            return write_floored(partial(self._write, index), node, *args[:2])
        if is_inexact_function(node):
            return write_exactly(partial(self._write, index), node, *args, **kwargs)
        written = self._call(target, args, kwargs, f"n{index}", index)
        return self._in_order(node, written, index) if is_copy_of_one(node) else written

    def _in_order(self, node: Node, value: Node, index: int) -> Node:
        """Write a copy with the dimensions in the order of eager's memory: inductor keeps the order of the tensor."""
        aten = torch.ops.aten
        order = memory_order(node.meta["val"]) or list(range(node.meta["val"].dim()))
        moved = self._write(index, aten.permute.default, value, order)
        dense = self._write(index, aten.clone.default, moved, memory_format=torch.contiguous_format)
        return self._write(index, aten.permute.default, dense, [order.index(dim) for dim in range(len(order))])

    def _write_layer(self, node: Node, operands: tuple[Operand, Operand], index: int, *, is_linear: bool) -> Node:
        self.multiplies = True
        call = partial(self._write, index)
        left, right = (operand.mapped(self.values) for operand in operands)
        values, weight = (operand.integers.meta["val"] for operand in operands)
        bias = named_arguments(node).get("bias")
        bias = None if bias is None else self.values[bias]
        if is_linear:
            return write_linear(call, left, right, bias, values, weight.shape[0])
        image, place = operands[0], self._weights[operands[1].integers]
        zero_point = image.zero_point + (128 if has_signed_integers(image) else 0)
        places = places_of(node, image.integers, operands[1].integers, place, zero_point)
        right = replace(right, integers=self._pack(places, weight))
        return write_convolution(call, left, right, bias, places, weight.shape, signed=has_signed_integers(image))

    def _write_float_convolution(self, node: Node, weight: Node, index: int) -> Node:
        call = partial(self._write, index)
        image: Any = node.args[0]
        bias = named_arguments(node).get("bias")
        places = places_of(node, image, weight, self._weights[weight])
        packed = self._pack(places, weight.meta["val"])
        given = self._unordered.get(image, self.values[image])
        result = write_of_floats(call, given, packed, None if bias is None else self.values[bias], places)
        if memory_order(node.meta["val"]) is None:  # oneDNN gives channels last
            # The next convolution reads this form: otherwise inductor would return the same form where the result of
            # a convolution is returned and read by a convolution.
            self._unordered[node] = result
            result = call(torch.ops.aten.clone.default, result, memory_format=torch.contiguous_format)
        return result

    def _pack(self, places: Places, weight: torch.Tensor) -> Node:
        # convolutions that share weights share the packed copy
        name = next((name for name, known in self.packed.items() if known == places), f"p{len(self.packed)}")
        if name not in self.packed:
            self.packed[name] = places
            self.attributes[name] = torch.empty(weight.shape, dtype=weight.dtype)
        return self.graph.create_node("get_attr", name, name=name)

    def _write(self, index: int, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self._call(target, args, kwargs, f"n{index}_{len(self.graph.nodes)}", index)

    def _call(self, target: Any, args: Any, kwargs: Any, name: str, index: int) -> Node:
        copied = self.graph.create_node("call_function", target, args, kwargs, name=name)
        # Inductor passes this on to every node that it makes from the node.
        copied.meta["custom"] = {ORIGIN: index}
        return copied

    def write_result(self, value: Node) -> object:
        # native code returns numbers as tensors
        self.results.append(self.values[value])
        kind, position = argument_kind(value.meta.get("val")), len(self.results) - 1
        return position if kind == "tensor" else {"result": position, "number": kind}

    def write_mutation(self, value: Any, spec: OutputSpec) -> None:
        # a constant is bound to the program's own memory
        target = self.values[self.placeholders[str(spec.target)]]
        self.graph.call_function(torch.ops.aten.copy_.default, (target, self.values[value]))


class FakeInputs:
    # Inductor asks questions such as "is s0 equal to 8?" and answers from the example sizes. Example sizes are
    # therefore primes that differ from all static sizes of the partition.
    def __init__(self, program: ExportedProgram, tensors: Sequence[Node], device: str) -> None:
        self._device = device
        self._ranges = program.range_constraints
        self._environment = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._environment, allow_non_fake_inputs=True)
        self._used = static_sizes(program)
        self._renamed: dict[sympy.Expr, sympy.Expr] = {}
        self._examples: dict[sympy.Symbol, sympy.Integer] = {}
        self.sources = find_size_sources([node.meta["val"].shape for node in tensors])
        for known in self.sources:
            self._renamed[known] = self._new_symbol(known)

    def make(self, value: torch.Tensor) -> torch.Tensor:
        with self._mode:
            return torch.empty_strided(
                [self._size(size) for size in value.shape],
                [self._size(stride) for stride in value.stride()],
                dtype=value.dtype,
                device=self._device,
            )

    def _size(self, size: int | torch.SymInt) -> Any:
        if isinstance(size, int):
            return size
        replaced = size.node.expr.xreplace(self._renamed)
        example = int(replaced.xreplace(self._examples))
        return self._environment.create_symintnode(replaced, hint=example, source=None)

    def _new_symbol(self, expression: sympy.Expr) -> sympy.Symbol:
        bounds = self._ranges.get(expression, ValueRanges(sympy.Integer(0), sympy.oo))
        example = self._choose_example(int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None)
        self._used.add(example)
        symbol = self._environment.create_symbol(
            example,
            source_of_size(f"size{len(self._renamed)}"),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=StrictMinMaxConstraint(vr=bounds, warn_only=False),
            do_not_specialize_zero_one=True,
        )
        self._examples[symbol] = sympy.Integer(example)
        return symbol

    def _choose_example(self, lower: int, upper: int | None) -> int:
        last = upper if upper is not None else lower + 1000
        ascending = range(max(lower, 2), min(last, lower + 1000) + 1)
        fitting = (size for size in (*HINTS, *ascending) if lower <= size <= last and size not in self._used)
        return next(fitting, last)


def in_order_of_sizes(tensors: Sequence[Node]) -> list[Node]:
    """Order tensors such that inductor knows a symbol before a size such as `int(0.5 * symbol)`."""
    # inductor reads sizes tensor by tensor, and solves simple equations only for symbols that are still unknown
    sources = find_size_sources([node.meta["val"].shape for node in tensors])
    first = {source.tensor for source in sources.values()}
    return sorted(tensors, key=lambda node: tensors.index(node) not in first)


def static_sizes(program: ExportedProgram) -> set[int]:
    values = (node.meta.get("val") for node in program.graph.nodes)
    shapes = (value.shape for value in values if isinstance(value, torch.Tensor))
    return {size for shape in shapes for size in shape if isinstance(size, int)}


def is_copy_of_one(node: Node) -> bool:
    """Return whether a node concatenates a single tensor, apart from tensors without elements."""
    if torch_operator(node.target) is not torch.ops.aten.cat.default:
        return False
    tensors: Any = node.args[0]
    return len({tensor for tensor in tensors if not is_empty(tensor.meta["val"])}) == 1


def is_empty(value: torch.Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in value.shape)


def is_check(node: Node) -> bool:
    name = str(getattr(torch_operator(node.target), "overloadpacket", ""))
    return name in CHECKS or name.startswith("aten.sym_constrain_range")


def argument_kind(value: object) -> str:
    if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
        return "int"
    if isinstance(value, (torch.SymBool, bool)):
        return "bool"
    return "float" if isinstance(value, (torch.SymFloat, float)) else "tensor"
