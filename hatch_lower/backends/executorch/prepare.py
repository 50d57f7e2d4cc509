"""A partition as the ATen program that ExecuTorch's pipeline gets: tensors only, contiguous, with its weights."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Node

from hatch_lower.backends.executorch.formulas import formula_of
from hatch_lower.backends.executorch.sizes import SHAPED, SIZE_OF, keeps_shape, new_shape
from hatch_lower.backends.instructions import instruction_handles
from hatch_lower.backends.partition_copy import PartitionCopy, memory_order
from hatch_lower.canonical import sha256_bytes
from hatch_lower.exir.graph.nodes import result_tensors
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import constant_of
from hatch_lower.exir.graph.tensors import span_bytes
from hatch_lower.exir.lowering.extract import argument_of, make_program
from hatch_lower.runtime.torch_private.operators import OpOverload, schema_of
from hatch_lower.runtime.torch_private.programs import Verifier

CONSTANT_ALIGNMENT = 16  # bytes, that XNNPACK asks for

# their second operand may be a Python number
BINARY: Mapping[str, OpOverload] = {
    f"aten.{name}.{overload}": getattr(torch.ops.aten, name).Tensor
    for name in ("add", "div", "mul", "sub")
    for overload in ("Scalar", "Tensor")
}


class ExecutorchCopy(PartitionCopy):
    """A partition for ExecuTorch: an input specification for each placeholder, and no Python numbers."""

    backend_id: ClassVar[str] = "executorch"

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program)
        self.drop_unused_sizes()

    def write_placeholders(self, constants: Sequence[tuple[Node, InputSpec]]) -> None:
        values = (value for node in self.program.graph.nodes for value in result_tensors(node))
        self.mode: Any = next(value.fake_mode for value in values if hasattr(value, "fake_mode"))
        self.copies: dict[Node, list[Node]] = {}
        self.state: dict[str, torch.Tensor] = {}
        self.outside: set[str] = set()  # the names of constants that lie outside of the program
        self.specs: list[InputSpec] = []
        self.named: dict[str, set[int]] = {}  # numbers of the partition's operations, by names in this graph
        self.numbers: dict[tuple[object, str], Node] = {}
        for node, spec in constants:
            self.add_copies(node, constant_of(self.program, spec).detach())
        self.add_numbers()
        # constants of operations that are written as several
        self.given = {
            node: {what: self.add_constant(tensor) for what, tensor in formula.constants(node).items()}
            for node in self.program.graph.nodes
            if (formula := formula_of(node)) is not None
        }
        given = {node: node.meta.get("val") for node in self.inputs}
        for node, value in given.items():
            if isinstance(value, torch.Tensor):
                self.values[node] = self.add_input(self.inputs[node], value.shape, value.dtype)
        sizes = {node: value for node, value in given.items() if isinstance(value, torch.SymInt)}
        holders = [self.add_input(self.inputs[node], (value, 0), torch.float32) for node, value in sizes.items()]
        for (node, value), holder in zip(sizes.items(), holders, strict=True):
            self.values[node] = self.graph.call_function(SIZE_OF, (holder, 0))
            self.values[node].meta["val"] = value

    def add_input(self, position: int, shape: Sequence[int | torch.SymInt], dtype: torch.dtype) -> Node:
        copied = self.graph.placeholder(f"x{len(self.passed)}")
        with self.mode:
            copied.meta["val"] = torch.empty(shape, dtype=dtype)
        self.specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(copied.name), None))
        self.passed.append(position)
        return copied

    def add_constant(self, tensor: torch.Tensor) -> Node:
        # ExecuTorch's passes for XNNPACK need it contiguous, and write all of its memory, wherever the view begins
        name = target = f"c{len(self.state)}"
        dense = tensor.contiguous()
        if dense.nbytes != dense.untyped_storage().nbytes():
            dense = dense.clone()
        if is_outside(dense.nbytes):
            # equal names mean the same tensor in all programs that take weights from one file
            described = f"{sha256_bytes(span_bytes(dense))} {dense.dtype} {tuple(dense.shape)}"
            target = f"w{sha256_bytes(described.encode())}_{len(self.state)}"
            self.outside.add(target)
        node = self.graph.placeholder(name)
        self.state[target] = dense
        node.meta["val"] = self.mode.from_tensor(dense, static_shapes=True)
        self.specs.append(InputSpec(InputKind.BUFFER, TensorArgument(name), target, True))
        return node

    def add_copies(self, node: Node, tensor: torch.Tensor) -> None:
        # A copy for each operation that uses it: XNNPACK's runtime frees a constant once an operation has packed it,
        # even if other operations read it. The file holds equal contents once.
        self.values[node] = self.add_constant(tensor)
        users = [user for user in node.users if user.op == "call_function"]
        self.copies[node] = [self.values[node], *(self.add_constant(tensor.clone()) for _ in users[1:])]

    def add_numbers(self) -> None:
        # XNNPACK has no operators of numbers: they become tensors in the dtype of the result. Of a number ExecuTorch
        # makes 64 bits, which decide the dtype beside a tensor without dimensions.
        for node in self.program.graph.nodes:
            for place, key in number_operands(node).items():
                if key not in self.numbers:
                    self.numbers[key] = self.add_constant(number_tensor(node.args[place], key[0]))

    def write_operation(self, node: Node, index: int) -> Any:
        # keep the name, since ExecuTorch's debug maps lead back to it
        target = torch_operator(node.target)
        args, kwargs = full_arguments(node), dict(node.kwargs)
        numbers = number_operands(node)
        if str(target) in SHAPED and keeps_shape(node):
            target, args, kwargs = torch.ops.aten.clone.default, (node.args[0],), {}
        elif str(target) in SHAPED and (shape := new_shape(node)) is not None:
            # its inputs may lie otherwise here than where the model was traced
            target, args, kwargs = torch.ops.aten.reshape.default, (node.args[0], shape), {}
        elif numbers:
            target = BINARY.get(str(target), target)
            operands = (self.numbers[numbers[place]] if place in numbers else node.args[place] for place in range(2))
            args = (*operands, *node.args[2:])
        for source in node.all_input_nodes:
            if self.copies.get(source):
                self.values[source] = self.copies[source].pop()
        if (formula := formula_of(node)) is not None:
            return formula.write(functools.partial(self.call, index), node, self.given[node], self.values)
        if node.target is operator.getitem and node.all_input_nodes[0] in self.given:
            return self.values[node.all_input_nodes[0]]  # only the first result is used
        args, kwargs = torch.fx.map_arg((args, kwargs), self.value_of)
        if target is torch.ops.aten.clone.default and args[0].op != "placeholder":
            # all tensors have the same layout there; XNNPACK drops the copy, and refuses to return its two results
            copied: Node = args[0]
        else:
            copied = self.graph.create_node("call_function", target, args, kwargs, name=node.name)
            copied.meta["val"] = node.meta["val"]
        computed: Any = copied.args[0] if copied.target is operator.getitem else copied
        self.named.setdefault(computed.name, set()).add(index)
        return copied

    def call(self, index: int, target: OpOverload, *args: Any) -> Node:
        """Write one of the operations by which a numbered operation is computed."""
        copied = self.graph.call_function(target, args)
        with self.mode:
            copied.meta["val"] = target(*torch.fx.map_arg(args, lambda source: source.meta["val"]))
        self.named.setdefault(copied.name, set()).add(index)
        return copied

    def drop_unused_sizes(self) -> None:
        # the sizes of views with inferred sizes
        for node, copied in reversed(self.values.items()):
            if not isinstance(node.meta.get("val"), torch.SymInt) or copied.users:
                continue
            holders = copied.all_input_nodes
            self.graph.erase_node(copied)
            if node in self.inputs:
                place = self.passed.index(self.inputs[node])
                del self.specs[len(self.specs) - len(self.passed) + place], self.passed[place]
                self.graph.erase_node(holders[0])

    def value_of(self, node: Node) -> Any:
        if node in self.values:
            return self.values[node]
        if node in self.numbers.values():
            return node
        raise self.refusal("take a number that is not a size as an operand", f"node `{node.name}`")

    def write_result(self, value: Node) -> object:
        # ExecuTorch returns it contiguous
        if not isinstance(value.meta.get("val"), (torch.Tensor, torch.SymInt)):
            raise self.refusal("return an output that is neither a tensor nor a size", f"node `{value.name}`")
        order, result = memory_order(value.meta["val"]), self.values[value]
        if result in self.results:  # also returned: the source of the copy
            order = order or list(range(value.meta["val"].ndim))
        else:
            self.results.append(result)
        position = self.results.index(result)
        return position if order is None else {"result": position, "order": order}

    def instruction_handles(self, instructions: Mapping[str, set[int]]) -> dict[int | str, tuple[int, ...]]:
        """Return each instruction's handles: ExecuTorch computes equal operations once, and some sizes not at all."""
        operations = (node for node in self.program.graph.nodes if node.op == "call_function")
        numbers = {node: number for number, node in enumerate(operations)}
        return instruction_handles(numbers, self.handles, instructions, next(iter(instructions), "0:forward"))

    def aten_program(self) -> ExportedProgram:
        self.graph.output_node().meta["val"] = tuple(node.meta["val"] for node in self.results)
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, argument_of(node), None) for node in self.results]
        signature = ExportGraphSignature(self.specs, outputs)
        ranges = dict(self.program.range_constraints)
        return make_program({}, self.graph, signature, self.state, self.state.keys(), ranges, Verifier)


def is_outside(size: int) -> bool:
    """Return whether a constant of so many bytes lies in the constants file, aligned by its size."""
    return size > 0 and size % CONSTANT_ALIGNMENT == 0


def number_operands(node: Node) -> dict[int, tuple[Any, str]]:
    """Return the dtype and text of each Python number among an operation's two operands, by its place."""
    target, value = torch_operator(node.target), node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dtype is torch.bool:
        return {}
    if str(target) not in BINARY and not takes_tensors(target):
        return {}
    kinds = (int, float) if value.dtype.is_floating_point else (int,)
    return {place: (value.dtype, repr(number)) for place, number in enumerate(node.args[:2]) if type(number) in kinds}


def number_tensor(number: Any, dtype: torch.dtype) -> torch.Tensor:
    # an integer beyond the dtype's range wraps, as in eager
    return torch.tensor(number, dtype=dtype if dtype.is_floating_point else torch.int64).to(dtype)


def takes_tensors(target: object) -> bool:
    """Return whether both operands of an operator are tensors, for which torch takes Python numbers, too."""
    operands = schema_of(target).arguments[:2] if isinstance(target, OpOverload) else []
    return [str(operand.type) for operand in operands] == ["Tensor"] * 2


def full_arguments(node: Node) -> tuple[Any, ...]:
    # a pool may omit its stride, but ExecuTorch needs the stride
    args = tuple(node.args)
    name = str(torch_operator(node.target))
    if name in ("aten.avg_pool2d.default", "aten.max_pool2d.default") and (len(args) < 3 or not args[2]):
        return (*args[:2], args[1], *args[3:])
    return args
