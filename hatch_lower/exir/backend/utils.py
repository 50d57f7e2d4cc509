"""Helpers for backends and their tests: delegated nodes, equal graphs, tags of constants, reasons, debug maps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import getitem

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import has_free_symbols
from torch.fx.passes.operator_support import OperatorSupportBase

from hatch_lower.errors import DebugError
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DELEGATION_TAG
from hatch_lower.exir.graph.canonical import Encoder, encode_target
from hatch_lower.exir.graph.operators import operator_name
from hatch_lower.exir.graph.state import constant_placeholders, mutated_targets
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, get_lowered_submodules
from hatch_lower.runtime.torch_private.programs import executorch_call_delegate

logger = logging.getLogger(__name__)


def get_delegates(graph: Graph) -> list[Node]:
    """Return the nodes of a graph that stand for lowered modules, known by their calls and not by their names."""
    # ExecuTorch goes by the name `lowered_module_0`, which a model's own attribute may have too
    return [
        node
        for node in graph.nodes
        if node.op == "get_attr"
        and any(user.target is executorch_call_delegate and user.args[0] is node for user in node.users)
    ]


def get_non_lowered_nodes(graph: Graph) -> list[Node]:
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and node.target is not executorch_call_delegate and not is_delegate_result(node)
    ]


def is_delegate_result(node: Node) -> bool:
    if node.target is not getitem:
        return False
    source, index = node.args
    return isinstance(source, Node) and source.target is executorch_call_delegate and isinstance(index, int)


def is_identical_graph(graph_left: GraphModule, graph_right: GraphModule) -> bool:
    """Return whether two graphs are the same in operators, edges, literals, values, nested graphs and nodes' order."""
    return Encoder().encode_graph(graph_left) == Encoder().encode_graph(graph_right)


def is_same_node(node_left: Node | Iterable[Node], node_right: Node | Iterable[Node]) -> bool:
    """Return whether two nodes, or nodes in pairs, are computed in the same way from the same inputs on."""
    left = [node_left] if isinstance(node_left, Node) else list(node_left)
    right = [node_right] if isinstance(node_right, Node) else list(node_right)
    if len(left) != len(right):
        return False
    # no recursion from node to node: graphs are deeper than Python's stack
    pending = list(zip(left, right, strict=True))
    seen = set(pending)
    while pending:
        one, other = pending.pop()
        form, sources = node_form(one)
        other_form, other_sources = node_form(other)
        if form != other_form:
            return False
        new = [pair for pair in zip(sources, other_sources, strict=True) if pair not in seen]
        seen.update(new)
        pending += new
    return True


def node_form(node: Node) -> tuple[object, list[Node]]:
    """Return the form of a node's call, and its input nodes."""
    sources: list[Node] = []
    arguments = (node.args, dict(sorted(node.kwargs.items())))
    map_arg(arguments, sources.append)
    form = Encoder().encode(arguments, dict.fromkeys(sources, 0))
    return (node.op, encode_target(node.target), form), sources


def is_shape_dynamic(node: Node) -> bool:
    """Return whether a size of a node's tensor is a symbol."""
    return has_free_symbols(node.meta["val"].shape)


def get_delegated_payload(graph_module: GraphModule) -> dict[str, tuple[str, list[CompileSpec], bytes]]:
    """Return the backend, the options and the blob of each lowered module that a graph calls, by its name."""
    return {
        name: (module.backend_id, module.compile_specs, module.processed_bytes)
        for name, module, _ in get_lowered_submodules(graph_module)
    }


def format_delegated_graph(graph_module: GraphModule) -> str:
    """Return a graph as text, with the backend and the original graph below each lowered module."""
    lowered = {name: module for name, module, _ in get_lowered_submodules(graph_module)}
    return "\n".join(["graph():", *format_nodes(graph_module, lowered)]) + "\n"


def format_nodes(graph_module: GraphModule, lowered: dict[str, LoweredBackendModule]) -> Iterator[str]:
    for node in graph_module.graph.nodes:
        yield f"  {node.format_node()}"
        if node.op == "get_attr" and node.target in lowered:
            module = lowered[node.target]
            yield f"    backend_id: {module.backend_id}"
            yield "    lowered graph():"
            yield from (f"      {inner.format_node()}" for inner in module.original_module.graph.nodes)


def print_delegated_graph(graph_module: GraphModule) -> None:
    print(format_delegated_graph(graph_module))


def tag_constant_data(edge_program: ExportedProgram) -> None:
    """Tag the constants that tagged operations use, for their partitions to own; call after tagging operations.

    Constants are parameters, lifted tensors, and buffers that the program does not change. Each gets the smallest tag
    of its users; if the users have several tags, every partition owns the constant, unless its `meta["no_copy"]`
    forbids sharing.
    """
    changed = mutated_targets(edge_program)
    tag_placeholders(edge_program, lambda spec: spec.target not in changed)


def tag_mutated_buffer(edge_program: ExportedProgram) -> None:
    """Tag the buffers that the program changes and tagged operations use; call after tagging operations.

    Each gets the smallest tag of its users. A partition owns a buffer only if the partition holds all users and
    computes the new value; else the buffer stays in the program, where every user sees its changes.
    """
    changed = mutated_targets(edge_program)
    tag_placeholders(edge_program, lambda spec: spec.target in changed)


def tag_placeholders(program: ExportedProgram, chosen: Callable[[InputSpec], bool]) -> None:
    for node, spec in constant_placeholders(program).items():
        if not chosen(spec):
            continue
        tags = sorted({tag for user in node.users if (tag := user.meta.get(DELEGATION_TAG)) is not None})
        if tags:
            # any tag marks the constant as owned; lowering finds all owners by the users' tags
            node.meta[DELEGATION_TAG] = tags[0]
        if len(tags) > 1:
            logger.info("the constant `%s` is used in the partitions %s", spec.target, ", ".join(tags))


def unchanged_constants(program: ExportedProgram) -> dict[Node, InputSpec]:
    changed = mutated_targets(program)
    return {node: spec for node, spec in constant_placeholders(program).items() if spec.target not in changed}


class WhyNoPartitionReporter:
    """Collects the reasons of one run of a partitioner; a node may have several."""

    def __init__(self) -> None:
        # node, operator and reason: by names, so that a reporter keeps no graph alive; once each, in order
        self._refusals: dict[tuple[str, str, str], None] = {}

    def report_reject(self, node: Node, reason: str) -> None:
        operator = operator_name(node.target) if node.op == "call_function" else node.op
        self._refusals[node.name, operator, reason.strip()] = None

    def wrap_check(self, operator_support: OperatorSupportBase, message: str) -> OperatorSupportBase:
        """Return a support object that also reports every refused node, with the same reason for all."""
        return ReportRejected(operator_support, self, message)

    def clear(self) -> None:
        self._refusals.clear()

    @property
    def reasons(self) -> dict[str, str]:
        """Node name to its reasons, for `PartitionResult.reasons`."""
        reasons: dict[str, str] = {}
        for node, _, reason in self._refusals:
            reasons[node] = f"{reasons[node]}; {reason}" if node in reasons else reason
        return reasons

    def get_table_report(self) -> str:
        """Return all reasons as a table in text, in the order in which they were reported."""
        if not self._refusals:
            return "No node was rejected."
        rows = [("node", "operator", "reason"), *self._refusals]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{row[0].ljust(widths[0])}  {row[1].ljust(widths[1])}  {row[2]}" for row in rows)


class ReportRejected(OperatorSupportBase):
    def __init__(self, operator_support: OperatorSupportBase, reporter: WhyNoPartitionReporter, message: str) -> None:
        self.operator_support = operator_support
        self.reporter = reporter
        self.message = message

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        supported = bool(self.operator_support.is_node_supported(submodules, node))
        if not supported:
            self.reporter.report_reject(node, self.message)
        return supported


class WhyNoPartition:
    """Logs a partitioner's reason for refusing a node, and passes the reason to a reporter."""

    def __init__(self, logger: logging.Logger, reporter: WhyNoPartitionReporter | None = None) -> None:
        self.logger = logger
        self.reporter = reporter
        self.node: Node | None = None
        self.reason = ""

    def __call__(self, node: Node, reason: str) -> None:
        self.node = node
        self.reason = reason
        self.logger.debug("%s", str(self))
        if self.reporter is not None:
            self.reporter.report_reject(node, reason)

    def __str__(self) -> str:
        return f"WhyNoPartition: Node {self.node} was not partitioned because {self.reason}."


class DelegateMappingBuilder:
    """Collects, in a backend's `preprocess`, the debug handles that each delegate instruction computes.

    Args:
        generated_identifiers: number the instructions from 0 in the order of insertion, instead of taking the
            identifiers that the backend passes.
    """

    def __init__(self, generated_identifiers: bool = False) -> None:
        self._generated_identifiers = generated_identifiers
        self._next_identifier = 0
        self._handles: dict[int | str, tuple[int, ...]] = {}

    def get_delegate_mapping(self) -> dict[int | str, tuple[int, ...]]:
        """Return identifier to sorted debug handles, for `PreprocessResult.debug_handle_map`."""
        return dict(self._handles)

    def insert_delegate_mapping_entry(
        self,
        nodes: Node | list[Node] | None = None,
        handles: int | Sequence[int | None] | None = None,
        identifier: int | str | None = None,
    ) -> int | str:
        """Add one delegate instruction and return its identifier.

        Args:
            nodes: the node or nodes that the instruction computes; nodes without a handle are ignored.
            handles: the handle or handles that the instruction computes, instead of `nodes`.
            identifier: the instruction's id; to be left out where identifiers are generated.

        Raises:
            DebugError: if not exactly one of `nodes` and `handles` is given, the identifier is missing, unwanted or
                taken, or no handle is left.
        """
        key = self._identifier(identifier)
        where = f"delegate instruction {key!r}"
        if (nodes is None) == (handles is None):
            raise DebugError(
                "a debug map entry needs either nodes or debug handles",
                where=where,
                found="neither" if nodes is None else "both",
                hint="pass exactly one of `nodes` and `handles`",
            )
        kept = sorted({handle for handle in given_handles(nodes, handles) if handle is not None})
        if not kept:
            raise DebugError(
                "a debug map entry has no debug handle",
                where=where,
                found="only nodes or handles without a number",
                hint="pass nodes of the edge program, whose `meta` has a `debug_handle`",
            )
        self._handles[key] = tuple(kept)
        if self._generated_identifiers:  # an entry that was refused takes no number
            self._next_identifier += 1
        return key

    def _identifier(self, identifier: int | str | None) -> int | str:
        if self._generated_identifiers:
            if identifier is not None:
                raise DebugError(
                    "a builder that generates identifiers was given an identifier",
                    found=repr(identifier),
                    hint="leave `identifier` out, or make the builder with `generated_identifiers=False`",
                )
            return self._next_identifier
        if identifier is None:
            raise DebugError(
                "a debug map entry has no identifier",
                hint="pass `identifier`, or make the builder with `generated_identifiers=True`",
            )
        if identifier in self._handles:
            raise DebugError(
                "a delegate instruction has two debug map entries",
                found=repr(identifier),
                hint="pass all nodes of one instruction in one call",
            )
        return identifier


def given_handles(nodes: Node | list[Node] | None, handles: int | Sequence[int | None] | None) -> Sequence[int | None]:
    if nodes is not None:
        listed = nodes if isinstance(nodes, list) else [nodes]
        return [node.meta.get("debug_handle") for node in listed]
    return [handles] if handles is None or isinstance(handles, int) else handles
