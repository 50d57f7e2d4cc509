"""A partition in the one form that OpenVINO's frontend gets: names and numbers that follow from the graph alone."""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node

from hatch_lower.backends.openvino.claims import TABLES
from hatch_lower.backends.openvino.composites import COMPOSITES, WITH_INDICES, taken_apart
from hatch_lower.backends.openvino.support import arguments, lookup, source_of
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.canonical_partitioners.operators import operator_name, torch_operator
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of

aten = torch.ops.aten
MIRRORED = {
    aten.gt.Tensor: aten.lt.Tensor,
    aten.gt.Scalar: aten.lt.Tensor,
    aten.ge.Tensor: aten.le.Tensor,
    aten.ge.Scalar: aten.le.Tensor,
}
"""Comparisons that OpenVINO calls true where a NaN is compared, and those that say the same with operands exchanged."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A partition, ready for the frontend.

    Args:
        module: placeholders `x0`, `x1`, …, constants `c0`, …, operations `n0`, …; each result is returned once.
        dtypes: of the placeholders.
        shapes: of the placeholders; -1 is a size that is known at run time.
        results: dtypes of what `module` returns.
        orders: for each result the permutation that makes its dimensions those of the program; empty: as they are.
        given: the number of user inputs.
        passed: positions, among the user inputs, of the placeholders.
        outputs: how each output is made: the position of a result, `{"input": i}` or `{"literal": value}`.
        handles: the debug handle of each operation.
        indices: positions of the user inputs that are indices, each with the size that they must be less than.
    """

    module: GraphModule
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    results: tuple[torch.dtype, ...]
    orders: tuple[tuple[int, ...], ...]
    given: int
    passed: tuple[int, ...]
    outputs: tuple[int | dict[str, Any], ...]
    handles: tuple[int, ...]
    indices: tuple[tuple[int, int], ...]


def prepare(program: ExportedProgram) -> Prepared:
    """Return a partition in canonical form.

    Raises:
        BackendError: if it takes or returns something else than tensors and sizes, or changes a buffer.
    """
    writer = Writer(program)
    writer.write_placeholders()
    handles = writer.copy_operations()
    outputs = writer.write_outputs()
    return Prepared(
        module=GraphModule(writer.constants, writer.graph),
        dtypes=tuple(writer.dtypes),
        shapes=tuple(writer.shapes),
        results=tuple(writer.results.values()),
        orders=tuple(writer.orders),
        given=len(writer.inputs),
        passed=tuple(writer.passed),
        outputs=outputs,
        handles=handles,
        indices=tuple(sorted(writer.indices)),
    )


class Writer:
    """Writes the canonical graph of one program, node by node."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = Graph()
        self.values: dict[Node, Node] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.inputs: dict[Node, int] = {}
        self.passed: list[int] = []
        self.dtypes: list[torch.dtype] = []
        self.shapes: list[tuple[int, ...]] = []
        self.results: dict[Node, torch.dtype] = {}
        self.orders: list[tuple[int, ...]] = []
        self.indices: set[tuple[int, int]] = set()

    def write_placeholders(self) -> None:
        """Write inputs and constants; those that nothing uses are left out."""
        nodes = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        specs = self.program.graph_signature.input_specs
        constants = []
        for node, spec in zip(nodes, specs, strict=True):
            if spec.kind in CONSTANT_KINDS:
                constants += [(node, spec)] if node.users else []
                continue
            if spec.kind is not InputKind.USER_INPUT:
                raise BackendError(
                    f"the backend `openvino` cannot take an input of the kind {spec.kind.name}",
                    where=f"placeholder `{node.name}`",
                    hint="leave the operations that use it out of the partition",
                )
            position = len(self.inputs)
            self.inputs[node] = position
            if any(user.op != "output" for user in node.users):
                self._write_input(node, position)
        for node, spec in constants:
            name = f"c{len(self.constants)}"
            self.constants[name] = constant_of(self.program, spec).detach().contiguous()
            self.values[node] = self.graph.create_node("get_attr", name, name=name)

    def _write_input(self, node: Node, position: int) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype, shape = value.dtype, tuple(size if isinstance(size, int) else -1 for size in value.shape)
        elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            dtype, shape = torch.int64, ()
        else:
            raise BackendError(
                "a partition takes something else than a tensor or a size",
                where=f"placeholder `{node.name}`",
                found=repr(value),
                hint="leave the operations that use it out of the partition",
            )
        name = f"x{len(self.passed)}"
        self.values[node] = self.graph.create_node("placeholder", name, name=name)
        self.passed.append(position)
        self.dtypes.append(dtype)
        self.shapes.append(shape)

    def copy_operations(self) -> tuple[int, ...]:
        """Write the operations; return their debug handles."""
        handles: list[int] = []
        for node in self.program.graph.nodes:
            if node.op != "call_function":
                continue
            index = len(handles)
            handles.append(node.meta.get("debug_handle", index + 1))
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
            target = torch_operator(node.target)
            if operator_name(target) in TABLES:
                indices, size = lookup(node)
                source = source_of(indices)
                if source in self.inputs and isinstance(size, int):
                    self.indices.add((self.inputs[source], size))
            if target in MIRRORED:
                target, args = MIRRORED[target], (self._operand(args[1], node), args[0])
            elif target in COMPOSITES:
                given = torch.fx.map_arg(arguments(node), self.values.__getitem__)
                (target, args), kwargs = taken_apart(target, given, node.meta["val"].dim()), {}
            self.values[node] = self.graph.create_node("call_function", target, args, kwargs, name=f"n{index}")
            if target in WITH_INDICES and isinstance(node.meta["val"], torch.Tensor):
                self.values[node] = self._call(getitem, self.values[node], 0)
            if target is aten.scaled_dot_product_attention.default:
                self._clear_masked_rows(node)
        return tuple(handles)

    def _operand(self, value: Any, node: Node) -> Node:
        """Return an operand of a comparison; a number becomes a constant of the other operand's type."""
        if isinstance(value, Node):
            return value
        (other,) = node.all_input_nodes
        return self._constant(torch.tensor(value, dtype=other.meta["val"].dtype))

    def _constant(self, value: torch.Tensor) -> Node:
        name = f"s{len(self.constants)}"
        self.constants[name] = value
        return self.graph.create_node("get_attr", name, name=name)

    def _call(self, target: Any, *args: Any) -> Node:
        """Write an operation that the partition does not have."""
        return self.graph.create_node("call_function", target, args, name=f"m{len(self.graph.nodes)}")

    def _clear_masked_rows(self, node: Node) -> None:
        """Let attention that sees nothing be 0, as in eager; OpenVINO has NaN there."""
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if not isinstance(mask, Node):
            return
        attention = self.values[node]
        dtype = mask.meta["val"].dtype

        seen = self.values[mask]
        if dtype is not torch.bool:
            seen = self._call(aten.ne.Tensor, seen, self._constant(torch.tensor(float("-inf"), dtype=dtype)))
        seen = self._call(aten.any.dim, seen, -1, True)
        nothing = self._constant(torch.tensor(0.0, dtype=node.meta["val"].dtype))
        self.values[node] = self._call(aten.where.self, seen, attention, nothing)

    def _write_result(self, value: Node) -> None:
        """Write a result so that, in memory, its dimensions lie as eager has them."""
        found = value.meta.get("val")
        copied = self.values[value]
        order = memory_order(found) if isinstance(found, torch.Tensor) else ()
        if order:
            copied = self.graph.create_node(
                "call_function", aten.permute.default, (copied, list(order)), name=f"r{len(self.results)}"
            )
        self.results[copied] = found.dtype if isinstance(found, torch.Tensor) else torch.int64
        self.orders.append(tuple(order.index(dim) for dim in range(len(order))))

    def write_outputs(self) -> tuple[int | dict[str, Any], ...]:
        """Write the output node; return how each of the program's outputs is made."""
        kinds: list[int | dict[str, Any]] = []
        places: dict[Node, int] = {}
        output = self.program.graph.output_node()
        returned = output.args[0]
        assert isinstance(returned, (list, tuple))
        for value, spec in zip(returned, self.program.graph_signature.output_specs, strict=True):
            if spec.kind is not OutputKind.USER_OUTPUT:
                raise BackendError(
                    f"the backend `openvino` cannot make an output of the kind {spec.kind.name}",
                    where=f"output `{spec.arg.name}`" if hasattr(spec.arg, "name") else "",
                    hint="leave buffers that the model changes out of the partition",
                )
            if isinstance(spec.arg, ConstantArgument) or not isinstance(value, Node):
                kinds.append({"literal": value})
            elif value in self.inputs:
                kinds.append({"input": self.inputs[value]})
            else:
                if value not in places:
                    places[value] = len(places)
                    self._write_result(value)
                kinds.append(places[value])
        self.graph.output(tuple(self.results))
        return tuple(kinds)


def memory_order(value: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's dimensions from the outermost in memory to the innermost; empty if that is their order."""
    strides = [stride if isinstance(stride, int) else stride.node.hint for stride in value.stride()]
    if any(stride is None for stride in strides):
        return ()
    order = tuple(sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim)))
    sizes = [size if isinstance(size, int) else size.node.hint for size in value.shape]
    ordered = [dim for dim in order if sizes[dim] != 1]
    return () if ordered == sorted(ordered) else order
