"""A partition in the one form that inductor gets: canonical names, stand-ins for constants, and fresh symbols.

Nothing that differs between two equal partitions (names of nodes, parameters and symbols, example sizes, contents of
tensors) is left, so equal partitions give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.utils._sympy.value_ranges import ValueRanges

from hatch_lower.backends.aoti.symbols import SymbolSource, find_sources, rebuild_expression
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator, without_negatives
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of, constant_specs, stand_ins

ORIGIN = "hatch_lower.node"
HINTS = (61, 59, 67, 53, 71, 47, 73, 43, 79, 41, 37, 31, 29, 23, 19, 17, 13, 11, 7, 5, 3, 2)
CHECKS = frozenset({"aten._assert_scalar", "aten._assert_tensor_metadata"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A partition, ready for inductor.

    Args:
        module: placeholders for tensors, `get_attr` for constants named `c0`, `c1`, … in placeholder order.
        inputs: fake tensors for the placeholders.
        passed: positions, among the partition's user inputs, of those that the native code gets.
        given: the number of user inputs.
        constants: the number of constants.
        outputs: how each output is made from what the native code returns: `tensor`, `int`, `float`, `bool` for the
            next result, `{"input": i}` for a user input, `{"literal": value}` for a number or `None`.
        handles: the debug handle of each operation, by its index in the partition.
    """

    module: GraphModule
    inputs: tuple[torch.Tensor, ...]
    passed: tuple[int, ...]
    given: int
    constants: int
    outputs: tuple[str | dict[str, Any], ...]
    handles: tuple[int, ...]


def prepare(program: ExportedProgram) -> Prepared:
    """Return a partition in canonical form.

    Args:
        program: of the edge dialect or ATen; of its tensors only dtype, layout and shared memory matter.

    Raises:
        BackendError: if it takes a symbolic size that none of its tensor inputs has.
    """
    writer = Writer(program)
    handles = writer.copy_operations()
    outputs = writer.write_outputs()
    return Prepared(
        module=GraphModule(writer.attributes, writer.graph),
        inputs=tuple(writer.fakes),
        passed=tuple(writer.passed),
        given=sum(spec.kind is InputKind.USER_INPUT for spec in program.graph_signature.input_specs),
        constants=len(constant_specs(program)),
        outputs=outputs,
        handles=handles,
    )


class Writer:
    """Writes the canonical graph of one program, node by node."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = Graph()
        self.values: dict[Node, Any] = {}
        self.attributes: dict[str, Any] = {}
        self.fakes: list[torch.Tensor] = []
        self.passed: list[int] = []
        self.inputs: dict[Node, int] = {}
        self.placeholders: dict[str, Node] = {}
        self._read_placeholders()

    def _read_placeholders(self) -> None:
        """Write constants, then tensor inputs, then symbolic inputs as sizes of the tensors."""
        program = self.program
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        constants = iter(stand_ins([constant_of(program, spec) for spec in constant_specs(program)]))
        position = 0
        tensors: list[Node] = []
        others: list[Node] = []
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
            self.placeholders[spec.target or spec.arg.name] = node
            if spec.kind in CONSTANT_KINDS:
                name = f"c{len(self.attributes)}"
                self.attributes[name] = next(constants)
                self.values[node] = self.graph.create_node("get_attr", name, name=name)
                continue
            if spec.kind is not InputKind.USER_INPUT:
                raise BackendError(
                    f"the backend `aoti` cannot take an input of the kind {spec.kind.name}",
                    where=f"placeholder `{node.name}`",
                    hint="leave the operations that use it out of the partition",
                )
            self.inputs[node] = position
            (tensors if isinstance(node.meta.get("val"), torch.Tensor) else others).append(node)
            position += 1
        fakes = FakeInputs(program, tensors)
        copies: list[Node] = []
        for index, node in enumerate(tensors):
            fake = fakes.make(node.meta["val"])
            copied = self.graph.create_node("placeholder", f"x{index}", name=f"x{index}")
            copied.meta["val"] = fake
            self.fakes.append(fake)
            self.passed.append(self.inputs[node])
            self.values[node] = copied
            copies.append(copied)
        for node in others:
            self.values[node] = self._write_symbol(node, fakes.sources, copies)

    def _write_symbol(self, node: Node, sources: Mapping[sympy.Expr, SymbolSource], copies: Sequence[Node]) -> Any:
        """Return the value of an input that is no tensor: a literal, or nodes that compute it from tensors' sizes."""
        value = node.meta.get("val")
        if not isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            return value
        if not node.users:
            return None
        try:
            return rebuild_expression(value.node.expr, sources, copies, self.graph)
        except (KeyError, NotImplementedError) as error:
            raise BackendError(
                "a partition takes a symbolic size that none of its tensor inputs has",
                where=f"placeholder `{node.name}`",
                found=str(value),
                hint="leave the operations that use it out of the partition",
            ) from error

    def copy_operations(self) -> tuple[int, ...]:
        """Write the operations; return their debug handles."""
        handles: list[int] = []
        for node in self.program.graph.nodes:
            if node.op != "call_function":
                continue
            index = len(handles)
            handles.append(node.meta.get("debug_handle", index + 1))
            if not node.users and is_check(node):
                continue
            target = torch_operator(node.target)
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
            if target is torch.ops.aten.index_select.default:
                # Inductor counts a negative index from the end, where eager refuses it.
                indices = args[2]
                for step, (operator, number) in enumerate(without_negatives(node.args[2])):
                    indices = self._call(operator, (indices, number), {}, f"i{index}_{step}", index)
                args = (*args[:2], indices)
            self.values[node] = self._call(target, args, kwargs, f"n{index}", index)
        return tuple(handles)

    def _call(self, target: Any, args: Any, kwargs: Any, name: str, index: int) -> Node:
        """Write a call for the operation with this index."""
        copied = self.graph.create_node("call_function", target, args, kwargs, name=name)
        # Inductor hands this on to every node that it makes from the node.
        copied.meta["custom"] = {ORIGIN: index}
        return copied

    def write_outputs(self) -> tuple[str | dict[str, Any], ...]:
        """Write mutations and the output node; return how each of the program's outputs is made."""
        results: list[Node] = []
        kinds: list[str | dict[str, Any]] = []
        (output,) = (node for node in self.program.graph.nodes if node.op == "output")
        for value, spec in zip(output.args[0], self.program.graph_signature.output_specs, strict=True):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
                target = self.values[self.placeholders[spec.target]]
                self.graph.call_function(torch.ops.aten.copy_.default, (target, self.values[value]))
            elif isinstance(spec.arg, ConstantArgument) or not isinstance(value, Node):
                kinds.append({"literal": value})
            elif value in self.inputs:
                kinds.append({"input": self.inputs[value]})
            else:
                kinds.append(kind_of(value.meta.get("val")))
                results.append(self.values[value])
        self.graph.output(tuple(results))
        return tuple(kinds)


class FakeInputs:
    """Fake tensors with symbols of our own naming, ranges as exported, and example sizes that do not mislead.

    Inductor asks questions such as "is s0 equal to 8?" and answers them by the example. Example sizes are therefore
    primes that no static size of the partition has.
    """

    def __init__(self, program: ExportedProgram, tensors: Sequence[Node]) -> None:
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._ranges = program.range_constraints
        self._environment = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._environment, allow_non_fake_inputs=True)
        self._used = static_sizes(program)
        self._renamed: dict[sympy.Expr, sympy.Expr] = {}
        self._examples: dict[sympy.Symbol, int] = {}
        shapes = [node.meta["val"].shape for node in tensors]
        self.sources = find_sources(shapes)
        for source in self.sources.values():
            if source.inverse is None:
                self._renamed[source.expression] = self._new_symbol(source.expression)
            elif isinstance(source.symbol, sympy.Symbol):
                self._renamed[source.symbol] = self._new_symbol(source.symbol)

    def make(self, value: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor in place of a program's own fake tensor."""
        with self._mode:
            return torch.empty_strided(
                [self._size(size) for size in value.shape],
                [self._size(stride) for stride in value.stride()],
                dtype=value.dtype,
            )

    def _size(self, size: int | torch.SymInt) -> Any:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        replaced = self._renamed.get(expression)
        if replaced is None:
            replaced = expression.xreplace(self._renamed)
        example = int(replaced.xreplace({symbol: sympy.Integer(hint) for symbol, hint in self._examples.items()}))
        return self._environment.create_symintnode(replaced, hint=example, source=None)

    def _new_symbol(self, expression: sympy.Expr) -> sympy.Symbol:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StrictMinMaxConstraint

        bounds = self._ranges.get(expression)
        lower, upper = (bounds.lower, bounds.upper) if bounds is not None else (sympy.Integer(0), sympy.oo)
        example = self._choose_example(int(lower), int(upper) if upper.is_Integer else None)
        self._used.add(example)
        symbol = self._environment.create_symbol(
            example,
            ConstantSource(f"size{len(self._renamed)}"),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=StrictMinMaxConstraint(vr=ValueRanges(lower, upper), warn_only=False),
            do_not_specialize_zero_one=True,
        )
        self._examples[symbol] = example
        return symbol

    def _choose_example(self, lower: int, upper: int | None) -> int:
        last = upper if upper is not None else lower + 1000
        ascending = range(max(lower, 2), min(last, lower + 1000) + 1)
        fitting = (size for size in (*HINTS, *ascending) if lower <= size <= last and size not in self._used)
        return next(fitting, last)


def static_sizes(program: ExportedProgram) -> set[int]:
    """Return every static size of the tensors of a program."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    shapes = (value.shape for value in values if isinstance(value, torch.Tensor))
    return {size for shape in shapes for size in shape if isinstance(size, int)}


def is_check(node: Node) -> bool:
    """Return whether a node only checks what the executor has already checked."""
    name = str(getattr(torch_operator(node.target), "overloadpacket", ""))
    return name in CHECKS or name.startswith("aten.sym_constrain_range")


def kind_of(value: Any) -> str:
    """Return what an output of a node with this value is for Python."""
    if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
        return "int"
    if isinstance(value, (torch.SymBool, bool)):
        return "bool"
    return "float" if isinstance(value, (torch.SymFloat, float)) else "tensor"
