"""The choice of an engine's nodes: all that the engine computes as eager does, in as few convex groups as possible."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG, LEFT_OUT, DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from hatch_lower.exir.graph.nodes import is_view, result_tensors
from hatch_lower.exir.graph.operators import named_arguments, operator_name, torch_operator
from hatch_lower.exir.graph.surgery import graph_modules
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.runtime.torch_private.operators import HigherOrderOperator, OpOverload, schema_of

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# operators that count places from the beginning of the memory that their input lies in
MEMORY_READERS = frozenset(
    {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"}
)

# reductions that take an empty list of dimensions to mean no dimension; sums and the like take it to mean all
CONDITIONS = frozenset({"aten.all.dims", "aten.any.dims"})

# of a sum of products: memory that was never written may hold NaN, and so may a product that does not count
ZERO_FACTOR = "a factor of 0 leaves a term out, and an engine multiplies it, which gives NaN for NaN and infinity"

Reasons = Callable[[Node], str]  # returns the reason why an operation is not taken, or an empty string
OfProgram = TypeVar("OfProgram", bound=Reasons)


class EnginePartitioner(Partitioner, Generic[OfProgram]):
    """Tags operations, nested operations of control flow too, and the constants that they use."""

    takes_state: ClassVar[bool] = False  # whether a partition may own a buffer that only its own nodes use and change

    def __init__(self, backend_id: str, compile_specs: list[CompileSpec], spec: Mapping[str, object]) -> None:
        super().__init__(MappingProxyType(dict(spec)))
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        why_not = self.reasons(exported_program)
        tags: dict[str, DelegationSpec] = {}
        reasons: dict[str, str] = {}
        finite_only: set[str] = set()
        for graph in self.graphs(exported_program):
            for nodes in self.groups(graph, why_not):
                tag = f"{self.delegation_spec.backend_id}_{len(tags)}"
                tags[tag] = self.delegation_spec
                for node in nodes:
                    node.meta[DELEGATION_TAG] = tag
                    if self.needs_finite(node, why_not):
                        finite_only.add(operator_name(node.target))
            for node in graph.nodes:
                if node.op == "call_function" and DELEGATION_TAG not in node.meta:
                    reasons[node.name] = why_not(node) or self.idle_refusal(node)
        tag_constant_data(exported_program)
        if self.takes_state:
            tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, tags, reasons, frozenset(finite_only))

    @abstractmethod
    def reasons(self, program: ExportedProgram) -> OfProgram:
        """Return the function that explains for each operation of a program, nested or not, why it is not taken."""

    @abstractmethod
    def computes(self, node: Node) -> bool:
        """Return whether an operation is worth a call of the engine."""

    def needs_finite(self, node: Node, why_not: OfProgram) -> bool:
        """Return whether an operation that is taken differs from eager for NaN or infinity."""
        return False

    def idle_refusal(self, node: Node) -> str:
        # the engine supports the operation, but its partition would compute nothing
        return "it computes nothing, and its neighbours are not taken"

    def graphs(self, program: ExportedProgram) -> Iterable[Graph]:
        return [module.graph for module in graph_modules(program.graph_module)]

    def groups(self, graph: Graph, why_not: OfProgram) -> Iterable[Iterable[Node]]:
        groups = group_nodes(graph, lambda node: not why_not(node)).partitions
        return [nodes for nodes in groups if any(map(self.computes, nodes))]


def why_not_target(node: Node, exclude: Collection[str]) -> str:
    """Return why no engine takes an operator: it holds graphs, the recipe excludes it, or the build leaves it out."""
    if reason := node.meta.get(LEFT_OUT):
        return str(reason)
    target = torch_operator(node.target)
    if isinstance(target, HigherOrderOperator):
        return f"`{target.__name__}` holds graphs of its own"
    if str(target) in exclude:
        return f"`{target}` is excluded by the recipe"
    if str(target) in MEMORY_READERS:
        return f"`{target}` reads the memory of its input, which an engine lays out in its own way"
    if str(target) in CONDITIONS and named_arguments(node).get("dim") in ([], ()):
        return f"`{target}` with an empty list of dimensions reduces no dimension, and an engine reduces all"
    reader = memory_reader(node)
    return "" if reader is None else f"`{reader.name}` reads its memory, which an engine lays out in its own way"


def memory_reader(node: Node) -> Node | None:
    """Return an operation that reads a node's memory beyond the shape of its result."""
    views, pending = {node}, list(node.users)
    while pending:
        user = pending.pop()
        if str(torch_operator(user.target)) in MEMORY_READERS and user.args[0] in views:
            return user
        if user not in views and user.op == "call_function" and is_view(user):
            views.add(user)
            pending += user.users
    return None


def why_not_tensors(node: Node, dtypes: Collection[torch.dtype], *, unbacked: bool = False) -> str:
    """Return why an engine for the CPU lacks a dtype, device or size; `unbacked`: sizes may depend on contents."""
    for source in (node, *node.all_input_nodes):
        if source.op == "get_attr":
            return f"it uses the attribute `{source.target}`"
        for tensor in result_tensors(source):
            if tensor.dtype not in dtypes:
                return f"`{source.name}` has the type {dtype_name(tensor.dtype)}"
            if reason := why_not_tensor(tensor, f"`{source.name}`", unbacked=unbacked):
                return reason
    return ""


def why_not_tensor(tensor: torch.Tensor, name: str, *, unbacked: bool = False) -> str:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return f"{name} is {tensor.layout} on {tensor.device}"
    if not unbacked and free_unbacked_symbols(tensor):
        return f"{name} has a size that is known at run time only"
    return ""


def why_not_dimension(node: Node) -> str:
    """Return why an engine does not take an operation along a dimension of a scalar tensor, which eager allows."""
    target = torch_operator(node.target)
    if not isinstance(target, OpOverload) or target is torch.ops.aten.unsqueeze.default:  # adds a dimension
        return ""
    given = complete_arguments(node)
    source, dims = given.get("self"), given.get("dim", given.get("dims"))
    if dims in (None, [], ()) or not isinstance(source, Node):
        return ""
    is_scalar = any(value.dim() == 0 for value in result_tensors(source))
    return f"`{target}` names a dimension of `{source.name}`, which has no dimensions" if is_scalar else ""


def complete_arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call of an operator by name, defaults included."""
    arguments = schema_of(torch_operator(node.target)).arguments
    return {argument.name: argument.default_value for argument in arguments} | named_arguments(node)
