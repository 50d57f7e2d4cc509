from __future__ import annotations

import graphlib
import logging
import operator
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.backends import recorded
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra import partitioner as torch_partitioner
from torch.fx.passes.operator_support import OperatorSupportBase, any_chain

from hatch_lower.errors import PartitionError
from hatch_lower.exir.backend.backend_api import lower_methods, to_backend
from hatch_lower.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner
from hatch_lower.exir.backend.canonical_partitioners.duplicate_constant_node_pass import (
    duplicate_constant_node,
    duplicate_constant_nodes,
)
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import (
    GroupPartitioner,
    OperatorListPartitioner,
    PatternPartitioner,
    SupportPartitioner,
)
from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import (
    CapabilityBasedPartitioner,
    GroupBasedPartitioner,
    GroupError,
)
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.canonical_partitioners.pattern_op_partitioner import (
    generate_grouped_partitions_from_list_of_nodes,
    generate_partitions_from_list_of_nodes,
    generate_pattern_op_partitions,
)
from hatch_lower.exir.backend.canonical_partitioners.patterns import find_pattern
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.backend.utils import (
    WhyNoPartition,
    WhyNoPartitionReporter,
    get_delegates,
    get_non_lowered_nodes,
    is_identical_graph,
    is_same_node,
    tag_constant_data,
    tag_mutated_buffer,
)
from hatch_lower.exir.dialects._ops import ops
from hatch_lower.exir.graph.operators import OperatorSet, operator_name
from hatch_lower.exir.lowering.convert import to_edge

pytestmark = pytest.mark.torch

Case = tuple[Graph, dict[str, Node]]


def graph_of(text: str) -> Case:
    """Make a graph of lines `name = operation input…`; operations are names of torch functions or `item`."""
    graph = Graph()
    nodes: dict[str, Node] = {}
    for line in text.strip().splitlines():
        name, _, rest = (part.strip() for part in line.partition("="))
        called, *inputs = rest.split()
        if called == "input":
            nodes[name] = graph.placeholder(name)
        elif called == "item":
            nodes[name] = graph.call_function(operator.getitem, (nodes[inputs[0]], int(inputs[1])))
        else:
            nodes[name] = graph.call_function(getattr(torch, called), tuple(nodes[each] for each in inputs))
    graph.output(next(reversed(nodes.values())))
    return graph, nodes


def takes(*names: str) -> Callable[[Node], bool]:
    return lambda node: getattr(node.target, "__name__", "") in names


def names_in(parts: Any) -> list[list[str]]:
    return [[node.name for node in getattr(part, "nodes", part)] for part in parts]


def module_of(graph: Graph) -> GraphModule:
    return GraphModule(torch.nn.Module(), graph)


def require_no_circle(graph: Graph, partitions: Any) -> None:
    """Raise `CycleError` if partitions need each other, and fail if one needs a later one."""
    part_of = {node: number for number, nodes in enumerate(partitions) for node in nodes}
    sorter: graphlib.TopologicalSorter[Any] = graphlib.TopologicalSorter()
    for node in graph.nodes:
        for source in node.all_input_nodes:
            before, after = part_of.get(source, source), part_of.get(node, node)
            if before != after:
                sorter.add(after, before)
            if isinstance(before, int) and isinstance(after, int):
                assert before <= after
    sorter.prepare()


def random_graph(seed: int) -> tuple[Graph, list[Node], random.Random]:
    chance = random.Random(seed)
    graph = Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for _ in range(chance.randint(3, 40)):
        if chance.random() < 0.2:
            split = graph.call_function(torch.split, (chance.choice(values[-6:]), 2))
            values += [graph.call_function(operator.getitem, (split, index)) for index in range(2)]
        elif chance.random() < 0.4:
            values.append(graph.call_function(torch.add, (chance.choice(values[-6:]), chance.choice(values))))
        else:
            function = chance.choice([torch.sin, torch.cos, torch.relu])
            values.append(graph.call_function(function, (chance.choice(values[-8:]),)))
    graph.output(values[-1])
    return graph, [node for node in graph.nodes if node.op == "call_function"], chance


@pytest.mark.parametrize("seed", range(60))
def test_partitions_never_need_each_other_and_groups_stay_whole(seed: int) -> None:
    graph, operations, chance = random_graph(seed)
    refused = set(chance.choices(["sin", "cos", "relu", "add", "split"], k=chance.randint(0, 3)))
    groups = [
        chance.sample(operations[start : start + 5], min(3, len(operations) - start))
        for start in (chance.randrange(len(operations)) for _ in range(chance.randint(0, 4)))
    ]
    supports = lambda node: node.target.__name__ not in refused  # noqa: E731
    found = group_nodes(graph, supports, groups, connected=bool(seed % 2))
    require_no_circle(graph, found.partitions)
    part_of = {node: number for number, nodes in enumerate(found.partitions) for node in nodes}
    for node in operations:
        if node.target is operator.getitem:
            assert part_of.get(node) == part_of.get(node.args[0])
        elif node not in found.given_up and all(node not in group for group in groups):
            assert (node in part_of) == supports(node)
    for group in groups:
        whole = len({part_of.get(node) for node in group}) == 1
        alone = all(node in found.given_up or node in part_of for node in group)
        assert whole or alone


@pytest.mark.parametrize("seed", range(30))
def test_there_are_at_most_as_many_partitions_as_torch_finds(seed: int) -> None:
    graph, _, chance = random_graph(seed)
    refused = set(chance.choices(["sin", "cos", "relu", "add", "split"], k=2))

    class Supported(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            source = node.args[0] if node.target is operator.getitem else node
            return node.op == "call_function" and source.target.__name__ not in refused  # type: ignore[union-attr]

    module = module_of(graph)
    theirs = torch_partitioner.CapabilityBasedPartitioner(module, Supported(), True).propose_partitions()
    ours = CapabilityBasedPartitioner(module, Supported(), True).propose_partitions()
    assert len(ours) <= len(theirs)
    assert {node for part in ours for node in part.nodes} == {node for part in theirs for node in part.nodes}


def test_an_operation_is_in_the_last_partition_that_it_can_be_in_and_that_comes_first_as_in_torch() -> None:
    graph, _ = graph_of("x = input\na = sin x\nb = cos a\nc = sin b\nd = add a c\ne = sin x")
    module = module_of(graph)
    ours = CapabilityBasedPartitioner(module, Named("sin", "add"), True).propose_partitions()
    assert names_in(ours) == [["sin_1", "add", "sin_2"], ["sin"]]
    theirs = torch_partitioner.CapabilityBasedPartitioner(module, Named("sin", "add"), True).propose_partitions()
    assert [set(part.nodes) for part in ours] == [set(part.nodes) for part in theirs]


def count_calls(action: Callable[[], object]) -> int:
    """Return how many functions, those of C included, an action calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def chain(length: int, every: int = 20) -> tuple[Graph, list[Node]]:
    graph = Graph()
    node = graph.placeholder("x")
    nodes = []
    for index in range(length):
        node = graph.call_function(torch.sin if index % every == every - 1 else torch.cos, (node,))
        nodes.append(node)
    graph.output(node)
    return graph, nodes


@pytest.mark.parametrize("case", ["alone", "groups", "broken groups", "connected", "pattern"])
def test_the_work_of_grouping_grows_with_the_graph_and_not_faster(case: str) -> None:
    def work(length: int) -> float:
        graph, nodes = chain(length)
        groups: list[list[Node]] = []
        if case == "groups":
            groups = [nodes[start : start + 5] for start in range(0, length, 20)]
        if case == "broken groups":
            groups = [[nodes[start + 15], nodes[start + 22]] for start in range(0, length - 40, 20)]
        if case == "pattern":
            pattern, _ = graph_of("x = input\na = cos x\nb = cos a")
            return count_calls(lambda: find_pattern(graph, pattern)) / length
        connected = case == "connected"
        return count_calls(lambda: group_nodes(graph, takes("cos"), groups, connected=connected)) / length

    small, large = work(400), work(3200)
    assert large < 1.1 * small


def test_each_node_is_asked_about_once() -> None:
    graph, nodes = chain(100)
    asked: list[Node] = []
    group_nodes(graph, lambda node: bool(asked.append(node)) or True, [nodes[:3]])
    assert asked == nodes


def test_a_partition_ends_where_a_path_leaves_it() -> None:
    graph, _ = graph_of("x = input\na = sin x\nb = cos a\nc = sin b\nd = add a c\ne = sin x")
    found = group_nodes(graph, takes("sin", "add"))
    assert names_in(found.partitions) == [["sin"], ["sin_1", "add", "sin_2"]]
    apart = group_nodes(graph, takes("sin", "add"), connected=True)
    assert names_in(apart.partitions) == [["sin"], ["sin_1", "add"], ["sin_2"]]


def test_what_comes_first_after_refused_operations_opens_no_partition_of_its_own() -> None:
    graph, _ = graph_of("x = input\na = cos x\nb = sin a\nc = sin x\nd = add b c")
    assert names_in(group_nodes(graph, takes("sin", "add")).partitions) == [["sin", "sin_1", "add"]]


def test_results_go_with_their_operation() -> None:
    graph, nodes = graph_of("x = input\na = split x\nb = item a 0\nc = item a 1\nd = sin b")
    assert names_in(group_nodes(graph, takes("split")).partitions) == [["split", "getitem", "getitem_1"]]
    assert group_nodes(graph, takes("getitem")).partitions == ()
    assert names_in(group_nodes(graph, takes(), [[nodes["a"], nodes["b"]]]).partitions) == [
        ["split", "getitem", "getitem_1"]
    ]
    headless = group_nodes(graph, takes(), [[nodes["b"], nodes["d"]]])
    assert headless.partitions == ()
    assert headless.given_up[nodes["d"]] == "its group holds a result of `split` without the operation"


def test_a_group_that_needs_its_own_result_is_given_up_with_a_path() -> None:
    graph, nodes = graph_of("x = input\na = sin x\nb = cos a\nc = sin b\nd = exp c\ne = exp d")
    found = group_nodes(graph, takes(), [[nodes["a"], nodes["c"]], [nodes["d"], nodes["e"]]])
    assert names_in(found.partitions) == [["exp", "exp_1"]]
    reason = "its group cannot run as one call: a path leaves it and comes back, `sin` → `cos` → `sin_1`"
    assert found.given_up == {nodes["a"]: reason, nodes["c"]: reason}
    assert names_in(group_nodes(graph, takes("sin"), [[nodes["a"], nodes["c"]]]).partitions) == [["sin"], ["sin_1"]]
    filled = group_nodes(graph, takes("cos"), [[nodes["a"], nodes["c"]]])
    assert names_in(filled.partitions) == [["sin", "cos", "sin_1"]]


def test_a_group_is_given_up_for_its_own_sake_before_another() -> None:
    text = "x = input\na = sin x\nb = exp a\nc = exp b\nd = cos c\ne = sin d"
    graph, nodes = graph_of(text)
    wide, good = [nodes["a"], nodes["e"]], [nodes["b"], nodes["c"]]
    for groups in ([wide, good], [good, wide]):
        found = group_nodes(graph, takes(), groups)
        assert names_in(found.partitions) == [["exp", "exp_1"]]
        assert set(found.given_up) == set(wide)


def test_groups_that_need_each_other_become_one_partition_or_the_later_is_given_up() -> None:
    graph, nodes = graph_of("x = input\na = sin x\nb = exp a\nc = exp x\nd = sin c\ne = add b d")
    groups = [[nodes["a"], nodes["d"]], [nodes["b"], nodes["c"]]]
    assert names_in(group_nodes(graph, takes(), groups).partitions) == [["sin", "exp", "exp_1", "sin_1"]]
    graph, nodes = graph_of("x = input\na = sin x\nu = cos a\nb = exp u\nc = exp x\nd = sin c\ne = add b d")
    groups = [[nodes["a"], nodes["d"]], [nodes["b"], nodes["c"]]]
    found = group_nodes(graph, takes(), groups)
    assert names_in(found.partitions) == [["sin", "sin_1"]]
    assert set(found.given_up) == set(groups[1])


def test_single_operations_are_kept_only_where_that_is_wanted() -> None:
    graph, nodes = graph_of("x = input\na = sin x\nb = cos a\nc = sin b\nd = sin c")
    module = module_of(graph)
    partitioner = CapabilityBasedPartitioner(module, takes("sin"))
    assert names_in(partitioner.propose_partitions()) == [["sin_1", "sin_2"]]
    reason = "no neighboring operation is taken, and partitions of a single operation are not wanted"
    assert partitioner.refusals == {"sin": reason}
    assert len(CapabilityBasedPartitioner(module, takes("sin"), True).propose_partitions()) == 2
    idle = CapabilityBasedPartitioner(module, takes("sin"), non_compute_ops=["torch.sin"])
    assert idle.propose_partitions() == []
    single = CapabilityBasedPartitioner(module, takes("sin"), allowed_single_node_partition_ops=["torch.sin"])
    assert len(single.propose_partitions()) == 2
    assert [part.id for part in single.propose_partitions()] == [0, 1]
    fused = single.partition_and_fuse()
    assert [node.op for node in fused.graph.nodes].count("call_module") == 2
    assert nodes["a"].graph is graph


def test_a_node_is_in_one_group_only() -> None:
    graph, nodes = graph_of("x = input\na = sin x\nb = sin a\nc = sin b")
    groups = [[nodes["a"], nodes["b"]], [nodes["b"], nodes["c"]]]
    with pytest.raises(ValueError, match="the node `sin_1` is in two groups") as caught:
        GroupBasedPartitioner(module_of(graph), takes("sin"), node_groups=groups)
    assert isinstance(caught.value, GroupError)
    assert isinstance(caught.value, PartitionError)
    assert str(caught.value) == (
        "the node `sin_1` is in two groups\n"
        "  where: groups 0 and 1\n"
        "  to do: put each node into one group; merge groups that belong together"
    )
    with pytest.raises(GroupError):
        generate_grouped_partitions_from_list_of_nodes(module_of(graph), groups)
    assert names_in(generate_partitions_from_list_of_nodes(module_of(graph), groups)) == [["sin", "sin_1", "sin_2"]]


def test_a_group_partitioner_keeps_groups_together_and_takes_the_rest_by_support() -> None:
    text = "x = input\na = sin x\nb = cos x\nc = exp b\nd = add a c\ne = sin d"
    graph, nodes = graph_of(text)
    group = [nodes["a"], nodes["d"], nodes["b"]]
    partitioner = GroupBasedPartitioner(module_of(graph), takes("sin", "add"), True, node_groups=[group])
    assert names_in(partitioner.propose_partitions()) == [["sin", "add", "sin_1"]]
    with_support = generate_grouped_partitions_from_list_of_nodes(
        module_of(graph), [[nodes["a"], nodes["b"]]], any_chain(Named("add"), Named("exp"))
    )
    assert names_in(with_support) == [["sin", "cos", "exp", "add"]]
    broken = generate_grouped_partitions_from_list_of_nodes(module_of(graph), [[nodes["b"], nodes["d"]]])
    assert broken == []


class Named(OperatorSupportBase):
    def __init__(self, *names: str) -> None:
        self.names = names

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node.op == "call_function" and getattr(node.target, "__name__", "") in self.names


def test_listed_placeholders_go_where_they_are_used() -> None:
    graph, nodes = graph_of("x = input\nw = input\na = cos x\nb = add a w\nc = sin b")
    listed = [[nodes["w"], nodes["b"]], [nodes["c"]]]
    assert names_in(generate_partitions_from_list_of_nodes(module_of(graph), listed)) == [["w", "add", "sin"]]
    assert names_in(generate_grouped_partitions_from_list_of_nodes(module_of(graph), listed)) == [["w", "add", "sin"]]


def test_a_list_or_a_support_object_is_needed() -> None:
    graph, _ = graph_of("x = input\na = sin x")
    for function in (generate_partitions_from_list_of_nodes, generate_grouped_partitions_from_list_of_nodes):
        with pytest.raises(PartitionError, match="there is neither a list of nodes nor a support object"):
            function(module_of(graph))
        assert names_in(function(module_of(graph), None, Named("sin"))) == [["sin"]]


def test_a_pattern_is_found_wherever_its_results_are_its_own() -> None:
    pattern, _ = graph_of("x = input\ny = input\na = add x y\nb = sin a")
    text = "p = input\na = add p p\nb = sin a\nc = add b p\nd = sin c\ne = cos c\nf = add d e\ng = sin f"
    graph, _ = graph_of(text)
    found = [[node.name for node in place.values()] for place in find_pattern(graph, pattern)]
    assert found == [["sin", "add"], ["sin_2", "add_2"]], "the second sum is used by the cosine too"


def test_places_of_a_pattern_do_not_overlap() -> None:
    pattern, _ = graph_of("x = input\na = sin x\nb = sin a")
    graph, _ = graph_of("x = input\na = sin x\nb = sin a\nc = sin b\nd = sin c\ne = sin d")
    assert [sorted(node.name for node in place.values()) for place in find_pattern(graph, pattern)] == [
        ["sin", "sin_1"],
        ["sin_2", "sin_3"],
    ]


def test_a_pattern_may_have_several_results() -> None:
    pattern = Graph()
    x = pattern.placeholder("x")
    shared = pattern.call_function(torch.exp, (x,))
    pattern.output((pattern.call_function(torch.sin, (shared,)), pattern.call_function(torch.cos, (shared,))))
    text = "x = input\na = exp x\nb = sin a\nc = cos a\nd = add b c\ne = exp d\nf = sin e\ng = add e f\nh = cos g"
    graph, _ = graph_of(text)
    assert [sorted(node.name for node in place.values()) for place in find_pattern(graph, pattern)] == [
        ["cos", "exp", "sin"]
    ]


def test_patterns_without_operations_or_in_pieces_are_refused() -> None:
    graph, _ = graph_of("x = input\na = sin x")
    empty = Graph()
    empty.output(empty.placeholder("x"))
    with pytest.raises(PartitionError, match="a pattern has no operation"):
        find_pattern(graph, empty)
    pieces = Graph()
    x, y = pieces.placeholder("x"), pieces.placeholder("y")
    pieces.output((pieces.call_function(torch.sin, (x,)), pieces.call_function(torch.cos, (y,))))
    with pytest.raises(PartitionError, match="the pattern is not connected"):
        find_pattern(graph, pieces)


def edge(module: torch.nn.Module, *args: Any, keep: Any = ()) -> ExportedProgram:
    return to_edge(torch.export.export(module, args, strict=False), keep=keep)


class Softened(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.softmax(x, dim=-1)
        b = torch.softmax(a + 1, dim=0)
        return torch.softmax(torch.relu(b), dim=-1)


class Softmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def test_literals_of_a_pattern_count_unless_they_are_ignored() -> None:
    program, pattern = edge(Softened(), torch.randn(3, 4)), edge(Softmax(), torch.randn(3, 4)).graph
    assert len(find_pattern(program.graph, pattern)) == 2
    assert len(find_pattern(program.graph, pattern, ignore_literals=True)) == 3
    module = program.graph_module
    assert len(generate_pattern_op_partitions(module, [pattern])) == 2
    assert len(generate_pattern_op_partitions(module, [pattern], ignore_literals=True)) == 3
    sums = [node for node in program.graph.nodes if "add" in node.name]
    assert [len(part.nodes) for part in generate_pattern_op_partitions(module, [pattern], [sums])] == [1, 2]
    support = OperatorSet(["aten.add", "aten.relu"])
    everything = generate_pattern_op_partitions(module, [pattern], None, support.__contains__, True)
    assert [len(part.nodes) for part in everything] == [5]
    assert generate_pattern_op_partitions(module) == []
    assert all("match" not in node.meta for node in program.graph.nodes)


def test_an_argument_that_is_a_default_is_the_same_as_none_given() -> None:
    def with_arguments(*arguments: Any, **keywords: Any) -> Graph:
        graph = Graph()
        x = graph.placeholder("x")
        graph.output(graph.call_function(ops.edge.aten.sum.dim_IntList, (x, *arguments), keywords))
        return graph

    pattern = with_arguments([1])
    assert len(find_pattern(with_arguments([1], False), pattern)) == 1
    assert len(find_pattern(with_arguments(dim=[1]), pattern)) == 1
    assert find_pattern(with_arguments([1], True), pattern) == []
    assert find_pattern(with_arguments([True]), pattern) == []


def test_operators_have_one_name_in_all_dialects() -> None:
    assert operator_name(torch.ops.aten.add.Tensor) == "aten.add.Tensor"
    assert operator_name(ops.edge.aten.add.Tensor) == "aten.add.Tensor"
    assert operator_name(ops.edge.aten.add) == "aten.add"
    assert operator_name(torch.ops.aten.add) == "aten.add"
    assert operator_name("executorch.exir.dialects.edge._ops.aten.add.Tensor") == "aten.add.Tensor"
    assert operator_name("hatch_lower.exir.dialects.edge._ops.aten.add.Tensor") == "aten.add.Tensor"
    assert (
        operator_name("edge._ops.dim_order_ops._to_dim_order_copy.default")
        == "dim_order_ops._to_dim_order_copy.default"
    )
    assert operator_name(operator.getitem) == "_operator.getitem"
    assert operator_name(torch.ops.higher_order.cond) == "higher_order.cond"


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(torch.relu(layer(x)))
        return x


def test_partitioning_by_a_list_of_operators() -> None:
    module, x = Layers(), torch.randn(2, 4)
    specs = [CompileSpec("level", b"2")]
    partitioner = OperatorListPartitioner(
        "RecordingBackend", specs, [torch.ops.aten.linear.default, ops.edge.aten.relu, "aten.add.Tensor"]
    )
    kept, keep_filter = partitioner.ops_to_not_decompose(edge(module, x))
    assert kept == [torch.ops.aten.linear.default]
    assert keep_filter is None
    program = edge(module, x, keep=kept)
    lowered = lower_methods({"forward": program}, {"forward": partitioner})["forward"]
    assert lowered.partitions == 3
    torch.testing.assert_close(lowered.program.module()(x), module(x))
    names = ["aten_tanh_default", "aten_tanh_default_1", "aten_tanh_default_2"]
    reason = "`aten.tanh.default` is not among the operators of the backend `RecordingBackend`"
    assert lowered.reasons == dict.fromkeys(names, reason)
    assert len(get_delegates(lowered.program.graph)) == 3
    assert [node.name for node in get_non_lowered_nodes(lowered.program.graph)] == names
    with pytest.raises(TypeError, match="'mappingproxy' object does not support item assignment"):
        partitioner.spec["operators"] = ()  # type: ignore[index]


def test_all_nodes_are_one_partition() -> None:
    module, x = Layers(), torch.randn(2, 4)
    partitioner = AllNodePartitioner("RecordingBackend", [])
    assert partitioner.ops_to_not_decompose(edge(module, x)) == ([], None)
    lowered = to_backend(edge(module, x), partitioner)
    assert len(get_delegates(lowered.graph)) == 1
    assert get_non_lowered_nodes(lowered.graph) == []
    assert lowered.state_dict == {}
    torch.testing.assert_close(lowered.module()(x), module(x))


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(torch.sin(x))

        def negative(x: torch.Tensor) -> torch.Tensor:
            return torch.cos(x)

        return torch.relu(torch.cond(x.sum() > 0, positive, negative, (x,)))


def test_branches_of_control_flow_are_partitioned_unless_they_are_taken_whole() -> None:
    program = edge(Branches(), torch.randn(3))
    partitioner = SupportPartitioner(
        "RecordingBackend", [], OperatorSet(["aten.sin", "aten.cos", "aten.relu"]).__contains__
    )
    lowered = lower_methods({"forward": program}, {"forward": partitioner})["forward"]
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(lowered.program.module()(x), Branches()(x))
    assert lowered.partitions == 3
    whole = SupportPartitioner("RecordingBackend", [], lambda node: True)
    assert len(whole(edge(Branches(), torch.randn(3))).partition_tags) == 1


def test_a_support_object_says_why_through_its_reporter() -> None:
    reporter = WhyNoPartitionReporter()

    class Choosy(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            if "tanh" in node.name:
                reporter.report_reject(node, "It has no table for tanh. ")
                return False
            return "relu" in node.name

    partitioner = SupportPartitioner("RecordingBackend", [], Choosy(), reporter=reporter)
    for _ in range(2):
        reasons = partitioner(edge(Layers(), torch.randn(2, 4), keep=[torch.ops.aten.linear.default])).reasons
    assert reasons["aten_tanh_default"] == "It has no table for tanh."
    assert (
        reasons["aten_linear_default"]
        == "the backend `RecordingBackend` does not support this call of `aten.linear.default`"
    )
    assert reporter.get_table_report().splitlines()[:2] == [
        "node                 operator           reason",
        "aten_tanh_default    aten.tanh.default  It has no table for tanh.",
    ]
    assert WhyNoPartitionReporter().get_table_report() == "No node was rejected."


def test_why_no_partition_logs_and_reports(caplog: pytest.LogCaptureFixture) -> None:
    _, nodes = graph_of("x = input\na = sin x")
    reporter = WhyNoPartitionReporter()
    why = WhyNoPartition(logging.getLogger("backend"), reporter)
    with caplog.at_level(logging.DEBUG, "backend"):
        why(nodes["a"], "it is a sine")
        why(nodes["a"], "nobody likes it")
    assert caplog.messages[0] == "WhyNoPartition: Node sin was not partitioned because it is a sine."
    assert reporter.reasons == {"sin": "it is a sine; nobody likes it"}


def test_partitioning_by_patterns_takes_each_place_whole() -> None:
    class Linear(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.nn.functional.linear(x, weight, bias))

    pattern = edge(Linear(), torch.randn(2, 4), torch.randn(4, 4), torch.randn(4)).graph
    module, x = Layers(), torch.randn(2, 4)
    partitioner = PatternPartitioner("RecordingBackend", [], [pattern], keep=[torch.ops.aten.gelu.default])
    assert partitioner.ops_to_not_decompose(edge(module, x)) == ([torch.ops.aten.gelu.default], None)
    lowered = lower_methods({"forward": edge(module, x)}, {"forward": partitioner})["forward"]
    assert (lowered.partitions, lowered.reused) == (3, 2)
    assert (
        lowered.reasons["aten_tanh_default"]
        == "no pattern of the backend `RecordingBackend` covers this call of `aten.tanh.default`"
    )
    torch.testing.assert_close(lowered.program.module()(x), module(x))


def test_partitioning_by_groups_gives_a_reason_for_broken_ones() -> None:
    def pairs(module: GraphModule) -> list[list[Node]]:
        relus = [node for node in module.graph.nodes if "relu" in node.name]
        return [relus[:2], [relus[2], relus[2].all_input_nodes[0]]]

    module, x = Layers(), torch.randn(2, 4)
    result = GroupPartitioner("RecordingBackend", [], pairs)(edge(module, x, keep=[torch.ops.aten.linear.default]))
    assert len(result.partition_tags) == 1
    assert result.reasons["aten_relu_default"] == (
        "its group cannot run as one call: a path leaves it and comes back, "
        "`aten_relu_default` → `aten_tanh_default` → `aten_linear_default_1` → `aten_relu_default_1`"
    )
    assert (
        result.reasons["aten_tanh_default"]
        == "this call of `aten.tanh.default` is in no group that `RecordingBackend` takes"
    )


class Shared(torch.nn.Module):
    """One weight with users in several places, one of them a list argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        x = torch.sin(x * self.weight)
        x = torch.cos(x) + self.weight
        return torch.sum(torch.cat([self.weight, torch.sin(x), self.weight, self.count]))


def tag_by(program: ExportedProgram, choose: Callable[[Node], str | None]) -> dict[str, Any]:
    """Tag operations and return the tags of all constants."""
    for node in program.graph.nodes:
        if node.op == "call_function" and (tag := choose(node)) is not None:
            node.meta["delegation_tag"] = tag
    tag_constant_data(program)
    before = constant_tags(program)
    tag_mutated_buffer(program)
    return {**constant_tags(program), "before": before}


def constant_tags(program: ExportedProgram) -> dict[str, Any]:
    nodes = program.graph.find_nodes(op="placeholder")
    return {node.name: node.meta["delegation_tag"] for node in nodes if "delegation_tag" in node.meta}


def test_constants_get_the_smallest_tag_of_their_users(caplog: pytest.LogCaptureFixture) -> None:
    program = edge(Shared(), torch.randn(4))
    with caplog.at_level(logging.INFO, "hatch_lower"):
        tags = tag_by(program, lambda node: "b" if "mul" in node.name else "a" if "cat" in node.name else None)
    assert tags == {"p_weight": "a", "before": {"p_weight": "a"}}
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("hatch_lower")]
    assert ours == ["the constant `weight` is used in the partitions a, b"]
    program = edge(Shared(), torch.randn(4))
    assert tag_by(program, lambda node: "a")["before"] == {"p_weight": "a"}
    assert constant_tags(program) == {"p_weight": "a", "b_count": "a"}


def test_duplicated_constants_share_their_memory_and_lists_are_rewired() -> None:
    module, x = Shared(), torch.randn(4)
    program = edge(module, x)
    eager = [module(x), module(x)]
    module.count.zero_()
    size, signature = len(program.state_dict), program.graph_signature
    assert duplicate_constant_node(program, "p_weight") == {"p_weight_copy_0", "p_weight_copy_1"}
    assert len(program.state_dict) == size
    assert len(signature.input_specs) == 3, "the signature is replaced, not changed: copies of a program share it"
    names = [node.name for node in program.graph.find_nodes(op="placeholder")]
    assert names == ["p_weight_copy_0", "p_weight_copy_1", "p_weight", "b_count", "x"]
    assert all(len(node.users) == 1 for node in program.graph.find_nodes(op="placeholder") if "weight" in node.name)
    program.validate()
    run = program.module()
    torch.testing.assert_close([run(x), run(x)], eager)

    def by_position(node: Node) -> str | None:
        return "first" if "mul" in node.name else "last" if "cat" in node.name else None

    class Tagged(Partitioner):
        def partition(self, exported_program: ExportedProgram) -> PartitionResult:
            tag_by(exported_program, by_position)
            spec = DelegationSpec("RecordingWeightsBackend", [])
            return PartitionResult(exported_program, {"first": spec, "last": spec})

    with recorded() as calls:
        lowered = to_backend(program, Tagged())
    assert len(calls) == 2
    program.state_dict["count"].zero_()
    run = lowered.module()
    torch.testing.assert_close([run(x), run(x)], eager)


def test_duplicating_what_is_no_constant_is_refused() -> None:
    program = edge(Shared(), torch.randn(4))
    assert duplicate_constant_node(program, "nothing") == set()
    with pytest.raises(PartitionError, match="the placeholder `x` is no constant\n  found: USER_INPUT"):
        duplicate_constant_nodes(program, ["x"])
    with pytest.raises(PartitionError, match="the placeholder `b_count` is no constant\n  found: a buffer that"):
        duplicate_constant_node(program, "b_count")


def test_a_returned_constant_keeps_its_placeholder() -> None:
    class Returned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.weight, self.weight

    program = edge(Returned(), torch.randn(4))
    duplicate_constant_node(program, "p_weight")
    program.validate()
    assert program.graph_signature.user_outputs[1] == "p_weight"


def test_no_copy_forbids_sharing() -> None:
    class Strict(Partitioner):
        def partition(self, exported_program: ExportedProgram) -> PartitionResult:
            tag_by(exported_program, lambda node: "first" if "mul" in node.name else None)
            exported_program.graph.find_nodes(op="placeholder")[0].meta["no_copy"] = True
            return PartitionResult(exported_program, {"first": DelegationSpec("RecordingBackend", [])})

    with pytest.raises(PartitionError, match="the constant `weight` must not be shared and has users outside"):
        to_backend(edge(Shared(), torch.randn(4)), Strict())


def test_identical_graphs_have_every_literal_in_common() -> None:
    one, other = edge(Softened(), torch.randn(3, 4)), edge(Softened(), torch.randn(3, 4))
    assert is_identical_graph(one.graph_module, other.graph_module)
    pairs = list(zip(one.graph.nodes, other.graph.nodes, strict=True))
    assert all(is_same_node(left, right) for left, right in pairs)
    assert is_same_node(one.graph.nodes, other.graph.nodes)
    changed = next(node for node in other.graph.nodes if "softmax" in node.name)
    changed.args = (changed.args[0], 0, *changed.args[2:])
    assert not is_identical_graph(one.graph_module, other.graph_module)
    last = [graph.output_node() for graph in (one.graph, other.graph)]
    assert not is_same_node(*last)
    first = [graph.find_nodes(op="placeholder")[0] for graph in (one.graph, other.graph)]
    assert is_same_node(*first)
    assert not is_same_node(one.graph.nodes, [first[0]])
    assert not is_identical_graph(one.graph_module, edge(Softmax(), torch.randn(3, 4)).graph_module)


def test_a_deep_graph_needs_no_recursion() -> None:
    one, _ = chain(4000)
    other, _ = chain(4000)
    assert is_same_node(one.output_node(), other.output_node())
    assert not is_same_node(one.output_node(), chain(4000, every=19)[0].output_node())


class AlsoConstants(OperatorSupportBase):
    """Supports sums and products, and their constants."""

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        if node.op == "placeholder":
            return node.name != "x"
        return node.op == "call_function" and any(name in node.name for name in ("add", "mul"))


def test_constants_that_a_support_accepts_are_in_the_partition_of_their_first_user() -> None:
    class Affine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("b", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x + self.w) * self.b).sin() + self.w

    module = edge(Affine(), torch.ones(3)).graph_module
    for found in (
        GroupBasedPartitioner(module, AlsoConstants(), allows_single_node_partition=True).propose_partitions(),
        generate_partitions_from_list_of_nodes(module, op_support=AlsoConstants()),
    ):
        names = [[node.name for node in each.nodes] for each in found]
        assert names == [["aten_add_tensor_1"], ["p_w", "b_b", "aten_add_tensor", "aten_mul_tensor"]]
