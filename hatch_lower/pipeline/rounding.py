"""Roundings on the way to an output, as marks of values: to half precision, to integers of 8 bits.

A float32 number computed through half precision is no more exact than a half, so verification allows the output a
larger difference. A graph is traversed once, forward, and each value gets the marks of all values that contribute:
through calls of other graphs, memory that is written into, and buffers that carry over to the next call. An operation
that only moves or widens the numbers of a half adds no mark, as both sides begin with equal numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node

from hatch_lower.exir.graph.nodes import VIEWS, memory_owner, memory_sources
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.graph.state import STATE_MUTATIONS, constant_placeholders, output_pairs
from hatch_lower.exir.graph.surgery import attribute_of, output_values
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.numbers import HALF_FACTORS, QUANTIZED_MARK
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

Marks: TypeAlias = frozenset[str]  # dtypes of half precision, and `QUANTIZED_MARK`

UNMARKED: Marks = frozenset()

# Operators whose results hold unchanged numbers of the arguments
MOVES = VIEWS | {
    *("cat", "clone", "constant_pad_nd", "contiguous", "copy_", "detach", "embedding", "flip", "gather", "index"),
    *("index_select", "masked_fill", "masked_select", "pad", "repeat", "reshape", "roll", "stack", "take", "tile"),
    *("where", "lift_fresh_copy", "expand_as", "flatten", "narrow", "chunk", "movedim"),
}

# Operators whose results do not depend on the first argument's numbers
NUMBERLESS = frozenset(
    {
        *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "randint_like", "zeros_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"),
        *("sym_numel", "sym_size", "sym_storage_offset", "sym_stride"),
    }
)

higher_order = torch.ops.higher_order


class Rounding(Frozen):
    """The marks of a method's outputs, and of its inputs after a call, which may write into inputs."""

    outputs: tuple[Marks, ...]
    inputs: tuple[Marks, ...]


def rounding_of(program: ExportedProgram) -> Rounding:
    values = mark_values(program)
    constants = constant_placeholders(program)
    inputs = [node for node in program.graph.find_nodes(op="placeholder") if node not in constants]
    written = {
        spec.target: values.of(value)
        for spec, value in output_pairs(program)
        if spec.kind is OutputKind.USER_INPUT_MUTATION
    }
    return Rounding(
        tuple(values.of(value) for spec, value in output_pairs(program) if spec.kind is OutputKind.USER_OUTPUT),
        tuple(values.memory.get(node, UNMARKED) | written.get(node.name, UNMARKED) for node in inputs),
    )


def mark_values(program: ExportedProgram) -> Values:
    """Return the marks of a program's values in any call: a buffer has the marks of the values that calls store."""
    constants = constant_placeholders(program)
    placeholders = program.graph.find_nodes(op="placeholder")
    state: dict[str, Marks] = {}
    while True:
        targets = [constants[node].target if node in constants else "" for node in placeholders]
        values = Values(program.graph_module, [state.get(str(target), UNMARKED) for target in targets])
        left = {str(spec.target): values.memory.get(node, UNMARKED) for node, spec in constants.items()}
        for spec, value in output_pairs(program):
            if spec.kind in STATE_MUTATIONS:
                left[str(spec.target)] = left.get(str(spec.target), UNMARKED) | values.of(value)
        kept = {name: marks | state.get(name, UNMARKED) for name, marks in left.items() if marks}
        if kept == state:
            return values
        state = kept


class Values:
    """The marks of a graph's values, given the marks of its inputs."""

    def __init__(self, module: GraphModule, given: Sequence[Marks]) -> None:
        self._module = module
        self._marks: dict[Node, list[Marks]] = {}  # of each result, or of all results together
        self.memory: dict[Node, Marks] = {}  # of values written into a node's memory
        inputs = iter(given)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._marks[node] = [next(inputs, UNMARKED)]
            elif node.op == "call_function":
                self._marks[node] = self._called(node)

    def of(self, value: object) -> Marks:
        """Return the marks of a node, or of all nodes in a tree."""
        if not isinstance(value, Node):
            return united(self.of(leaf) for leaf in tensors.tree_leaves(value) if isinstance(leaf, Node))
        written = self.memory.get(memory_owner(value), UNMARKED) if self.memory else UNMARKED
        return written.union(*self._marks.get(value, ()))

    def all(self) -> Iterator[Marks]:
        for marks in self._marks.values():
            yield from marks

    def outputs(self) -> list[Marks]:
        return [self.of(value) for value in output_values(self._module)]

    def _called(self, node: Node) -> list[Marks]:
        target = torch_operator(node.target)
        if target is operator.getitem:
            source, index = node.args[0], node.args[1]
            marks = self._marks.get(source, []) if isinstance(source, Node) else []
            if isinstance(index, int) and 0 <= index < len(marks) > 1:
                return [marks[index]]
            return [self.of(source)]
        if not isinstance(target, OpOverload):
            return self._higher_order(node)
        given = node.args[1:] if base_name(target) in NUMBERLESS else node.args
        found = self.of((given, dict(node.kwargs))) | own_marks(node, target)
        for written in memory_sources(node, is_write=True):
            self._write(written, found)
        return [found]

    def _higher_order(self, node: Node) -> list[Marks]:
        leaves = [leaf for leaf in tensors.tree_leaves((node.args, node.kwargs)) if leaf is not None]
        graphs = [self._attribute(leaf) for leaf in leaves if isinstance(leaf, Node) and leaf.op == "get_attr"]
        inner = [graph for graph in graphs if isinstance(graph, (GraphModule, LoweredBackendModule))]
        if not inner:
            return [self.of(leaves)]
        if isinstance(inner[0], LoweredBackendModule):
            delegated = rounding_of(inner[0].original_module)
            whole = self.of(leaves)
            return [marks | whole for marks in delegated.outputs]
        bodies = [graph for graph in inner if isinstance(graph, GraphModule)]
        if node.target is higher_order.cond:
            return self._branches(bodies, node.args[0], list(as_sequence(node.args[3])))
        if node.target is higher_order.while_loop:
            carried, extra = as_sequence(node.args[2]), as_sequence(node.args[3])
            return self._loop(bodies, carried, [], extra)
        if node.target is higher_order.scan:
            init, rows, extra = (as_sequence(each) for each in node.args[1:4])
            return self._loop(bodies, init, rows, extra)
        taken = len(bodies[0].graph.find_nodes(op="placeholder"))
        called = [leaf for leaf in leaves if isinstance(leaf, Node | int | float)][-taken:] if taken else []
        if len(bodies) == 1 and node.target in CALLED_ONCE:
            return self._branches(bodies, None, called)
        # unknown how often and with which values the graphs are called
        known = self.of(leaves)
        return [known.union(*(marks for body in bodies for marks in Values(body, [known] * taken).all()))]

    def _write(self, node: Node, marks: Marks) -> None:
        owner = memory_owner(node)
        self.memory[owner] = self.memory.get(owner, UNMARKED) | marks

    def _attribute(self, node: Node) -> object:
        return attribute_of(self._module, str(node.target))

    def _branches(self, graphs: Sequence[GraphModule], condition: object, given: Sequence[object]) -> list[Marks]:
        results: list[list[Marks]] = []
        for graph in graphs:
            values = self._run(graph, given, [self.of(value) for value in given])
            results.append(values.outputs())
        chosen = self.of([condition])
        return [chosen | united(each) for each in zip(*results, strict=True)]

    def _loop(
        self, graphs: Sequence[GraphModule], carried: Sequence[object], rows: Sequence[object], extra: Sequence[object]
    ) -> list[Marks]:
        # the last graph is the body, which returns the carried values, then a row of each further result
        marks = [self.of(value) for value in carried]
        operands = [*carried, *rows, *extra]
        while True:
            given = [*marks, *(self.of(value) for value in (*rows, *extra))]
            *conditions, results = [self._run(graph, operands, given).outputs() for graph in graphs]
            decides = united(each for condition in conditions for each in condition)
            grown = [old | new | decides for old, new in zip(marks, results, strict=False)]
            if grown == marks:
                return [*marks, *(each | decides for each in results[len(marks) :])]
            marks = grown

    def _run(self, graph: GraphModule, operands: Sequence[object], given: Sequence[Marks]) -> Values:
        values = Values(graph, given)
        for placeholder, operand in zip(graph.graph.find_nodes(op="placeholder"), operands, strict=False):
            if isinstance(operand, Node) and placeholder in values.memory:
                self._write(operand, values.memory[placeholder])
        return values


CALLED_ONCE = frozenset(
    getattr(higher_order, name)
    for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "map_impl")
)


def united(marks: Iterable[Marks]) -> Marks:
    return UNMARKED.union(*marks)


def as_sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def own_marks(node: Node, target: OpOverload[..., object]) -> Marks:
    """Return the marks that an operation adds to the marks of its arguments."""
    name = base_name(target)
    if target.namespace in ("quantized_decomposed", "torchao") and name.startswith("quantize_"):
        return frozenset({QUANTIZED_MARK})
    halves = HALF_FACTORS.keys() & set(dtypes_in(node.meta.get("val")))
    given = {dtype for source in node.all_input_nodes for dtype in dtypes_in(source.meta.get("val"))}
    if name in NUMBERLESS or (name in MOVES and given <= halves | INTEGERS):
        return UNMARKED
    return frozenset(halves)


INTEGERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8"})


def dtypes_in(value: object) -> Iterator[str]:
    yield from (dtype_name(leaf.dtype) for leaf in tensors.tree_leaves(value) if isinstance(leaf, torch.Tensor))
