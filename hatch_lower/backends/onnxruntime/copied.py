"""A partition's graph with canonical names, such as torch's exporter takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Graph, Node

from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.canonical_partitioners.operators import INDEX_POSITIONS, torch_operator, without_negatives
from hatch_lower.exir.graph.state import CONSTANT_KINDS, constant_of


class CanonicalCopy:
    """The graph of a program with canonical names, for torch's exporter.

    Args:
        program: is not changed.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.graph = Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.inputs: dict[str, int] = {}
        self.given = 0
        self.results: dict[tuple[str, tuple[int, ...] | None], int] = {}
        self.outputs: list[Mapping[str, Any]] = []
        self.operations: list[Node] = []
        self.handles: list[int] = []
        self._values: dict[Node, Node] = {}
        self._copy_placeholders(program)
        self._copy_operations(program)
        self._write_outputs(program)

    def _copy_placeholders(self, program: ExportedProgram) -> None:
        placeholders = program.graph.find_nodes(op="placeholder")
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind in CONSTANT_KINDS:
                copied = self._placeholder(f"c{len(self.constants)}", node)
                self.constants[copied.name] = constant_of(program, spec)
            elif spec.kind is InputKind.USER_INPUT:
                copied = self._placeholder(f"x{self.given}", node)
                if any(user.op != "output" for user in node.users):
                    self.inputs[copied.name] = self.given
                self.given += 1
            else:
                raise BackendError(
                    f"the backend `onnxruntime` cannot take an input of the kind {spec.kind.name}",
                    where=f"placeholder `{node.name}`",
                    hint="leave the operations that use it out of the partition",
                )
            self._values[node] = copied

    def _placeholder(self, name: str, node: Node) -> Node:
        copied = self.graph.placeholder(name)
        copied.meta["val"] = node.meta["val"]
        return copied

    def _copy_operations(self, program: ExportedProgram) -> None:
        for node in program.graph.nodes:
            if node.op != "call_function":
                continue
            number = len(self.operations)
            target = torch_operator(node.target)
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
            position = INDEX_POSITIONS.get(target)
            if position is not None:
                # ONNX Runtime counts a negative index from the end, where eager refuses it.
                given, indices = node.args[position], args[position]
                for step, (operator, limit) in enumerate(without_negatives(given)):
                    indices = self._call(operator, (indices, limit), {}, f"i{number}_{step}", given.meta["val"])
                args = (*args[:position], indices, *args[position + 1 :])
            copied = self._call(target, args, kwargs, f"n{number}", node.meta["val"])
            self._values[node] = copied
            self.operations.append(copied)
            self.handles.append(node.meta.get("debug_handle", number + 1))

    def _call(self, target: Any, args: Any, kwargs: Any, name: str, value: Any) -> Node:
        """Write a call for the next operation."""
        copied = self.graph.create_node("call_function", target, args, kwargs, name=name)
        # The exporter's passes hand a debug handle on to what they add; here it is the operation's number.
        copied.meta.update(val=value, debug_handle=len(self.operations))
        return copied

    def _write_outputs(self, program: ExportedProgram) -> None:
        """Write the output node; results are told apart by the memory order of their dimensions, too."""
        placeholders = self.graph.find_nodes(op="placeholder")
        places = {node: index for index, node in enumerate(each for each in placeholders if each.name[0] == "x")}
        (output,) = program.graph.find_nodes(op="output")
        for value, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
            if spec.kind.name != "USER_OUTPUT":
                raise BackendError(
                    f"the backend `onnxruntime` cannot give an output of the kind {spec.kind.name}",
                    hint="leave the buffers that a method changes out of the partition",
                )
            if isinstance(spec.arg, ConstantArgument) or not isinstance(value, Node):
                self.outputs.append({"literal": value})
                continue
            copied = self._values[value]
            if copied in places:
                self.outputs.append({"input": places[copied]})
                continue
            order = memory_order(copied.meta["val"])
            found = self.results.setdefault((copied.name, order), len(self.results))
            inverse = None if order is None else [order.index(dim) for dim in range(len(order))]
            self.outputs.append({"result": found} if inverse is None else {"result": found, "permute": inverse})
        self.graph.output(tuple(self._values[value] for value in output.args[0] if isinstance(value, Node)))


def memory_order(value: Any) -> tuple[int, ...] | None:
    """Return the dimensions of a dense tensor from the outermost in memory on; `None` where they are in order.

    Tensors with gaps or repetitions come out dense and in order.
    """
    if not isinstance(value, torch.Tensor):
        return None
    # of symbolic sizes the examples tell enough: a wrong order would cost a copy at most
    sizes = [size if isinstance(size, int) else size.node.hint for size in value.shape]
    strides = [stride if isinstance(stride, int) else stride.node.hint for stride in value.stride()]
    if None in (*sizes, *strides) or 0 in (*sizes, *strides):
        return None
    order = tuple(sorted(range(len(sizes)), key=lambda dim: (-int(strides[dim]), dim)))
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= int(sizes[dim])
    return None if order == tuple(range(len(sizes))) else order


def count_dimensions(graph: Graph) -> None:
    """Count the dimensions of reductions from the first.

    ONNX Runtime does not reduce those that are counted from the last where a tensor has no elements.
    """
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or torch.Tag.reduction not in node.target.tags:
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        dims = {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("dim")
        if dims is None:
            continue
        rank = node.args[0].meta["val"].ndim or 1
        dims = dims % rank if isinstance(dims, int) else [dim % rank for dim in dims]
        node.args = tuple(dims if name == "dim" else each for name, each in zip(names, node.args, strict=False))
        node.kwargs = {name: dims if name == "dim" else each for name, each in node.kwargs.items()}
