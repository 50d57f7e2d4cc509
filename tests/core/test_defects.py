"""The defects of ExecuTorch's backend layer that were reproduced: a test for each that shows ours right.

Their numbers are those of the table in the documentation for backend authors.
"""

from __future__ import annotations

import copy
import cProfile
import gc
import pstats
import tracemalloc
import weakref
from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import pytest
import torch
from support.backends import RecordingBackend, TagBy, everything, recorded
from torch._higher_order_ops.while_loop import while_loop
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from hatch_lower.errors import BackendError, PartitionError
from hatch_lower.exir.backend.backend_api import MethodProgramsPartitionerSpec, lower_methods, to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.canonical_partitioners.group_partitioner import CapabilityBasedPartitioner
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.surgery import copy_program, graph_modules
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.lower import Turn, lower_exported
from hatch_lower.exir.program._program import to_edge_transform_and_lower

pytestmark = pytest.mark.torch

Choose = Callable[[Node], str | None]


def module(forward: Callable[..., Any], **state: Any) -> torch.nn.Module:
    """Return a module with `forward(self, …)`; tensors of its state are buffers."""
    made: torch.nn.Module = type("Module", (torch.nn.Module,), {"forward": forward})()
    for name, value in state.items():
        plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        made.register_buffer(name, value) if plain else setattr(made, name, value)
    return made.eval()


def edge(made: torch.nn.Module, *args: Any) -> ExportedProgram:
    return to_edge(torch.export.export(copy.deepcopy(made), args, strict=False))


def delegates(program: ExportedProgram) -> list[LoweredBackendModule]:
    modules = [child for each in graph_modules(program.graph_module) for child in each.children()]
    return [each for each in modules if isinstance(each, LoweredBackendModule)]


def operator_of(node: Node) -> str:
    """Return `add` for `aten.add.Tensor`."""
    return str(node.target).split(".")[1] if node.target is not getitem else "getitem"


def by_operator(**tags: str) -> Choose:
    """Tag operations by their operators' names."""
    return lambda node: tags.get(operator_of(node))


def in_order(*names: str | None) -> Choose:
    """Tag operations by their position in the graph."""
    left = iter(names)
    return lambda node: next(left)


def assert_runs_alike(program: ExportedProgram, made: torch.nn.Module, *args: Any, calls: int = 3) -> None:
    """Run a program and a module side by side, several times."""
    run, eager = program.module(), copy.deepcopy(made)
    for _ in range(calls):
        torch.testing.assert_close(run(*args), eager(*args))


def chain(length: int) -> torch.nn.Module:
    def forward(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        for index in range(length):
            x = x + 1.0 if index % 2 else x * 1.5
        return x

    return module(forward)


def alternate(block: int) -> Choose:
    """Take every second block of a chain, each with a tag of its own."""
    count = iter(range(10**6))

    def choose(node: Node) -> str | None:
        number = next(count) // block
        return None if number % 2 else f"block_{number}"

    return choose


def test_1_work_grows_with_the_graph_and_not_with_its_product_with_the_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = compiled = 0
    node_copy, recompile = Graph.create_node, GraphModule.recompile

    def count_node(self: Graph, *args: Any, **kwargs: Any) -> Node:
        nonlocal copied
        copied += 1
        return node_copy(self, *args, **kwargs)

    def count_module(self: GraphModule) -> Any:
        nonlocal compiled
        compiled += 1
        return recompile(self)

    def cost(length: int) -> tuple[int, int]:
        nonlocal copied, compiled
        program, choose = edge(chain(length), torch.ones(2)), alternate(5)
        with monkeypatch.context() as context:
            context.setattr(Graph, "create_node", count_node)
            context.setattr(GraphModule, "recompile", count_module)
            copied = compiled = 0
            to_backend(program, TagBy(choose))
        return copied, compiled

    small, middle, large = (cost(length) for length in (50, 100, 200))
    for index in range(2):
        assert large[index] - middle[index] == 2 * (middle[index] - small[index])
    assert large[0] < 10 * 200
    assert large[1] < 3 * 20 + 5


def test_2_nothing_of_a_lowered_model_stays_alive() -> None:
    def lower() -> list[weakref.ref[Any]]:
        made = module(lambda self, x: torch.relu(self.linear(x)), linear=torch.nn.Linear(8, 8))
        program = to_edge(torch.export.export(made, (torch.randn(2, 8),), strict=False))
        split = TagBy(by_operator(relu="a", addmm="b", permute="b", permute_copy="b"), "RecordingWeightsBackend")
        spec = MethodProgramsPartitionerSpec({"forward": program}, {"forward": split})
        lowered = [to_backend(spec)["forward"], to_backend(program, TagBy(everything))]
        assert [len(delegates(each)) for each in lowered] == [2, 1]
        weights = [made.linear.weight, made.linear.bias]
        return [weakref.ref(each) for each in (*weights, program, *lowered, *lowered[0].graph.nodes)]

    with recorded() as calls:
        kept = lower()
        calls.clear()
    gc.collect()
    assert [each() for each in kept if each() is not None] == []


def shared_weight(users: int) -> torch.nn.Module:
    def forward(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(users):
            x = torch.sin(x @ self.weight)
        return x

    return module(forward, weight=torch.nn.Parameter(torch.randn(4, 4)))


@pytest.mark.parametrize("backend", ["RecordingBackend", "RecordingWeightsBackend"])
def test_3_a_weight_with_31_users_is_not_copied(backend: str) -> None:
    made, x = shared_weight(31), torch.randn(4, 4)
    program = edge(made, x)
    weight = program.state_dict["weight"]
    for count, choose in ((16, alternate(2)), (31, alternate(1))):
        lowered = to_backend(program, TagBy(choose, backend))
        found = delegates(lowered)
        assert len(found) == count
        tensors = [tensor for each in found for tensor in each.original_module.state_dict.values()]
        tensors += lowered.state_dict.values()
        assert len(tensors) >= 16
        assert {tensor.data_ptr() for tensor in tensors} == {weight.data_ptr()}
        assert all(set(each.original_module.state_dict) <= {"weight"} for each in found)
        assert_runs_alike(lowered, made, x)


def test_4_backends_are_given_the_weights_themselves() -> None:
    made = module(lambda self, x: self.linear(x), linear=torch.nn.Linear(8, 8))
    programs = {name: edge(made, torch.randn(2, 8)) for name in ("one", "two")}
    partitioners = {name: TagBy(everything, "RecordingWeightsBackend") for name in programs}
    with recorded() as calls:
        lowered = to_backend(MethodProgramsPartitionerSpec(programs, partitioners))
        seen = {tensor.data_ptr() for program, _ in calls for tensor in program.state_dict.values()}
    weights = [tensor.data_ptr() for program in programs.values() for tensor in program.state_dict.values()]
    owned = [tensor for each in lowered.values() for tensor in delegates(each)[0].original_module.state_dict.values()]
    assert seen <= set(weights)
    assert {tensor.data_ptr() for tensor in owned} == set(weights)


def remember(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    seen = torch.sin(self.state)
    self.state.add_(x)
    return seen, torch.cos(x)


@pytest.mark.parametrize("backend", ["RecordingBackend", "RecordingWeightsBackend"])
def test_5_state_that_is_read_in_one_partition_and_changed_in_another_is_one_state(backend: str) -> None:
    made, x = module(remember, state=torch.ones(3)), torch.full((3,), 0.3)
    lowered = to_backend(edge(made, x), TagBy(by_operator(sin="reads", add="changes", cos="changes"), backend))
    assert len(delegates(lowered)) == 2
    assert list(lowered.graph_signature.buffers_to_mutate.values()) == ["state"]
    assert all("state" not in each.original_module.state_dict for each in delegates(lowered))
    assert_runs_alike(lowered, made, x)


@pytest.mark.parametrize("backend", ["RecordingBackend", "RecordingWeightsBackend"])
def test_6_a_reader_outside_sees_what_a_delegate_changes(backend: str) -> None:
    made, x = module(remember, state=torch.ones(3)), torch.full((3,), 0.3)
    lowered = to_backend(edge(made, x), TagBy(by_operator(add="changes", cos="changes"), backend))
    assert len(delegates(lowered)) == 1
    assert list(lowered.graph_signature.buffers_to_mutate.values()) == ["state"]
    assert_runs_alike(lowered, made, x)


class Meddling(Partitioner):
    """Tags nothing, and changes the first operation of a name."""

    def __init__(self, name: str, change: Callable[[Node], None]) -> None:
        super().__init__()
        self.name, self.change = name, change

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self.change(
            next(
                node
                for node in exported_program.graph.nodes
                if node.op == "call_function" and operator_of(node) == self.name
            )
        )
        return PartitionResult(exported_program, {})


LITERALS: Mapping[str, tuple[str, Callable[[Node], None]]] = {
    "a list": ("permute", lambda node: node.update_arg(1, [0, 1])),
    "a number": ("add", lambda node: node.update_arg(1, 2)),
    "its type": ("mul", lambda node: node.update_arg(1, 3)),
    "a keyword": ("add", lambda node: node.update_kwarg("alpha", 2)),
}


@pytest.mark.parametrize("literal", sorted(LITERALS))
def test_7_a_partitioner_that_changes_a_literal_is_refused(literal: str) -> None:
    program = edge(module(lambda self, x: (x.permute(1, 0) + 1) * 3.0), torch.randn(2, 2))
    name, change = LITERALS[literal]
    if name == "permute" and not any("permute.default" in str(node.target) for node in program.graph.nodes):
        name = "permute_copy"
    with pytest.raises(PartitionError) as caught:
        to_backend(program, Meddling(name, change))
    assert str(caught.value) == (
        "the partitioner changed the program\n"
        "  where: `Meddling.partition`\n"
        "  found: another graph than before: an operation, an argument, a literal or a signature differs\n"
        "  to do: only write `node.meta['delegation_tag']`; change graphs in a pass before partitioning"
    )


@pytest.mark.parametrize("function", [torch.cat, torch.stack], ids=["cat", "stack"])
def test_8_a_constant_that_partitions_share_may_stand_in_a_list(function: Callable[..., torch.Tensor]) -> None:
    def forward(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return function([self.weight, x, self.weight]), torch.sin(x) * self.weight

    made, x = module(forward, weight=torch.nn.Parameter(torch.randn(3))), torch.randn(3)
    lowered = to_backend(edge(made, x), TagBy(lambda node: "b" if operator_of(node) in ("sin", "mul") else "a"))
    assert len(delegates(lowered)) == 2
    assert lowered.state_dict == {}
    assert_runs_alike(lowered, made, x)


class TagSines(Partitioner):
    """Tags every sine, in nested graphs too, with one tag."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        for each in graph_modules(exported_program.graph_module):
            for node in each.graph.nodes:
                if node.op == "call_function" and "sin" in str(node.target):
                    node.meta["delegation_tag"] = "sines"
        return PartitionResult(exported_program, {"sines": DelegationSpec("RecordingBackend", [])})


def branches(self: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(t: torch.Tensor) -> torch.Tensor:
        return torch.cond(t.mean() > 1, lambda u: torch.sin(u) + 1, lambda u: torch.sin(u) * 2, (torch.sin(t),))

    x = torch.cond(x.sum() > 0, inner, lambda t: torch.sin(t) - 1, (torch.sin(x),))
    return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, torch.sin(t) * 2), (torch.zeros((), dtype=int), x))[1]


def test_9_delegates_in_control_flow_have_handles_of_their_own_and_loops_are_lowered() -> None:
    made, x = module(branches), torch.rand(4) + 1
    lowered = to_backend(edge(made, x), TagSines())
    calls = [
        node
        for each in graph_modules(lowered.graph_module)
        for node in each.graph.find_nodes(op="call_function", target=executorch_call_delegate)
    ]
    handles = [node.meta["debug_handle"] for node in calls]
    others = {
        node.meta["debug_handle"]
        for each in graph_modules(lowered.graph_module)
        for node in each.graph.nodes
        if node.op == "call_function" and node.target not in (executorch_call_delegate, getitem)
    }
    assert len(delegates(lowered)) == 6, "at the top, in two branches, in two branches of a branch, in a loop's body"
    assert len(set(handles)) == 6
    assert not others & set(handles)
    left = [str(node.target) for each in graph_modules(lowered.graph_module) for node in each.graph.nodes]
    assert not [target for target in left if ".sin." in target]
    for value in (x, -x, x * 3):
        torch.testing.assert_close(lowered.module()(value), made(value))


def test_10_a_calls_value_has_no_place_for_state_that_the_delegate_keeps() -> None:
    made, x = module(remember, state=torch.ones(3)), torch.randn(3)
    lowered = to_backend(edge(made, x), TagBy(everything))
    (call,) = lowered.graph.find_nodes(op="call_function", target=executorch_call_delegate)
    assert len(call.meta["val"]) == len(lowered.graph_signature.output_specs) == 2
    assert sorted(user.args[1] for user in call.users) == [0, 1]
    assert lowered.state_dict == {}
    assert_runs_alike(lowered, made, x)


def largest(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.max(x, dim=0).values + 1


@pytest.mark.parametrize(
    ("choose", "tag", "found"),
    [
        (by_operator(max="a"), "a", "`getitem` has the tag `None`"),
        (by_operator(getitem="a", add="a"), "a", "`max_1` has the tag `None`"),
        (by_operator(max="a", getitem="b"), "a", "`getitem` has the tag `b`"),
    ],
)
def test_11_an_operation_and_its_results_are_not_separated(choose: Choose, tag: str, found: str) -> None:
    program = edge(module(largest), torch.randn(3, 3))
    producer = next(node.name for node in program.graph.nodes if node.op == "call_function")
    with pytest.raises(PartitionError) as caught:
        to_backend(program, TagBy(choose))
    assert str(caught.value) == (
        f"the operation `{producer}` and its result `getitem` are in different partitions\n"
        f"  where: tag `{tag}`\n"
        f"  found: {found.replace('max_1', producer)}\n"
        "  to do: give an operation with several results and all its `getitem` nodes one tag"
    )


class Keeping(Partitioner):
    """Keeps one operator whole, and takes it."""

    def __init__(self, op: Any, wanted: Callable[[Node], bool] | None = None) -> None:
        super().__init__()
        self.op, self.wanted = op, wanted

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        return [self.op], self.wanted

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tag = TagBy(lambda node: node.name if getattr(node.target, "_op", None) is self.op else None)
        return tag.partition(exported_program)


def test_12_what_one_partitioner_keeps_whole_no_other_undoes() -> None:
    aten = torch.ops.aten
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4), torch.nn.Hardswish())
    made, x = module(lambda self, x: self.layers(x), layers=layers), torch.randn(2, 4)
    exported = torch.export.export(made, (x,), strict=False)
    partitioners = [Keeping(aten.linear.default), Keeping(aten.hardswish.default, lambda node: True)]
    for each in (partitioners, partitioners[::-1]):
        result = lower_exported({"forward": exported}, [Turn({"forward": partitioner}) for partitioner in each])
        program = result.edge["forward"]
        kept = [node.target._op for node in program.graph.nodes if hasattr(node.target, "_op")]
        assert kept.count(aten.linear.default) == 2
        assert kept.count(aten.hardswish.default) == 1
        program = result.methods["forward"].program
        assert len(delegates(program)) == 3
        manager = to_edge_transform_and_lower(exported, partitioner=each)
        assert len(delegates(manager.exported_program())) == 3
        for lowered in (program, manager.exported_program()):
            assert_runs_alike(lowered, made, x)


class AnsweringBackend(BackendDetails):
    """Answers what the compile spec says."""

    answers: Mapping[str, Any] = {
        "too few": {"one": [PreprocessResult()], "two": [PreprocessResult()]},
        "too many": {"one": [PreprocessResult()] * 3, "two": [PreprocessResult()]},
        "a method is missing": {"one": [PreprocessResult()] * 2},
        "no mapping": [PreprocessResult()],
        "no results": {"one": [b"bytes", b"bytes"], "two": [PreprocessResult()]},
        "no list": {"one": PreprocessResult(), "two": [PreprocessResult()]},
        "nothing": None,
    }

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        raise NotImplementedError

    @classmethod
    def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> Any:
        return cls.answers[next(iter(compile_specs.values()))[0][0].key]


@pytest.fixture(scope="module")
def one_and_two() -> Mapping[str, ExportedProgram]:
    return {
        "one": edge(module(lambda self, x: torch.cos(torch.exp(torch.sin(x)))), torch.randn(2)),
        "two": edge(module(lambda self, x: torch.tan(x)), torch.randn(2)),
    }


FEW = "the backend `AnsweringBackend` must return 2 results for the method `one`"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("too few", FEW),
        ("too many", FEW),
        ("no list", FEW),
        ("a method is missing", "the backend `AnsweringBackend` must return 1 results for the method `two`"),
        ("no mapping", "the backend `AnsweringBackend` returned no mapping"),
        ("nothing", "the backend `AnsweringBackend` returned no mapping"),
        ("no results", "the backend `AnsweringBackend` did not return a `PreprocessResult`"),
    ],
)
def test_13_a_backends_wrong_answer_is_refused_at_once(
    one_and_two: Mapping[str, ExportedProgram], answer: str, message: str
) -> None:
    programs = {name: copy_program(program) for name, program in one_and_two.items()}
    choose = by_operator(sin="a", cos="b", tan="c")
    partitioner = TagBy(choose, "AnsweringBackend", {answer: b""})
    with pytest.raises(BackendError) as caught:
        to_backend(MethodProgramsPartitionerSpec(programs, dict.fromkeys(programs, partitioner)))
    assert caught.value.what == message
    assert caught.value.hint


def test_14_two_backends_of_one_name_are_refused_by_every_shape() -> None:
    def empty() -> type[BackendDetails]:
        preprocess = staticmethod(lambda program, specs: PreprocessResult())
        return type("TwiceBackend", (BackendDetails,), {"preprocess": preprocess})

    program = edge(chain(2), torch.randn(2))
    kept = [empty(), empty()]
    for given in (
        ("TwiceBackend", program, []),
        (program, TagBy(everything, "TwiceBackend")),
        (MethodProgramsPartitionerSpec({"m": program}, {"m": TagBy(everything, "TwiceBackend")}),),
    ):
        with pytest.raises(BackendError, match="two backends have the id `TwiceBackend`") as caught:
            to_backend(*given)
        assert caught.value.hint == "rename one of the classes"
    del kept


@pytest.mark.parametrize("given", [({},), (None,), ("RecordingBackend",), ([],), (chain(1),)])
def test_14_any_other_argument_is_a_type_error_that_names_the_three_shapes(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError) as caught:
        to_backend(*given)
    for shape in (
        "(backend_id, ExportedProgram, compile_specs)",
        "(ExportedProgram, Partitioner)",
        "(MethodProgramsPartitionerSpec)",
    ):
        assert shape in str(caught.value)


class Declaring(Partitioner):
    """Tags as `choose` says, and declares only some tags."""

    def __init__(self, choose: Choose, *declared: str) -> None:
        super().__init__()
        self.choose, self.declared = choose, declared

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tagged = TagBy(self.choose).partition(exported_program).tagged_exported_program
        return PartitionResult(tagged, {tag: DelegationSpec("RecordingBackend", []) for tag in self.declared})


def test_14_a_tag_that_the_partitioner_did_not_declare_is_refused() -> None:
    program = edge(module(lambda self, x: torch.cos(torch.sin(x))), torch.randn(2))
    with pytest.raises(PartitionError) as caught:
        to_backend(program, Declaring(by_operator(sin="known", cos="orphan"), "known"))
    assert str(caught.value) == (
        "a node carries the tag `orphan`, which the partitioner did not declare\n"
        "  where: node `cos`\n"
        "  to do: return every tag in `PartitionResult.partition_tags`"
    ).replace("`cos`", f"`{names_of(program, 'cos')[0]}`")
    assert len(delegates(to_backend(program, Declaring(by_operator(sin="known"), "known", "without nodes")))) == 1


def names_of(program: ExportedProgram, *operators: str) -> list[str]:
    """Return the names of the operations of some operators, in their order."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [node.name for operator in operators for node in nodes if operator_of(node) == operator]


def test_14_a_partition_that_needs_its_own_result_is_refused_with_the_path() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        first = torch.exp(x)
        return torch.sin(torch.tan(torch.cos(first))) + first

    program = edge(module(forward), torch.randn(2))
    exp, cos, tan, sin = names_of(program, "exp", "cos", "tan", "sin")
    with pytest.raises(PartitionError) as caught:
        to_backend(program, TagBy(by_operator(exp="part", sin="part", add="part")))
    assert str(caught.value) == (
        "the partition `part` cannot run as one call: it needs its own result\n"
        "  where: tag `part`\n"
        f"  found: `{sin}` needs `{tan}`; `{tan}` needs `{cos}`; `{cos}` needs `{exp}`\n"
        "  to do: split the partition so that no path leaves it and comes back"
    )


def test_14_partitions_that_need_each_other_are_refused_with_the_path() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.tan(torch.cos(torch.sin(x))) + torch.exp(torch.relu(torch.neg(x)))

    program = edge(module(forward), torch.randn(2))
    sin, cos, tan, neg, relu, exp = names_of(program, "sin", "cos", "tan", "neg", "relu", "exp")
    with pytest.raises(PartitionError) as caught:
        to_backend(program, TagBy(by_operator(sin="a", exp="a", tan="b", neg="b")))
    assert str(caught.value) == (
        "the partitions `a`, `b` need each other's results\n"
        "  where: tags `a`, `b`\n"
        f"  found: `{exp}` needs `{relu}`; `{relu}` needs `{neg}`; `{tan}` needs `{cos}`; `{cos}` needs `{sin}`\n"
        "  to do: split the partition so that no path leaves it and comes back"
    )


@pytest.mark.parametrize("backend", ["RecordingBackend", "RecordingWeightsBackend"])
def test_15_a_convolution_and_a_batch_norm_in_a_sequence_are_lowered(backend: str) -> None:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 2), torch.nn.BatchNorm2d(3)).eval()
    x = torch.randn(1, 1, 4, 4)
    lowered = to_backend(edge(made, x), TagBy(everything, backend))
    (delegate,) = delegates(lowered)
    owned = {*delegate.original_module.state_dict, *delegate.original_module.constants}
    assert {"0.weight", "0.bias", "1.running_mean", "1.running_var"} <= owned
    assert_runs_alike(lowered, made, x)


def test_16_grouping_costs_time_and_memory_in_proportion_to_the_graph() -> None:
    def cost(length: int) -> tuple[int, int]:
        graph = Graph()
        node = graph.placeholder("x")
        for index in range(length):
            node = graph.call_function(torch.sin if index % 20 == 19 else torch.cos, (node,))
        graph.output(node)
        partitioner = CapabilityBasedPartitioner(
            GraphModule(torch.nn.Module(), graph),
            lambda node: node.target is torch.cos,
            allows_single_node_partition=True,
        )
        profile = cProfile.Profile()
        assert len(profile.runcall(partitioner.propose_partitions)) == length // 20
        tracemalloc.start()
        partitioner.propose_partitions()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return pstats.Stats(profile).total_calls, peak  # type: ignore[attr-defined]

    calls, bytes_used = zip(cost(500), cost(4000), strict=True)
    assert calls[1] < 8 * 1.1 * calls[0]
    assert bytes_used[1] < 8 * 1.3 * bytes_used[0]


@pytest.mark.parametrize("backend", ["RecordingBackend", "RecordingWeightsBackend"])
def test_new_state_may_be_a_result_too(backend: str) -> None:
    def forward(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.state.mul_(2).add_(x)
        return self.state, torch.sin(self.state)

    made, x = module(forward, state=torch.ones(3)), torch.randn(3)
    lowered = to_backend(edge(made, x), TagBy(everything, backend))
    assert lowered.state_dict == {}
    assert_runs_alike(lowered, made, x)
    taken = lower_methods({"forward": edge(made, x)}, {"forward": TagBy(by_operator(mul="a", add="a"), backend)})
    assert_runs_alike(taken["forward"].program, made, x)


def test_a_nested_backend_is_refused_when_its_class_is_made() -> None:
    with pytest.raises(TypeError, match="derives from RecordingBackend; derive it from BackendDetails directly"):
        type("Nested", (RecordingBackend,), {})
