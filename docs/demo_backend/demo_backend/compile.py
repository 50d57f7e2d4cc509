"""The compile half: which operations the machine takes, and a partition as a program for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from demo_backend import __version__
from hatch_lower.canonical import canonical_json
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import CapabilityBasedPartitioner
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import DelegateMappingBuilder, tag_constant_data
from hatch_lower.exir.graph.operators import operator_name

__all__ = ["DemoBackend", "DemoPartitioner"]

CONVOLUTION = "aten.conv2d.default"
RELU = "aten.relu.default"
TANGENT = "aten.tan.default"

INSTRUCTIONS = {
    CONVOLUTION: "convolution",
    RELU: "relu",
    "aten.add.Tensor": "add",
    "aten.cos.default": "cosine",
    "aten.mm.default": "product",
    "aten.mul.Tensor": "multiply",
    "aten.sin.default": "sine",
    "aten.sub.Tensor": "subtract",
}
"""What the machine has an instruction of its own for."""


class DemoBackend(BackendDetails):
    """Lowers a partition to JSON: a list of instructions, each an operation and its arguments.

    Every constant, input and result has a number, its slot: first the constants, then the inputs, then one for each
    instruction. The constants themselves are no part of the program; the run half is given them.
    """

    weight_free = True

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Write the program of one partition, and note which operations each of its instructions computes."""
        fuse = CompileSpec("fuse", b"no") not in compile_specs
        writer = ProgramWriter()
        outputs: list[int] = []
        for node in edge_program.graph.nodes:
            if node.op == "placeholder":
                writer.add_slot(node)
            elif node.op == "output":
                outputs = [writer.slots[each] for each in node.args[0]]
            elif name_of(node) == TANGENT:
                (angle,) = node.args
                cosine = writer.write("cosine", [angle], computes=[node])
                writer.write("sine_over", [angle, {"slot": cosine}], computes=[node])
            elif name_of(node) == RELU and fuse and is_fusible(node.args[0]):
                (convolution,) = node.args
                writer.write("convolution_relu", convolution.args, computes=[convolution, node])
            elif not (fuse and is_fusible(node)):
                writer.write(INSTRUCTIONS[name_of(node)], node.args, computes=[node])
        return PreprocessResult(
            canonical_json({"instructions": writer.instructions, "outputs": outputs}),
            debug_handle_map=writer.debug.get_delegate_mapping(),
            suffix="demo.json",
            requirements=(f"demo-backend=={__version__}",),
        )

    @classmethod
    def partitioner(cls, options: Mapping[str, Any]) -> Partitioner:
        """Return the partitioner; the only option is `fuse`, true unless it is given."""
        unknown = sorted(set(options) - {"fuse"})
        if unknown:
            raise BackendError(
                f"the backend `demo` has no option `{unknown[0]}`", hint="leave it out; the only option is `fuse`"
            )
        fuse = options.get("fuse", True)
        if not isinstance(fuse, bool):
            raise BackendError(
                "the option `fuse` of the backend `demo` must be true or false",
                found=repr(fuse),
                hint='write `{ name = "demo", fuse = false }`',
            )
        return DemoPartitioner(fuse)

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        """Return this distribution's version: another one may write another program."""
        return {"demo-backend": __version__}


class DemoPartitioner(Partitioner):
    """Takes what the machine has instructions for, in as few partitions as there can be.

    Args:
        fuse: whether a convolution and a ReLU become one instruction.
    """

    def __init__(self, fuse: bool = True) -> None:
        super().__init__({"fuse": fuse})
        self.delegation = DelegationSpec("demo", [CompileSpec("fuse", b"yes" if fuse else b"no")])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the operations to take, and the constants that they use."""
        module = exported_program.graph_module
        found = CapabilityBasedPartitioner(module, is_supported, allows_single_node_partition=True)
        tags: dict[str, DelegationSpec] = {}
        # the partition that runs last comes first
        for number, each in enumerate(reversed(found.propose_partitions())):
            tags[f"demo_{number}"] = self.delegation
            for node in each.nodes:
                node.meta["delegation_tag"] = f"demo_{number}"
        tag_constant_data(exported_program)
        reasons = {
            node.name: found.refusals.get(node.name) or f"the machine has no instruction for `{name_of(node)}`"
            for node in module.graph.nodes
            if node.op == "call_function" and "delegation_tag" not in node.meta
        }
        return PartitionResult(exported_program, tags, reasons)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], None]:
        """Keep two-dimensional convolutions, which would become general ones."""
        return [torch.ops.aten.conv2d.default], None


class ProgramWriter:
    """Numbers the values of a partition, and collects instructions and what they compute."""

    def __init__(self) -> None:
        self.slots: dict[Node, int] = {}
        self.instructions: list[list[Any]] = []
        self.debug = DelegateMappingBuilder(generated_identifiers=True)
        self._count = 0

    def add_slot(self, node: Node) -> int:
        """Give a value the next slot."""
        self.slots[node] = self._count
        self._count += 1
        return self.slots[node]

    def write(self, operation: str, arguments: Sequence[Any], computes: list[Node]) -> int:
        """Add an instruction, and return the slot of its result.

        Args:
            operation: its name.
            arguments: slots, literals, and nodes, whose slots are taken.
            computes: the operations that it computes, or has a part in; its result stands for the last one's.
        """
        self.instructions.append([operation, [self.encode(each) for each in arguments]])
        # instructions and identifiers are both counted from 0, so an identifier is the instruction's position
        self.debug.insert_delegate_mapping_entry(nodes=computes)
        return self.add_slot(computes[-1])

    def encode(self, argument: Any) -> Any:
        """Return an argument as it stands in the program."""
        return {"slot": self.slots[argument]} if isinstance(argument, Node) else argument


def is_supported(node: Node) -> bool:
    """Return whether the machine can compute a node: its operator is known, and its arguments can be written down."""
    known = name_of(node) == TANGENT or name_of(node) in INSTRUCTIONS
    return known and not node.kwargs and all(is_writable(each) for each in node.args)


def is_writable(argument: Any) -> bool:
    """Return whether an argument is a tensor, a finite number, nothing, or a list of integers."""
    if isinstance(argument, Node):
        return isinstance(argument.meta.get("val"), torch.Tensor)
    if isinstance(argument, (list, tuple)):
        return all(type(each) is int for each in argument)
    return argument is None or (isinstance(argument, (int, float)) and math.isfinite(argument))


def is_fusible(node: Any) -> bool:
    """Return whether a node is a convolution that only a ReLU uses."""
    users = list(node.users) if isinstance(node, Node) and name_of(node) == CONVOLUTION else []
    return len(users) == 1 and name_of(users[0]) == RELU


def name_of(node: Node) -> str:
    """Return the operator that a node calls, `aten.relu.default`; nothing for a node that calls none."""
    return operator_name(node.target) if node.op == "call_function" else ""
