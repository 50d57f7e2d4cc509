"""Compile half of the `openvino` backend: edge programs in, models without their constants out."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from operator import getitem
from typing import ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from hatch_lower.backends.engine_partitioner import EnginePartitioner, Reasons
from hatch_lower.backends.openvino.claims import DEQUANTIZE_CHANNELS, KEPT_OPERATORS, NAN_LOSING, QUANTIZED
from hatch_lower.backends.openvino.convert import convert
from hatch_lower.backends.openvino.library import REQUIREMENT, import_openvino
from hatch_lower.backends.openvino.options import BACKEND_ID, OpenvinoOptions, parse_options
from hatch_lower.backends.openvino.prepare import OpenvinoCopy
from hatch_lower.backends.openvino.support import OpenvinoSupport, is_move, is_square, why_not_operation
from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import BackendError, extra_hint
from hatch_lower.exir._serialize._named_data_store import NamedDataStore
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators
from hatch_lower.exir.backend.options import spec_values
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.backend.utils import unchanged_constants
from hatch_lower.exir.graph.nodes import Ranges, result_tensors
from hatch_lower.exir.graph.operators import named_arguments, operator_name
from hatch_lower.exir.graph.surgery import graph_modules
from hatch_lower.runtime.torch_private.recurrent import RECURRENT

VERSION = "16"
ALIGNMENT = 64  # of literals, in bytes


class OpenvinoBackend(BackendDetails):
    """Lowers a partition to OpenVINO; its delegate is `hatch_lower.backends.openvino.run:OpenvinoDelegate`."""

    weight_free: ClassVar[bool] = True
    copies_constants: ClassVar[bool] = True

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        options = parse_options(spec_values(BACKEND_ID, compile_specs))
        check_installed()
        copied = OpenvinoCopy(edge_program)
        model, literals, instructions = convert(copied)
        store = NamedDataStore()
        name = f"openvino-{sha256_bytes(literals)[:32]}" if literals else ""
        if literals:
            store.add_named_data(name, literals, alignment=ALIGNMENT)
        return PreprocessResult(
            model,
            debug_handle_map=instructions,
            data_store_output=store.get_named_data_store_output(),
            suffix="xml",
            requirements=(REQUIREMENT,),
            info={
                "device": options.device,
                "threads": options.threads,
                "bound": copied.bound,
                "literals": name,
                "indices": [list(index) for index in sorted(copied.indices)],
                **copied.call_facts(),
            },
        )

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        parsed = parse_options(options)
        check_installed()
        return OpenvinoPartitioner(parsed)

    @classmethod
    def requirements(cls, options: Mapping[str, object]) -> Sequence[str]:
        return (REQUIREMENT,)

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        return {"openvino": check_installed(), "backend": VERSION}


def check_installed() -> str:
    try:
        import_openvino()
        return importlib.metadata.version("openvino")
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        raise BackendError(
            "the backend `openvino` needs the OpenVINO library to build", found=str(error), hint=extra_hint("openvino")
        ) from error


def has_floats(node: Node) -> bool:
    values = [tensor for each in (node, *node.all_input_nodes) for tensor in result_tensors(each)]
    return any(tensor.dtype.is_floating_point for tensor in values)


def reached_by_data(graph: Graph) -> set[Node]:
    """Return the operations that depend on floats or 8-bit integers of the inputs or weights, beyond single numbers."""
    reached: set[Node] = set()
    for node in graph.nodes:
        given = [] if node.op != "placeholder" else [value for value in result_tensors(node) if value.dim()]
        is_data = any(value.dtype.is_floating_point or value.dtype in QUANTIZED for value in given)
        is_size = isinstance(node.meta.get("val"), torch.SymInt)
        if is_data or not (is_size or reached.isdisjoint(node.all_input_nodes)):
            reached.add(node)
    return reached


class OpenvinoPartitioner(EnginePartitioner[Reasons]):
    """Takes as many nodes as OpenVINO computes as eager does, in as few convex groups as possible."""

    def __init__(self, options: OpenvinoOptions) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), asdict(options))
        self.options = options

    def reasons(self, program: ExportedProgram) -> Reasons:
        constants = unchanged_constants(program)
        supports = {
            module.graph: OpenvinoSupport(module.graph, self.options, constants, program.range_constraints)
            for module in graph_modules(program.graph_module)
        }
        return lambda node: supports[node.graph].why_not(node)

    def needs_finite(self, node: Node, why_not: Reasons) -> bool:
        return operator_name(node.target) in NAN_LOSING

    def computes(self, node: Node) -> bool:
        return not is_move(node) and node.target is not getitem

    def idle_refusal(self, node: Node) -> str:
        if self.computes(node):
            return "its partition would compute positions alone, which takes torch less time than a call of OpenVINO"
        return "it only moves values, and its neighbours are not taken"

    def groups(self, graph: Graph, why_not: Reasons) -> list[list[Node]]:
        found = [list(nodes) for nodes in super().groups(graph, why_not)]
        # Positions alone: of tokens, for example, or their distances as buckets of T5, whose logarithms torch rounds
        # down to int64. An engine's own logarithm may round to another bucket.
        reached = reached_by_data(graph)
        with_data = [nodes for nodes in found if not reached.isdisjoint(nodes)]
        return with_data or [nodes for nodes in found if any(map(has_floats, nodes))] or found

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        # names: a node may belong to a copy in which other operations are decomposed
        constants = {node.name for node in unchanged_constants(ep)}
        return list(KEPT_OPERATORS), lambda node: self._keeps(node, ep.range_constraints, constants)

    def _keeps(self, node: Node, ranges: Ranges, constants: Collection[str]) -> bool:
        given = named_arguments(node)
        if node.target in RECURRENT and not all(weight.name in constants for weight in given["params"]):
            return False  # parametrized weights, for instance
        weight = given.get("weight")
        if isinstance(weight, Node) and operator_name(weight.target) == DEQUANTIZE_CHANNELS:
            weight = weight.args[0]
        if isinstance(weight, Node) and weight.op == "call_function" and is_square(weight, "aten.linear.default"):
            return False  # only the edge program shows whether the operation is taken
        return not why_not_operation(node, self.options, ranges)
