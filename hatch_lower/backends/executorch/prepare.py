"""A partition as the ATen program that ExecuTorch's pipeline gets: tensors only, contiguous, with its weights."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch._export.verifier import Verifier
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from hatch_lower.backends.executorch.rewrite import BINARY, SHAPED, full_arguments, inferred_shape
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """A partition, ready for ExecuTorch.

    Args:
        program: an ATen program; its inputs are the tensors among the partition's.
        passed: the positions of those among the partition's inputs.
        given: the number of the partition's inputs.
        orders: of each output the order of its dimensions in memory, where it is not that of a contiguous tensor.
        handles: debug handle of each operation by its name.
    """

    program: ExportedProgram
    passed: tuple[int, ...]
    given: int
    orders: tuple[tuple[int, ...] | None, ...]
    handles: dict[str, int]


def prepare(program: ExportedProgram) -> Prepared:
    """Return a partition for ExecuTorch.

    Args:
        program: of the edge dialect, as `preprocess` gets it.

    Raises:
        BackendError: if it changes state, or takes or returns something else than tensors.
    """
    writer = Writer(program)
    for node in program.graph.nodes:
        if node.op == "call_function":
            writer.copy_operation(node)
    return writer.finish()


class Writer:
    """Writes the graph of one partition, node by node."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = Graph()
        self.values: dict[Node, Any] = {}
        self.copies: dict[Node, list[Node]] = {}
        self.state: dict[str, torch.Tensor] = {}
        self.specs: list[InputSpec] = []
        self.passed: list[int] = []
        self.given = 0
        self.handles: dict[str, int] = {}
        self.numbers: dict[tuple[Any, str], Node] = {}
        placeholders = list(program.graph.find_nodes(op="placeholder"))
        values = [node.meta.get("val") for node in placeholders]
        self.mode: Any = next(
            (getattr(each, "fake_mode", None) for each in values if isinstance(each, torch.Tensor)), None
        )
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind in CONSTANT_KINDS:
                self.add_copies(node, constant_of(program, spec).detach())
        self.add_numbers()
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind not in CONSTANT_KINDS:
                self.add_input(node, spec)

    def add_constant(self, tensor: torch.Tensor) -> Node:
        """Add a tensor that the program holds; ExecuTorch's passes for XNNPACK want it contiguous."""
        name = f"c{len(self.state)}"
        node = self.graph.placeholder(name)
        self.state[name] = tensor.contiguous()
        assert self.mode is not None
        node.meta["val"] = self.mode.from_tensor(self.state[name], static_shapes=True)
        self.specs.append(InputSpec(InputKind.BUFFER, TensorArgument(name), name, True))
        return node

    def add_copies(self, node: Node, tensor: torch.Tensor) -> None:
        """Add a constant once for each operation that uses it.

        XNNPACK's runtime frees a constant that an operation has packed, whoever else reads it. The file holds equal
        contents once.
        """
        self.values[node] = self.add_constant(tensor)
        users = [user for user in node.users if user.op == "call_function"]
        self.copies[node] = [self.values[node], *(self.add_constant(tensor.clone()) for _ in users[1:])]

    def add_numbers(self) -> None:
        """Add a tensor for each Python number that is an operand, in the dtype of the other operand."""
        for node in self.program.graph.nodes:
            key = number_operand(node)
            if key is None or key in self.numbers:
                continue
            self.numbers[key] = self.add_constant(torch.tensor(node.args[1], dtype=key[0]))

    def add_input(self, node: Node, spec: InputSpec) -> None:
        """Add a tensor that a call gives; sizes are not passed on, for nothing is left that uses them."""
        value = node.meta.get("val")
        if spec.kind is not InputKind.USER_INPUT:
            raise refusal(f"an input of the kind {spec.kind.name}", node)
        if isinstance(value, torch.Tensor):
            copied = self.graph.placeholder(f"x{len(self.passed)}")
            with value.fake_mode:  # type: ignore[attr-defined]
                copied.meta["val"] = torch.empty(value.shape, dtype=value.dtype)
            self.specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(copied.name), None))
            self.passed.append(self.given)
            self.values[node] = copied
        self.given += 1

    def copy_operation(self, node: Node) -> None:
        """Write an operation."""
        target = torch_operator(node.target)
        args, kwargs = full_arguments(node), dict(node.kwargs)
        number = number_operand(node)
        shape = inferred_shape(node) if str(target) in SHAPED else None
        if shape is not None:
            # its inputs may lie otherwise here than where the model was traced
            target, args, kwargs = torch.ops.aten.reshape.default, (node.args[0], shape), {}
        elif number is not None:
            target, args = BINARY[str(target)], (node.args[0], self.numbers[number], *node.args[2:])
        for source in node.all_input_nodes:
            if self.copies.get(source):
                self.values[source] = self.copies[source].pop()
        copied = self.graph.create_node(
            "call_function",
            target,
            torch.fx.map_arg(args, self.value_of),
            torch.fx.map_arg(kwargs, self.value_of),
            name=node.name,
        )
        copied.meta["val"] = node.meta["val"]
        self.values[node] = copied
        if target is not operator.getitem:
            self.handles[copied.name] = node.meta["debug_handle"]

    def value_of(self, node: Node) -> Any:
        """Return what stands for a node of the partition."""
        if node in self.values:
            return self.values[node]
        if node in self.numbers.values():
            return node
        raise refusal("a size as an operand", node)

    def finish(self) -> Prepared:
        """Write the outputs; return the whole."""
        returned: Any = self.program.graph.output_node().args[0]
        outputs: list[OutputSpec] = []
        orders: list[tuple[int, ...] | None] = []
        for node, spec in zip(returned, self.program.graph_signature.output_specs, strict=True):
            value = node.meta.get("val") if isinstance(node, Node) else None
            if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(value, torch.Tensor):
                raise refusal(f"an output of the kind {spec.kind.name} or no tensor", node)
            outputs.append(OutputSpec(spec.kind, TensorArgument(self.values[node].name), None))
            orders.append(memory_order(value))
        results = tuple(self.values[node] for node in returned)
        self.graph.output(results).meta["val"] = tuple(node.meta["val"] for node in results)
        in_spec = pytree.tree_flatten(((0,) * len(self.passed), {}))[1]
        out_spec = pytree.tree_flatten((0,) * len(results))[1]
        program = ExportedProgram(
            root={},
            graph=self.graph,
            graph_signature=ExportGraphSignature(self.specs, outputs),
            state_dict=self.state,
            range_constraints=dict(self.program.range_constraints),
            module_call_graph=[ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec))],
            constants={},
            verifiers=[Verifier],
        )
        return Prepared(program, tuple(self.passed), self.given, tuple(orders), self.handles)


def number_operand(node: Node) -> tuple[Any, str] | None:
    """Return the dtype and text of a Python number that is an operation's second operand, or `None`."""
    if node.op != "call_function" or str(torch_operator(node.target)) not in BINARY or len(node.args) < 2:
        return None
    number, value = node.args[1], node.meta.get("val")
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not isinstance(value, torch.Tensor):
        return None
    return (value.dtype, repr(number)) if value.dtype.is_floating_point else None


def memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """Return the order of a tensor's dimensions in memory, outermost first; `None`: as of a contiguous tensor."""
    if value.is_contiguous():
        return None
    strides = [int(stride.node.hint) if isinstance(stride, torch.SymInt) else stride for stride in value.stride()]
    order = tuple(sorted(range(value.dim()), key=lambda dim: -strides[dim]))
    return None if order == tuple(range(value.dim())) else order


def refusal(found: str, node: Any) -> BackendError:
    """Return the error for what the partitioner does not take."""
    return BackendError(
        "the backend `executorch` takes partitions of tensors that change no state",
        where=f"node `{getattr(node, 'name', node)}`",
        found=found,
        hint="name the operator in the recipe's option `exclude`",
    )
