from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import GraphModule, Node

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.utils import (
    format_delegated_graph,
    get_delegated_payload,
    get_delegates,
    get_non_lowered_nodes,
    print_delegated_graph,
)
from hatch_lower.exir.delegate import executorch_call_delegate, get_lowered_module_name, is_lowered_module
from hatch_lower.exir.graph_module import _get_submodule, get_control_flow_submodules
from hatch_lower.exir.lowered_backend_module import (
    arrange_graph_outputs,
    arrange_graph_placeholders,
    create_submodule_from_nodes,
    get_lowered_backend_modules,
    get_lowered_submodules,
)
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.last(torch.tanh(self.first(x) * self.scale)))


def edge(module: torch.nn.Module, *args: Any) -> ExportedProgram:
    return to_edge(torch.export.export(module, args, strict=False))


def around_tanh(node: Node) -> str | None:
    position = [each.name for each in node.graph.nodes]
    at = position.index("aten_tanh_default")
    return None if node.name == "aten_tanh_default" else "before" if position.index(node.name) < at else "after"


@pytest.fixture
def lowered() -> ExportedProgram:
    partitioner = TagBy(around_tanh, "RecordingBackend", {"level": b"2"})
    return to_backend(edge(Chain(), torch.randn(2, 4)), partitioner)


def test_lowered_modules_are_found_by_their_calls(lowered: ExportedProgram) -> None:
    module = lowered.graph_module
    found = get_lowered_submodules(module)
    assert [name for name, _, _ in found] == ["lowered_module_0", "lowered_module_1"]
    assert all(call.target is executorch_call_delegate for _, _, call in found)
    assert get_lowered_backend_modules(module) == [each for _, each, _ in found]
    assert [node.name for node in get_delegates(lowered.graph)] == ["lowered_module_0", "lowered_module_1"]
    assert [node.name for node in get_non_lowered_nodes(lowered.graph)] == ["aten_tanh_default"]
    assert is_lowered_module(found[0][1])
    assert not is_lowered_module(module)
    assert get_lowered_module_name(module, found[0][1]) == "lowered_module_2"


def test_a_module_that_only_has_such_a_name_is_no_delegate() -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lowered_module_0 = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.lowered_module_0

    module = torch.fx.symbolic_trace(Named())
    assert [node.name for node in module.graph.find_nodes(op="get_attr")] == ["lowered_module_0"]
    assert get_delegates(module.graph) == []
    assert get_lowered_submodules(module) == []


def test_the_payload_of_each_delegate(lowered: ExportedProgram) -> None:
    payload = get_delegated_payload(lowered.graph_module)
    assert list(payload) == ["lowered_module_0", "lowered_module_1"]
    backend, specs, blob = payload["lowered_module_0"]
    assert (backend, specs) == ("RecordingBackend", [CompileSpec("level", b"2")])
    assert blob == get_lowered_backend_modules(lowered.graph_module)[0].processed_bytes


def test_a_lowered_graph_as_text(lowered: ExportedProgram, capsys: pytest.CaptureFixture[str]) -> None:
    text = format_delegated_graph(lowered.graph_module)
    lines = text.splitlines()
    assert lines[0] == "graph():"
    assert text.count("    backend_id: RecordingBackend\n    lowered graph():\n      %p_") == 2
    assert any(line.startswith("  %aten_tanh_default : ") for line in lines)
    assert any(line.startswith("      %aten_relu_default : ") for line in lines)
    print_delegated_graph(lowered.graph_module)
    assert capsys.readouterr().out == f"{text}\n"


def test_the_graphs_of_control_flow() -> None:
    class Flow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.cond(x.sum() > 0, lambda x: torch.sin(x), lambda x: torch.cos(x), (x,))
            (x,) = torch._higher_order_ops.while_loop(lambda x: x.sum() < 10, lambda x: (x + 1,), (x,))
            return x

    program = edge(Flow(), torch.randn(3))
    found = get_control_flow_submodules(program.graph_module)
    assert [operation.target.__name__ for _, _, operation in found] == ["cond", "cond", "while_loop", "while_loop"]
    names = [[node.name for node in module.graph.nodes if node.op == "call_function"] for _, module, _ in found]
    assert [each[:1] for each in names[:2]] == [["aten_sin_default"], ["aten_cos_default"]]
    name, module, operation = found[1]
    assert _get_submodule(program.graph_module, operation, 2) == (name, module, operation)
    assert get_control_flow_submodules(module) == []


class Forked(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.sin(x)
        b = torch.exp(a)
        c = torch.cos(x + y)
        d = torch.relu(c)
        return b + d, a * d


def nodes_of(program: ExportedProgram, *names: str) -> list[Node]:
    """Return the first node of each operator: `sin` is `aten_sin_default`."""
    return [next(node for node in program.graph.nodes if name in node.name.split("_")) for name in names]


@pytest.mark.parametrize("skip", [False, True])
def test_nodes_become_a_submodule_that_is_called_in_their_place(skip: bool) -> None:
    program = edge(Forked(), torch.randn(4), torch.randn(4))
    module, x, y = program.graph_module, torch.randn(4), torch.randn(4)
    submodule, call = create_submodule_from_nodes(module, nodes_of(program, "relu", "sin", "cos"), "a", skip)
    module.graph.lint()
    assert (call.op, call.target, module.get_submodule("fused_a")) == ("call_module", "fused_a", submodule)
    assert [node.name for node in submodule.graph.nodes if node.op != "output"] == [
        "x",
        "aten_add_tensor",
        "aten_sin_default",
        "aten_cos_default",
        "aten_relu_default",
    ]
    assert [node.name for node in submodule.graph.output_node().args[0]] == ["aten_sin_default", "aten_relu_default"]
    items = [node for node in call.users if node.target is operator.getitem]
    assert [node.args[1] for node in items] == [0, 1]
    assert all("nn_module_stack" not in node.meta and "val" in node.meta for node in items)
    assert [tuple(value.shape) for value in call.meta["val"]] == [(4,), (4,)]
    names = [node.name for node in module.graph.nodes]
    places = [names.index(name) for name in ("aten_add_tensor", "fused_a", "aten_exp_default")]
    assert places == sorted(places), "exp was before cos and needs sin"
    module.recompile()
    torch.testing.assert_close(module(x, y), Forked()(x, y))


def test_a_single_result_is_a_getitem_too() -> None:
    program = edge(Forked(), torch.randn(4), torch.randn(4))
    module = program.graph_module
    submodule, call = create_submodule_from_nodes(module, nodes_of(program, "cos", "relu"), "tag")
    assert submodule.graph.output_node().args == (
        [next(n for n in submodule.graph.nodes if n.name == "aten_relu_default")],
    )
    (item,) = call.users
    assert (item.target, item.args) == (operator.getitem, (call, 0))
    x, y = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(module(x, y), Forked()(x, y))


class Split(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = torch.split(torch.sin(x), 2)
        return torch.cos(parts[0]), parts[2]


def test_several_results_of_one_node_are_opened() -> None:
    program = edge(Split(), torch.randn(6))
    module = program.graph_module
    submodule, call = create_submodule_from_nodes(module, nodes_of(program, "sin", "split"), "tag")
    assert [node.target for node in submodule.graph.output_node().args[0]] == [operator.getitem] * 3
    assert sorted(node.args[1] for node in call.users) == [0, 2]
    module.graph.lint()
    x = torch.randn(6)
    torch.testing.assert_close(module(x), Split()(x))


def test_nodes_that_need_their_own_result_are_refused() -> None:
    program = edge(Forked(), torch.randn(4), torch.randn(4))
    before = str(program.graph)
    last = list(program.graph.nodes)[-3]
    with pytest.raises(PartitionError) as caught:
        create_submodule_from_nodes(program.graph_module, [*nodes_of(program, "sin"), last], "tag")
    assert str(caught.value) == (
        "the nodes of `tag` cannot run as one call: a path leaves them and comes back\n"
        "  where: tag `tag`\n"
        f"  found: `aten_sin_default` → `aten_exp_default` → `{last}`\n"
        "  to do: take the nodes on the path too, or split the group"
    )
    assert str(program.graph) == before
    for nodes in ([], [program.graph.output_node()]):
        with pytest.raises(PartitionError, match="a submodule is made of operations of the graph that calls it"):
            create_submodule_from_nodes(program.graph_module, nodes, "tag")


def test_several_results_that_are_used_as_one_are_refused() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    split = graph.call_function(torch.split, (x, 2))
    split.meta["val"] = [torch.zeros(2), torch.zeros(2)]
    graph.output(graph.call_function(torch.cat, (split,)))
    with pytest.raises(PartitionError, match="`cat` uses all results of `split` as one value"):
        create_submodule_from_nodes(GraphModule(torch.nn.Module(), graph), [split], "tag")


def test_placeholders_of_owned_constants_come_first() -> None:
    program = edge(Chain(), torch.randn(2, 4))
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in ("p_last_weight", "b_scale"):
            node.meta["delegation_tag"] = "tag"
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    submodule, call = create_submodule_from_nodes(program.graph_module, nodes, "tag")
    before = [node.name for node in submodule.graph.find_nodes(op="placeholder")]
    assert arrange_graph_placeholders(submodule, program, "tag") is submodule
    after = [node.name for node in submodule.graph.find_nodes(op="placeholder")]
    assert after[:2] == ["p_last_weight", "b_scale"]
    assert after[2:] == [name for name in before if name not in after[:2]]
    submodule.graph.lint()
    values = {str(node): torch.randn(node.meta["val"].shape) for node in call.args}
    assert submodule(*(values[name] for name in after))[0].shape == (2, 4)


@pytest.mark.parametrize("written", [OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION])
def test_outputs_that_update_buffers_or_inputs_come_first(written: OutputKind) -> None:
    program = edge(Forked(), torch.randn(4), torch.randn(4))
    module = program.graph_module
    submodule, call = create_submodule_from_nodes(module, nodes_of(program, "sin", "cos", "relu"), "tag")
    specs = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument("aten_sin_default"), None),
        OutputSpec(written, TensorArgument("aten_relu_default"), "state"),
    ]
    assert arrange_graph_outputs(submodule, specs, call) is submodule
    assert [node.name for node in submodule.graph.output_node().args[0]] == ["aten_relu_default", "aten_sin_default"]
    assert [spec.arg.name for spec in specs] == ["aten_relu_default", "aten_sin_default"]
    module.recompile()
    x, y = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(module(x, y), Forked()(x, y))
    with pytest.raises(RuntimeError, match="a submodule's outputs and their specifications differ in number"):
        arrange_graph_outputs(submodule, specs[:1], call)


def test_everything_lowered_leaves_no_node() -> None:
    lowered = to_backend(edge(Chain(), torch.randn(2, 4)), TagBy(everything))
    assert get_non_lowered_nodes(lowered.graph) == []
