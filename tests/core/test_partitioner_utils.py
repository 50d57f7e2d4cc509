from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import OperatorSupportBase

from hatch_lower.exir import to_edge_transform_and_lower
from hatch_lower.exir.backend.canonical_partitioners.config_partitioner import (
    ConfigerationBasedPartitioner,
    PartitionerConfig,
    format_target_name,
)
from hatch_lower.exir.backend.canonical_partitioners.duplicate_dequant_node_pass import DuplicateDequantNodePass
from hatch_lower.exir.backend.partitioner import DelegationSpec
from hatch_lower.exir.backend.utils import (
    WhyNoPartition,
    WhyNoPartitionReporter,
    get_delegates,
    is_shape_dynamic,
    tag_constant_data,
)
from hatch_lower.exir.graph_module import (
    bfs_trace_with_node_process,
    get_cond_while_submodules,
    get_control_flow_submodules,
    get_scan_submodules,
)
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch

X = torch.randn(2, 4)


class LinearConfig(PartitionerConfig):
    target_name = "linear.default"

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return node.meta["val"].shape[-1] > 1

    def get_original_aten(self) -> OpOverload | None:
        return torch.ops.aten.linear.default

    def get_partition(self, node: Node, ep: ExportedProgram) -> list[Node]:
        return [node, *node.all_input_nodes[1:]]


class ReluConfig(PartitionerConfig):
    target_name = "relu.default"

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return True

    def get_original_aten(self) -> OpOverload | None:
        return None

    def get_partition(self, node: Node, ep: ExportedProgram) -> list[Node]:
        return [node, node.all_input_nodes[0]]


class WithConstants(ConfigerationBasedPartitioner):
    def partition(self, exported_program: ExportedProgram) -> Any:
        result = super().partition(exported_program)
        tag_constant_data(exported_program)
        return result


def calls(program: ExportedProgram) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


SPEC = DelegationSpec("reference", [])


def test_configurations_take_their_operators_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    exported = torch.export.export(model, (X,))
    manager = to_edge_transform_and_lower(exported, partitioner=[WithConstants(SPEC, [LinearConfig(), ReluConfig()])])
    program = manager.exported_program()
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert len(get_delegates(program.graph)) == 1
    assert "aten.addmm.default" in names, "the linear that the configuration refuses is decomposed"
    assert not {"aten.relu.default", "aten.linear.default"} & set(names)
    torch.testing.assert_close(program.module()(X), model(X))


def test_two_configurations_of_one_operator_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"have the same target_name `linear\.default`"):
        ConfigerationBasedPartitioner(SPEC, [LinearConfig(), LinearConfig()])


@pytest.mark.parametrize(("name", "short"), [("aten.add.Tensor", "add.Tensor"), ("add.Tensor", "add.Tensor")])
def test_a_target_s_name_is_without_its_namespace(name: str, short: str) -> None:
    assert format_target_name(name) == short


class OnlyAdd(OperatorSupportBase):
    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node.op == "call_function" and "add" in node.name


def test_what_a_wrapped_check_refuses_is_reported() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).relu()

    program = to_edge(torch.export.export(Model(), (X,)))
    reporter = WhyNoPartitionReporter()
    support = reporter.wrap_check(OnlyAdd(), "only sums")
    add, relu = calls(program)
    assert (support.is_node_supported({}, add), support.is_node_supported({}, relu)) == (True, False)
    WhyNoPartition(logging.getLogger(), reporter)(relu, "no room")
    assert reporter.reasons == {relu.name: "only sums; no room"}


def test_a_dynamic_shape_is_told() -> None:
    exported = torch.export.export(torch.nn.ReLU(), (X,), dynamic_shapes=({0: Dim("rows", min=2)},))
    assert all(is_shape_dynamic(node) for node in calls(to_edge(exported)))
    still = to_edge(torch.export.export(torch.nn.ReLU(), (X,)))
    assert not any(is_shape_dynamic(node) for node in calls(still))


def test_each_user_gets_a_dequantization_of_its_own() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.ops.quantized_decomposed.dequantize_per_tensor(x, 0.5, 3, 0, 255, torch.uint8)
            return y.relu() + y

    from hatch_lower.exir.dialects._ops import ops  # registers the library

    target = ops.edge.quantized_decomposed.dequantize_per_tensor.default
    x = torch.arange(6, dtype=torch.uint8)
    program = to_edge(torch.export.export(Model(), (x,)))
    result = DuplicateDequantNodePass()(program.graph_module)
    assert result.modified
    found = result.graph_module.graph.find_nodes(op="call_function", target=target)
    assert [len(node.users) for node in found] == [1, 1]
    assert not DuplicateDequantNodePass()(result.graph_module).modified


def test_graphs_of_control_flow_are_found_by_kind() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, torch.relu, torch.neg, (x,))
            _, z = torch._higher_order_ops.while_loop(
                lambda i, t: i < 3, lambda i, t: (i + 1, t + t), (torch.tensor(0), y)
            )
            return torch._higher_order_ops.scan(lambda c, t: (c + t, c * 1.0), z[0], z)[1]

    module = to_edge(torch.export.export(Model(), (X,), strict=False)).graph_module
    assert len(get_control_flow_submodules(module)) == 5
    assert len(get_cond_while_submodules(module)) == 4
    assert len(get_scan_submodules(module)) == 1
    seen: list[Node] = []
    bfs_trace_with_node_process(module, seen.append)
    assert len({node.graph for node in seen}) == 6
