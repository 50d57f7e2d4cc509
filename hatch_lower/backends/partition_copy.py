"""The graph of a partition, rewritten for an engine's importer: names follow from the graph alone, and floor
division and remainders compute as in eager.

The copy drops all differences between equal partitions (names of nodes, parameters and symbols), so equal partitions
give equal bytes. Subclasses rewrite operators, layouts and constants for their importer.

Engines round `x / y` down, after rounding may have reached the next whole number: for `18.5 // 3.7` in float32, which
is 4, they give 5. Eager first subtracts the `fmod` of `x`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node

from hatch_lower.backends.call_map import call_facts
from hatch_lower.errors import BackendError
from hatch_lower.exir.graph.operators import named_arguments, torch_operator
from hatch_lower.exir.graph.state import CONSTANT_KINDS, input_pairs, output_pairs
from hatch_lower.runtime.torch_private.operators import OpOverload


class PartitionCopy(ABC):
    """Writes a partition's graph: placeholders, operations, outputs. Raises `BackendError` for unsupported contents."""

    backend_id: ClassVar[str]

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = Graph()
        self.values: dict[Node, Any] = {}  # a node of `graph`, or a number
        self.inputs: dict[Node, int] = {}  # the partition's, with their positions
        self.passed: list[int] = []  # positions of the inputs that the engine gets
        self.handles: list[int] = []  # of each operation
        self.results: list[Node] = []
        self.outputs: list[object] = []  # how each output of the partition is made, for `CallMap`
        self.write_placeholders(self._constants())
        for node in program.graph.nodes:
            if node.op == "call_function":
                self.handles.append(node.meta.get("debug_handle", len(self.handles) + 1))
                self.values[node] = self.write_operation(node, len(self.handles) - 1)
        for spec, value in output_pairs(program):
            self._write_output(value, spec)
        self.graph.output(tuple(self.results))

    def _constants(self) -> list[tuple[Node, InputSpec]]:
        constants = []
        for spec, node in input_pairs(self.program):
            if spec.kind in CONSTANT_KINDS:
                constants.append((node, spec))
            elif spec.kind is InputKind.USER_INPUT:
                self.inputs[node] = len(self.inputs)
            else:
                raise self.refusal(f"take an input of the kind {spec.kind.name}", f"placeholder `{node.name}`")
        return constants

    def _write_output(self, value: object, spec: OutputSpec) -> None:
        if spec.kind is not OutputKind.USER_OUTPUT:
            self.write_mutation(value, spec)
        elif isinstance(spec.arg, ConstantArgument) or not isinstance(value, Node):
            self.outputs.append({"literal": value})
        elif value in self.inputs:
            self.outputs.append({"input": self.inputs[value]})
        else:
            self.outputs.append(self.write_result(value))

    @abstractmethod
    def write_placeholders(self, constants: Sequence[tuple[Node, InputSpec]]) -> None:
        """Write the constants and `inputs`."""

    @abstractmethod
    def write_operation(self, node: Node, index: int) -> object:
        """Write an operation; return the value that replaces it."""

    @abstractmethod
    def write_result(self, value: Node) -> object:
        """Write a result into `results`; return the entry of the call map for the output."""

    def write_mutation(self, value: object, spec: OutputSpec) -> None:
        # most engines keep no state
        raise self.refusal(f"change state, with an output of the kind {spec.kind.name}", f"output `{value}`")

    def call_facts(self) -> dict[str, object]:
        return call_facts(len(self.inputs), self.passed, self.outputs)

    def arguments(self, node: Node) -> Any:
        return torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)

    def refusal(self, what: str, where: str, found: str = "") -> BackendError:
        return BackendError(
            f"the backend `{self.backend_id}` cannot {what}",
            where=where,
            found=found,
            hint="leave the operations that use it out of the partition: name them in the option `exclude`",
        )


def memory_order(value: object) -> list[int] | None:
    """Return an output's dimensions from the outermost in memory on, as its clone lies; `None`: they lie in order."""
    if not isinstance(value, torch.Tensor):
        return None
    # of symbolic sizes the examples tell enough: a wrong order would cost a copy at most
    sizes, strides = (
        [number if isinstance(number, int) else number.node.hint for number in numbers]
        for numbers in (value.shape, value.stride())
    )
    if None in (*sizes, *strides):
        return None
    dense = torch.empty_strided(sizes, strides, device="meta").clone().stride()
    order = sorted(range(len(sizes)), key=lambda dim: (-dense[dim], dim))
    long = [dim for dim in order if sizes[dim] != 1]
    return None if long == sorted(long) else order


aten = torch.ops.aten
# operators that take no negative index, and the position of their indices
INDEX_POSITIONS: Mapping[OpOverload, int] = MappingProxyType(
    {
        aten.embedding.default: 1,
        aten.gather.default: 2,
        aten.index_select.default: 2,
        aten.scatter.src: 2,
        aten.scatter.value: 2,
        aten.scatter_add.default: 2,
        aten.scatter_reduce.two: 2,
    }
)


def without_negatives(index: Node) -> tuple[tuple[OpOverload, int], ...]:
    """Return the operators, each with its scalar argument, that turn a negative index into an index beyond any size."""
    # engines count negative indices from the end, but eager raises: an index beyond any size raises in engines too
    value: torch.Tensor = index.meta["val"]
    return (aten.clamp.default, -1), (aten.bitwise_and.Scalar, torch.iinfo(value.dtype).max)


QUOTIENTS = ("aten.div.Scalar_mode", "aten.div.Tensor_mode", "aten.floor_divide.Scalar", "aten.floor_divide.default")
REMAINDERS = ("aten.remainder.Scalar", "aten.remainder.Scalar_Tensor", "aten.remainder.Tensor")


def is_floored(node: Node) -> bool:
    """Return whether a node is a quotient that is rounded down, or a remainder, of floating-point numbers."""
    name = str(torch_operator(node.target))
    if name not in QUOTIENTS + REMAINDERS or not node.meta["val"].is_floating_point():
        return False
    return "_mode" not in name or named_arguments(node)["rounding_mode"] == "floor"


def write_floored(call: Callable[..., Any], node: Node, *operands: Any) -> Any:
    """Write such a node by calls of operators; an operand may be a number.

    Source: `div_floor_floating` and `remainder` in ATen's kernels.
    """
    dtype = node.meta["val"].dtype
    tensors = [isinstance(given, Node) and isinstance(given.meta["val"], torch.Tensor) for given in node.args[:2]]
    convert = torch.ops.prims.convert_element_type.default
    is_half = dtype in (torch.float16, torch.bfloat16)
    is_remainder = str(torch_operator(node.target)) in REMAINDERS
    if is_half and is_remainder:  # eager rounds a number first, but not in a quotient
        operands = tuple(
            rounded_to_dtype(value, dtype) if isinstance(value, (int, float)) else value for value in operands
        )
    if is_half:  # eager computes with float32
        pairs = zip(operands, tensors, strict=True)
        operands = tuple(call(convert, value, torch.float32) if is_tensor else value for value, is_tensor in pairs)
    dividend, divisor = operands
    if not tensors[0]:
        dividend = filled(call, divisor, dividend)
    elif not tensors[1]:
        divisor = filled(call, dividend, divisor)
    result = write_tensors(call, dividend, divisor, is_remainder=is_remainder)
    return call(convert, result, dtype) if is_half else result


def rounded_to_dtype(number: float, dtype: torch.dtype) -> float:
    return torch.tensor(number, dtype=dtype).item()


def filled(call: Callable[..., Any], like: Any, number: Any) -> Any:
    # of floating point beside integers, too
    return call(torch.ops.aten.mul.Tensor, call(torch.ops.aten.full_like.default, like, 1), number)


def write_tensors(call: Callable[..., Any], dividend: Any, divisor: Any, *, is_remainder: bool) -> Any:
    aten = torch.ops.aten
    rest = call(aten.fmod.Tensor, dividend, divisor)
    above, below = call(aten.gt.Scalar, rest, 0), call(aten.lt.Scalar, rest, 0)
    other_sign = call(aten.where.self, call(aten.lt.Scalar, divisor, 0), above, below)
    if is_remainder:
        return call(aten.where.self, other_sign, call(aten.add.Tensor, rest, divisor), rest)
    quotient = call(aten.div.Tensor, call(aten.sub.Tensor, dividend, rest), divisor)
    quotient = call(aten.where.self, other_sign, call(aten.sub.Tensor, quotient, 1), quotient)
    # the quotient is a whole number, apart from the rounding of the division
    floor = call(aten.floor.default, quotient)
    is_next = call(aten.gt.Scalar, call(aten.sub.Tensor, quotient, floor), 0.5)
    floor = call(aten.where.self, is_next, call(aten.add.Tensor, floor, 1), floor)
    return call(aten.where.self, call(aten.eq.Scalar, divisor, 0), call(aten.div.Tensor, dividend, divisor), floor)
