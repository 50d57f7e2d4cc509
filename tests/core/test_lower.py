from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from support.backends import RecordingBackend, TagBy, everything, recorded
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry
from torch.utils._sympy.value_ranges import ValueRanges

from hatch_lower.cache.store import Store
from hatch_lower.errors import BackendError, CacheError, PartitionError
from hatch_lower.exir.backend.backend_api import (
    MethodProgramsPartitionerSpec,
    lower_methods,
    to_backend,
    validation_disabled,
)
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from hatch_lower.exir.delegate import executorch_call_delegate
from hatch_lower.exir.graph.surgery import copy_program
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_aten, to_edge

pytestmark = pytest.mark.torch


class Layers(torch.nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.sin(self.count)
        self.count.add_(1)
        return x + before, x * self.count


def edge(module: torch.nn.Module, *args: Any, dynamic: Any = None) -> ExportedProgram:
    return to_edge(torch.export.export(module, args, dynamic_shapes=dynamic, strict=False))


def delegates(program: ExportedProgram) -> list[LoweredBackendModule]:
    return [getattr(program.graph_module, node.target) for node in program.graph.find_nodes(op="get_attr")]


def by_layer(node: torch.fx.Node) -> str | None:
    """One partition for each linear layer, its relu included."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    names = [str(path) for path, _ in stack if "layers" in str(path)]
    if names:
        return names[-1]
    source = node.args[0]
    return by_layer(source) if isinstance(source, torch.fx.Node) and source.op == "call_function" else None


def test_the_lowered_program_computes_what_the_module_computes() -> None:
    module, x = Layers(), torch.randn(2, 4)
    lowered = to_backend(edge(module, x), TagBy(by_layer))
    assert [each.backend_id for each in delegates(lowered)] == ["RecordingBackend"] * 3
    torch.testing.assert_close(lowered.module()(x), module(x))


def test_the_given_program_is_left_alone() -> None:
    program = edge(Layers(), torch.randn(2, 4))
    before = str(program.graph)
    to_backend(program, TagBy(everything))
    assert str(program.graph) == before
    assert all("delegation_tag" not in node.meta for node in program.graph.nodes)


def test_owned_constants_leave_the_program() -> None:
    lowered = to_backend(edge(Layers(), torch.randn(2, 4)), TagBy(everything))
    assert list(lowered.graph_signature.parameters) == []
    assert lowered.state_dict == {}
    (delegate,) = delegates(lowered)
    assert delegate.constants == tuple(f"layers.{i}.{name}" for i in range(3) for name in ("weight", "bias"))
    assert set(delegate.original_module.state_dict) == set(delegate.constants)


def test_a_backend_sees_local_names_and_stand_ins() -> None:
    module = Layers()
    with recorded() as calls:
        to_backend(edge(module, torch.randn(2, 4)), TagBy(everything))
    program, _ = calls[0]
    assert [node.name for node in program.graph.nodes][:8] == ["c0", "c1", "c2", "c3", "c4", "c5", "x0", "n0"]
    assert list(program.state_dict) == [f"c{i}" for i in range(6)]
    assert program.state_dict["c0"].shape == (4, 4)
    assert program.state_dict["c0"].data_ptr() != module.layers[0].weight.data_ptr()
    metas = {key for node in program.graph.nodes for key in node.meta}
    assert metas == {"val", "debug_handle"}


def test_equal_layers_are_lowered_once_and_keep_their_own_constants_and_handles() -> None:
    with recorded() as calls:
        lowered = lower_methods({"forward": edge(Layers(), torch.randn(2, 4))}, {"forward": TagBy(by_layer)})["forward"]
        assert len(calls) == 1
    assert (lowered.partitions, lowered.reused) == (3, 2)
    first, second, third = delegates(lowered.program)
    assert first.processed_bytes == second.processed_bytes == third.processed_bytes
    assert second.constants == ("layers.1.weight", "layers.1.bias")
    maps = [sorted(each.meta["debug_handle_map"].values()) for each in (first, second, third)]
    assert len({handle for each in maps for handles in each for handle in handles}) == 6


def test_a_second_lowering_finds_everything_in_the_cache(tmp_path: Path) -> None:
    def lower(module: torch.nn.Module, mode: str, backend: str = "RecordingBackend", **specs: bytes) -> int:
        store = Store(tmp_path, mode, pytest.fail)
        programs = {"forward": edge(module, torch.randn(2, 4))}
        with recorded() as calls:
            lower_methods(programs, {"forward": TagBy(everything, backend, specs)}, store=store)
            return len(calls)

    assert lower(Layers(), "on") == 1
    assert lower(Layers(), "frozen") == 0
    torch.manual_seed(1)
    other = Layers()
    torch.nn.init.zeros_(other.layers[0].weight)
    assert lower(other, "frozen") == 0, "weights are not part of a weight-free backend's key"
    with pytest.raises(CacheError, match="a partition of `forward` for the backend `RecordingBackend`"):
        lower(Layers(2), "frozen")
    with pytest.raises(CacheError):
        lower(Layers(), "frozen", level=b"2")
    assert lower(Layers(), "on", "RecordingWeightsBackend") == 1
    assert lower(Layers(), "on", "RecordingWeightsBackend") == 0
    assert lower(other, "on", "RecordingWeightsBackend") == 1


def test_a_cached_result_is_the_result(tmp_path: Path) -> None:
    store = Store(tmp_path, "on", pytest.fail)
    program = edge(Layers(), torch.randn(2, 4))
    first, second = (
        delegates(lower_methods({"m": program}, {"m": TagBy(everything)}, store=store)["m"].program)[0]
        for _ in range(2)
    )
    assert first.processed_bytes == second.processed_bytes
    assert first.meta == second.meta
    assert first.constants == second.constants


def test_state_stays_with_a_delegate_that_holds_all_of_it() -> None:
    module, x = Counter(), torch.randn(4)
    lowered = to_backend(edge(module, x), TagBy(everything))
    assert list(lowered.graph_signature.buffers_to_mutate) == []
    (call,) = lowered.graph.find_nodes(op="call_function", target=executorch_call_delegate)
    assert len(call.meta["val"]) == 2, "the consumed mutation is no result of the call"


def test_a_buffer_that_two_partitions_use_stays_in_the_program() -> None:
    def split(node: torch.fx.Node) -> str:
        return (
            "reads" if "sin" in str(node.target) else "writes" if node.target.__name__ != "aten.mul.Tensor" else "last"
        )

    module, x = Counter(), torch.randn(4)
    eager = copy.deepcopy(module)
    lowered = to_backend(edge(module, x), TagBy(split))
    assert set(lowered.graph_signature.buffers_to_mutate.values()) == {"count"}
    run = lowered.module()
    for _ in range(3):
        torch.testing.assert_close(run(x), eager(x))


class Tally(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


class Peek(torch.nn.Module):
    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.count = tally.count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.count


@pytest.mark.parametrize(("backend", "owned"), [("RecordingBackend", True), ("RecordingWeightsBackend", False)])
def test_state_that_two_methods_see_goes_into_no_blob(backend: str, owned: bool) -> None:
    tally, x = Tally(), torch.randn(3)
    programs = {"forward": edge(tally, x), "peek": edge(Peek(tally), x)}
    partitioner = TagBy(everything, backend)
    lowered = lower_methods(programs, {"forward": partitioner, "peek": partitioner})
    kept = {name for each in lowered.values() for name in each.program.state_dict}
    assert kept == (set() if owned else {"count"})
    alone = lower_methods({"forward": programs["forward"]}, {"forward": partitioner})["forward"]
    assert set(alone.program.state_dict) == set()


def test_parameters_may_be_named_like_built_in_functions() -> None:
    class Named(torch.nn.Module):
        def forward(self, input: torch.Tensor, max: torch.Tensor) -> torch.Tensor:
            return torch.sin(input) + torch.cos(max)

    args = torch.randn(3), torch.randn(3)
    program = edge(Named(), *args)
    lowered = to_backend(program, TagBy(lambda node: "part" if "sin" in str(node.target) else None))
    torch.testing.assert_close(to_aten(program).module()(*args), Named()(*args))
    torch.testing.assert_close(lowered.module()(*args), Named()(*args))


def test_results_of_a_delegate_and_of_other_operations_have_names_of_their_own() -> None:
    class Largest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.max(torch.sin(x), dim=0).values

    x = torch.randn(3, 4)
    lowered = to_backend(edge(Largest(), x), TagBy(lambda node: "part" if "sin" in str(node.target) else None))
    torch.testing.assert_close(lowered.module()(x), Largest()(x))


def test_symbolic_sizes_cross_the_border() -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).reshape(x.shape[0] * 4) + 1

    batch = torch.export.Dim("batch", min=2, max=16)
    program = edge(Halves(), torch.randn(3, 4), dynamic={"x": {0: batch}})
    lowered = to_backend(program, TagBy(lambda node: "last" if "view" in str(node.target) else None))
    x = torch.randn(5, 4)
    torch.testing.assert_close(lowered.module()(x), Halves()(x))


def test_a_circle_is_refused_with_tag_nodes_and_path() -> None:
    class Diamond(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(torch.cos(torch.exp(x))) + torch.exp(x)

    with pytest.raises(PartitionError) as caught:
        to_backend(edge(Diamond(), torch.randn(4)), TagBy(lambda node: None if "cos" in str(node.target) else "part"))
    assert str(caught.value) == (
        "the partition `part` cannot run as one call: it needs its own result\n"
        "  where: tag `part`\n"
        "  found: `aten_sin_default` needs `aten_cos_default`; `aten_cos_default` needs `aten_exp_default`\n"
        "  to do: split the partition so that no path leaves it and comes back"
    )


def test_two_partitions_that_need_each_other_are_refused() -> None:
    class Crossed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cos(torch.sin(x)) + torch.sin(torch.cos(x))

    def choose(node: torch.fx.Node) -> str | None:
        return {"sin": "a", "cos": "b"}.get(str(node.target).split(".")[1])

    with pytest.raises(PartitionError, match=r"the partitions `a`, `b` need each other's results"):
        to_backend(edge(Crossed(), torch.randn(4)), TagBy(choose))


def test_an_operation_is_not_separated_from_its_results() -> None:
    class Maximum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.max(x, dim=0).values + 1

    with pytest.raises(
        PartitionError, match="the operation `aten_max_dim` and its result `getitem` are in different partitions"
    ):
        to_backend(edge(Maximum(), torch.randn(4, 4)), TagBy(lambda node: "a" if "max" in str(node.target) else None))


class Meddling(Partitioner):
    def __init__(
        self, change: Callable[[ExportedProgram], None], tags: dict[str, DelegationSpec] | None = None
    ) -> None:
        super().__init__()
        self.change, self.tags = change, {} if tags is None else tags

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self.change(exported_program)
        return PartitionResult(exported_program, self.tags)


def change_a_literal(program: ExportedProgram) -> None:
    node = next(node for node in program.graph.nodes if "permute" in node.name)
    node.args = (node.args[0], [0, 1])


def test_a_partitioner_that_changes_a_literal_is_refused_unless_validation_is_off() -> None:
    program = edge(Layers(), torch.randn(2, 4))
    with pytest.raises(PartitionError, match="the partitioner changed the program"):
        to_backend(program, Meddling(change_a_literal))
    with validation_disabled():
        to_backend(program, Meddling(change_a_literal))


class Pair(torch.nn.Module):
    """Its two weights are alike but for their contents."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.full((2,), 1.0))
        self.b = torch.nn.Parameter(torch.full((2,), 10.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.a + self.b


def swap_targets(program: ExportedProgram) -> None:
    first, second = program.graph_signature.input_specs[:2]
    first.target, second.target = second.target, first.target


def replace_a_weight(program: ExportedProgram) -> None:
    program.state_dict["a"] = torch.nn.Parameter(torch.full((2,), 100.0))


def rename_a_node(program: ExportedProgram) -> None:
    next(iter(program.graph.nodes))._rename("other")


def change_the_call(program: ExportedProgram) -> None:
    program.module_call_graph.append(ModuleCallEntry("other"))


def change_a_range(program: ExportedProgram) -> None:
    program.range_constraints[sympy.Symbol("s99")] = ValueRanges(0, 1)


def write_a_weight(program: ExportedProgram) -> None:
    program.state_dict["a"].data.mul_(-1)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (swap_targets, "other names in the graph or its signature than before"),
        (rename_a_node, "other names in the graph or its signature than before"),
        (replace_a_weight, "another tensor under the name `a` than before"),
        (change_the_call, "another calling convention, or other ranges of sizes, than before"),
        (change_a_range, "another calling convention, or other ranges of sizes, than before"),
    ],
)
def test_a_change_beside_the_graph_is_refused_and_does_not_reach_the_given_program(
    change: Callable[[ExportedProgram], None], found: str
) -> None:
    program, x = edge(Pair(), torch.ones(2)), torch.ones(2)
    with pytest.raises(PartitionError, match="the partitioner changed the program") as caught:
        to_backend(program, Meddling(change))
    assert caught.value.found == found
    torch.testing.assert_close(program.module()(x), torch.full((2,), 11.0))
    torch.testing.assert_close(to_backend(program, TagBy(everything)).module()(x), torch.full((2,), 11.0))


def test_a_partitioner_that_writes_into_a_weight_is_refused() -> None:
    with pytest.raises(PartitionError, match="a partitioner changed the model's weights") as caught:
        to_backend(edge(Pair(), torch.ones(2)), Meddling(write_a_weight))
    assert caught.value.found == "other contents of `a` than before"


def test_a_program_is_copied_with_all_but_its_tensors() -> None:
    program = edge(Pair(), torch.ones(2))
    copied = copy_program(program)
    assert copied.graph_signature == program.graph_signature
    for change in (swap_targets, change_the_call, change_a_range, replace_a_weight):
        change(copied)
    assert copied.graph_signature != program.graph_signature
    assert len(program.module_call_graph) < len(copied.module_call_graph)
    assert program.range_constraints == {}
    assert copied.state_dict["b"] is program.state_dict["b"]
    torch.testing.assert_close(program.module()(torch.ones(2)), torch.full((2,), 11.0))


def tag(names: str, value: str) -> Callable[[ExportedProgram], None]:
    def change(program: ExportedProgram) -> None:
        for node in program.graph.nodes:
            if node.name == names or node.op == names:
                node.meta["delegation_tag"] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            tag("aten_relu_default", "unknown"),
            "a node carries the tag `unknown`, which the partitioner did not declare",
        ),
        (tag("output", "a"), "the output `output` is tagged `a`"),
        (tag("x", "a"), "the user input `x` is tagged `a`"),
    ],
)
def test_tags_that_mean_nothing_are_refused(change: Callable[[ExportedProgram], None], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        to_backend(edge(Layers(), torch.randn(2, 4)), Meddling(change, {"a": DelegationSpec("RecordingBackend", [])}))


def test_the_three_shapes_and_nothing_else() -> None:
    program = edge(Layers(), torch.randn(2, 4))
    module = to_backend("RecordingBackend", program, [CompileSpec("a", b"1")])
    assert module.original_module is program
    assert module.compile_specs == [CompileSpec("a", b"1")]
    both = to_backend(MethodProgramsPartitionerSpec({"a": program, "b": program}, {"b": TagBy(everything)}))
    assert list(both) == ["a", "b"]
    assert both["a"] is program
    with pytest.raises(TypeError, match=r"it was given \(dict\)"):
        to_backend({})  # type: ignore[call-overload]


def test_unknown_backends_and_wrong_answers_are_named() -> None:
    program = edge(Layers(), torch.randn(2, 4))
    with pytest.raises(BackendError, match="there is no backend `RecordinBackend`"):
        to_backend("RecordinBackend", program, [])

    class TooFewBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> Any:
            raise NotImplementedError

        @classmethod
        def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> Any:
            return {"forward": []}

    with pytest.raises(
        BackendError, match="the backend `TooFewBackend` must return 1 results for the method `forward`"
    ):
        to_backend("TooFewBackend", program, [])


class CopyingBackend(BackendDetails):
    """Doubles every weight, in a copy."""

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> ExportedProgram:
        return copy.deepcopy(edge_program)

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        for tensor in edge_program.state_dict.values():
            tensor.data.mul_(2)
        return PreprocessResult(str(float(edge_program.state_dict["c1"].detach().sum())).encode())


def test_a_backend_may_copy_what_it_changes() -> None:
    module = Layers(1)
    before = module.layers[0].bias.clone()
    lowered = to_backend(edge(module, torch.randn(2, 4)), TagBy(everything, "CopyingBackend"))
    assert float(delegates(lowered)[0].processed_bytes) == pytest.approx(2 * float(before.detach().sum()))
    torch.testing.assert_close(module.layers[0].bias, before)


@pytest.mark.parametrize("bases", [(RecordingBackend,), (RecordingBackend, BackendDetails)])
def test_a_backend_derives_from_backend_details_directly(bases: tuple[type, ...]) -> None:
    with pytest.raises(TypeError, match="derive it from BackendDetails directly"):
        type("Nested", bases, {})


def test_errors_are_those_that_callers_of_executorch_catch() -> None:
    program = edge(Layers(), torch.randn(2, 4))
    with pytest.raises(NotImplementedError, match="there is no backend `Nowhere`"):
        to_backend("Nowhere", program, [])
    for kind in (RuntimeError, AssertionError):
        with pytest.raises(kind, match="the partitioner changed the program"):
            to_backend(program, Meddling(change_a_literal))


def test_a_tag_that_no_operation_carries_means_nothing_whatever_backend_it_names() -> None:
    tags = {"used": DelegationSpec("RecordingBackend", []), "unused": DelegationSpec("Nowhere", [])}
    lowered = to_backend(edge(Layers(), torch.randn(2, 4)), Meddling(tag("aten_relu_default", "used"), tags))
    assert len(delegates(lowered)) == 1
    with pytest.raises(BackendError, match="there is no backend `Nowhere`"):
        to_backend(edge(Layers(), torch.randn(2, 4)), Meddling(tag("aten_relu_default", "unused"), tags))


def test_a_compile_spec_that_is_not_bytes_is_refused_where_it_is_made() -> None:
    with pytest.raises(BackendError, match="the value of the compile spec `path` is not bytes") as caught:
        CompileSpec("path", "/a")  # type: ignore[arg-type]
    assert caught.value.found == "'/a'"


def test_a_debug_handle_that_no_node_has_is_refused() -> None:
    class FarBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
            return PreprocessResult(b"", {0: (1, 99)})

    with pytest.raises(BackendError, match="returned a debug handle that no node has") as caught:
        to_backend("FarBackend", edge(Layers(1), torch.randn(2, 4)), [])
    assert caught.value.found == "99; the partition has the handles 1 to 2"


def test_a_deep_copy_shares_weights() -> None:
    lowered = to_backend(edge(Layers(), torch.randn(2, 4)), TagBy(everything))
    (module,) = delegates(lowered)
    copied = copy.deepcopy(module)
    name = module.constants[0]
    assert copied.original_module.state_dict[name] is module.original_module.state_dict[name]
    assert copied.constants == module.constants


def test_parameters_may_have_the_names_of_builtins_and_of_operations() -> None:
    class Named(torch.nn.Module):
        def forward(self, sum: torch.Tensor, max: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return sum.sum(), max.sum(0), max.max()

    args = (torch.randn(2, 2), torch.randn(2, 2))
    for choose in (lambda node: None, everything, lambda node: "max" if "max" in str(node.target) else None):
        lowered = to_backend(edge(Named(), *args), TagBy(choose))
        torch.testing.assert_close(lowered.module()(*args), Named()(*args))


def test_a_backends_notes_are_lines_of_the_build_and_other_warnings_stay() -> None:
    from hatch_lower.exir.backend.backend_details import BackendNote
    from hatch_lower.pipeline.lower import notes_given_to

    def warn_thrice() -> None:
        with notes_given_to(lines.append):
            for text, category in (("note", BackendNote), ("note", BackendNote), ("other", RuntimeWarning)):
                warnings.warn(text, category, stacklevel=1)

    lines: list[str] = []
    with pytest.warns(RuntimeWarning, match="other") as caught:
        warn_thrice()
    assert lines == ["note", "note"]
    assert len(caught) == 1
