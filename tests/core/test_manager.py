from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.passes.infra.pass_manager import PassManager

from hatch_lower.errors import EdgeError, PartitionError
from hatch_lower.exir._serialize._named_data_store import NamedDataStore
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import Partitioner, PartitionResult
from hatch_lower.exir.capture._config import EdgeCompileConfig, ExecutorchBackendConfig
from hatch_lower.exir.dialects._ops import EdgeOpOverload, ops
from hatch_lower.exir.dialects.edge.verify import EdgeViolationError
from hatch_lower.exir.graph.surgery import graph_modules
from hatch_lower.exir.lowering.lower import NotDelegatedError
from hatch_lower.exir.program._program import EdgeProgramManager, to_edge, to_edge_transform_and_lower

pytestmark = pytest.mark.torch

aten = torch.ops.aten
DELEGATE = torch.ops.higher_order.executorch_call_delegate


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.hardswish(self.first(x))
        return torch.nn.functional.hardswish(self.second(hidden)) + 1


def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 4)


def exported(module: torch.nn.Module | None = None, *args: Any) -> ExportedProgram:
    return torch.export.export(Net() if module is None else module, args or (x(),), strict=False)


def targets(program: ExportedProgram) -> list[str]:
    modules = graph_modules(program.graph_module)
    return [str(node.target) for each in modules for node in each.graph.nodes if node.op == "call_function"]


class Keeping(TagBy):
    """Takes what `choose` says, and wants operators whole."""

    def __init__(
        self,
        operators: Sequence[Any],
        choose: Callable[[Node], str | None],
        wanted: Callable[[Node], bool] | None = None,
        backend_id: str = "RecordingBackend",
    ) -> None:
        super().__init__(choose, backend_id)
        self.operators = list(operators)
        self.wanted = wanted
        self.asked = 0

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = super().partition(exported_program)
        for module in list(graph_modules(exported_program.graph_module))[1:]:
            for node in module.graph.nodes:
                if node.op == "call_function" and (tag := self.choose(node)) is not None:
                    node.meta["delegation_tag"] = f"{tag}_inside"
                    result.partition_tags[f"{tag}_inside"] = self.backend
        return result

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[Node], bool] | None]:
        self.asked += 1
        return self.operators, self.wanted


def takes(*operators: Any) -> Callable[[Node], str | None]:
    """Put each operation of some operators into a partition of its own."""
    return lambda node: node.name if isinstance(node.target, EdgeOpOverload) and node.target._op in operators else None


LINEAR, HARDSWISH = aten.linear.default, aten.hardswish.default


def test_one_program_is_forward() -> None:
    manager = to_edge(exported())
    assert manager.methods == {"forward"}
    assert manager.config_methods == set()
    assert manager.exported_program() is manager.exported_program("forward")
    torch.testing.assert_close(manager.exported_program().module()(x()), Net()(x()))


def test_several_methods_and_constants() -> None:
    manager = to_edge({"run": exported(), "twice": exported(torch.nn.Sequential(Net(), Net()))}, {"size": 4})
    assert manager.methods == {"run", "twice"}
    assert manager.config_methods == {"size"}
    assert manager._edge_programs.keys() == {"run", "twice"}
    with pytest.raises(KeyError) as caught:
        manager.exported_program()
    assert isinstance(caught.value, EdgeError)
    assert str(caught.value) == (
        "there is no method `forward`\n  found: known: `run`, `twice`\n  to do: correct the name"
    )


class Sums(torch.nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(given, 0)  # not core ATen, and no version of torch takes it apart


def test_the_result_is_checked() -> None:
    program = exported(Sums())
    with pytest.raises(SpecViolationError) as caught:
        to_edge({"size": program})
    assert isinstance(caught.value, EdgeViolationError)
    assert caught.value.where == "method `size`, node `aten_logcumsumexp_default`"
    sums = aten.logcumsumexp.default
    for config in (
        EdgeCompileConfig(_check_ir_validity=False),
        EdgeCompileConfig(_core_aten_ops_exception_list=[sums]),
        EdgeCompileConfig(preserve_ops=[sums]),
    ):
        manager = to_edge(program, compile_config=config)
        assert targets(manager.exported_program()) == ["aten.logcumsumexp.default"]


def test_a_list_of_exceptions_may_be_none() -> None:
    config = EdgeCompileConfig(_core_aten_ops_exception_list=None)
    assert targets(to_edge(exported(), compile_config=config).exported_program()) == targets(
        to_edge(exported()).exported_program()
    )


def test_preserved_operators_stay_whole() -> None:
    manager = to_edge(exported(), compile_config=EdgeCompileConfig(preserve_ops=[LINEAR]))
    names = targets(manager.exported_program())
    assert names.count("aten.linear.default") == 2
    assert "aten.hardswish.default" not in names
    assert EdgeCompileConfig() == EdgeCompileConfig(True, False, [], [])


def test_an_etrecord_is_not_promised() -> None:
    with pytest.raises(EdgeError) as caught:
        to_edge(exported(), generate_etrecord=True)
    assert str(caught.value) == (
        "ETRecords are not supported\n"
        "  found: generate_etrecord=True\n"
        "  to do: use the packaged program's debug map, which has the source lines of every delegate and operation"
    )


def swap(module: GraphModule) -> PassResult:
    """A pass that makes every addition a subtraction of the negated: its new operations have no handles."""
    for node in module.graph.find_nodes(op="call_function", target=ops.edge.aten.add.Tensor):
        with module.graph.inserting_before(node):
            new = module.graph.call_function(ops.edge.aten.sub.Tensor, (node.args[0], -node.args[1]))
            new.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
    return PassResult(module, True)


def in_place(module: GraphModule) -> None:
    module.graph.eliminate_dead_code()


@pytest.mark.parametrize(
    "passes",
    [[swap], [in_place, swap], {"forward": [swap]}, PassManager([swap]), swap, {"forward": swap}],
    ids=["list", "two", "by method", "manager", "one", "one by method"],
)
def test_passes(passes: Any) -> None:
    manager = to_edge(exported())
    before = targets(manager.exported_program())
    changed = manager.transform(passes)
    assert targets(manager.exported_program()) == before
    names = targets(changed.exported_program())
    assert (before.count("aten.sub.Tensor"), names.count("aten.sub.Tensor")) == (0, before.count("aten.add.Tensor"))
    calls = [node for node in changed.exported_program().graph.nodes if node.op == "call_function"]
    handles = [node.meta["debug_handle"] for node in calls if node.target is ops.edge.aten.sub.Tensor]
    old = max(node.meta.get("debug_handle", 0) for node in manager.exported_program().graph.nodes)
    assert handles == list(range(old + 1, old + 1 + len(handles)))
    torch.testing.assert_close(changed.exported_program().module()(x()), Net()(x()))


def test_passes_for_one_method_leave_the_others() -> None:
    manager = to_edge({"one": exported(), "other": exported()})
    changed = manager.transform({"one": [swap]})
    assert changed.exported_program("other") is manager.exported_program("other")
    with pytest.raises(EdgeError, match="there are passes for `third`, which is no method"):
        manager.transform({"third": [swap]})


def bare(module: GraphModule) -> PassResult:
    for node in module.graph.find_nodes(op="call_function", target=ops.edge.aten.add.Tensor):
        node.target = aten.add.Tensor
    return PassResult(module, True)


def dropping(module: GraphModule) -> PassResult:
    output = module.graph.output_node()
    output.args = ((*output.args[0], *output.args[0]),)
    return PassResult(module, True)


def test_passes_that_break_the_program() -> None:
    manager = to_edge(exported())
    with pytest.raises(EdgeError, match="is not an edge operator") as caught:
        manager.transform([bare])
    assert caught.value.where == "`bare`"
    with pytest.raises(EdgeError) as caught:
        manager.transform([dropping])
    assert str(caught.value) == (
        "a pass changed the number of outputs of the program\n"
        "  where: pass `dropping`\n"
        "  found: 2 instead of 1\n"
        "  to do: keep placeholders and outputs as they are; lowering drops placeholders of owned constants"
    )
    with pytest.raises(EdgeError, match="a pass did not return a graph module"):
        manager.transform([lambda module: 3])
    with pytest.raises(ZeroDivisionError):
        manager.transform([lambda module: 1 / 0])


def test_a_manager_lowers_all_methods_or_some() -> None:
    manager = to_edge({"one": exported(), "other": exported()})
    lowered = manager.to_backend(TagBy(everything))
    assert [targets(lowered.exported_program(name)).count("executorch_call_delegate") for name in ("one", "other")] == [
        1,
        1,
    ]
    assert lowered.compile_config._check_ir_validity is False
    half = manager.to_backend({"one": TagBy(everything)})
    assert half.exported_program("other") is manager.exported_program("other")
    torch.testing.assert_close(half.exported_program("one").module()(x()), Net()(x()))
    with pytest.raises(PartitionError):
        manager.to_backend({"third": TagBy(everything)})


class StoringBackend(BackendDetails):
    """Puts one blob beside the bytes, and one of the same content under another name."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        store = NamedDataStore()
        store.add_named_data("table", b"12345678", alignment=8)
        store.add_named_data(f"copy_{len(edge_program.graph.nodes)}", b"12345678")
        return PreprocessResult(b"", None, store.get_named_data_store_output())


def test_named_data_of_all_delegates_is_collected() -> None:
    manager = to_edge({"one": exported(), "other": exported(torch.nn.Sequential(Net(), Net()))})
    assert manager._named_data_store.get_named_data_store_output().pte_data == {}
    output = manager.to_backend(TagBy(everything, "StoringBackend"))._named_data_store.get_named_data_store_output()
    assert len(output.buffers) == 1
    assert len(output.pte_data) == 3
    assert output.pte_data["table"].alignment == 8


def test_what_is_packaged() -> None:
    manager = to_edge(exported(), {"size": 4}).to_backend(TagBy(everything))
    program = manager.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=True))
    assert program.exported_program() is manager.exported_program()
    assert program.methods == {"forward"}
    assert program.constant_methods == {"size": 4}
    with pytest.raises(KeyError):
        program.exported_program("other")


def lowered_by(*partitioners: Partitioner, **given: Any) -> ExportedProgram:
    manager = to_edge_transform_and_lower(exported(), partitioner=list(partitioners), **given)
    program = manager.exported_program()
    torch.testing.assert_close(program.module()(x()), Net()(x()))
    return program


@pytest.mark.parametrize("turned", [False, True])
def test_what_one_partitioner_wants_whole_is_whole_for_all(turned: bool) -> None:
    """ExecuTorch decomposes `linear` for the one that keeps nothing, in either order, and says nothing."""
    linear = Keeping([LINEAR], takes(LINEAR))
    other = TagBy(takes(aten.clamp.default, aten.mul.Tensor))
    program = lowered_by(*([other, linear] if turned else [linear, other]))
    names = targets(program)
    assert "aten.addmm.default" not in names
    assert linear.asked == 1
    lowered = [
        {str(node.target) for node in module.original_module.graph.nodes if node.op == "call_function"}
        for module in program.graph_module.children()
    ]
    assert lowered.count({"aten.linear.default"}) == 2
    assert {"aten.mul.Tensor"} in lowered


def test_two_partitioners_that_each_keep_something() -> None:
    program = lowered_by(Keeping([LINEAR], takes(LINEAR)), Keeping([HARDSWISH], takes(HARDSWISH)))
    assert [name for name in targets(program) if name.startswith("aten")] == ["aten.add.Tensor"]
    assert targets(program).count("executorch_call_delegate") == 4


def wide(node: Node) -> bool:
    return bool(node.meta["val"].shape[-1] == 8)


def narrow(node: Node) -> bool:
    return bool(node.meta["val"].shape[-1] == 4)


def test_a_filter_keeps_single_operations() -> None:
    partitioner = Keeping([LINEAR], takes(LINEAR), wide)
    names = targets(lowered_by(partitioner))
    assert names.count("executorch_call_delegate") == 1
    assert names.count("aten.addmm.default") == 1
    assert partitioner.asked == 1


def test_filters_of_several_partitioners_add_up() -> None:
    for pair in ((wide, narrow), (wide, None), (None, narrow)):
        names = targets(lowered_by(*(Keeping([LINEAR], takes(LINEAR), wanted) for wanted in pair)))
        assert names.count("executorch_call_delegate") == 2
        assert "aten.addmm.default" not in names


def test_what_was_kept_in_vain_is_refused() -> None:
    with pytest.raises(RuntimeError, match="was not decomposed or delegated") as caught:
        lowered_by(Keeping([LINEAR], lambda node: "one" if node.name == "aten_linear_default" else None))
    assert isinstance(caught.value, NotDelegatedError)
    assert str(caught.value) == (
        "aten.linear.default was not decomposed or delegated\n"
        "  where: method `forward`, node `aten_linear_default_1`\n"
        "  found: aten.linear.default was kept whole for `Keeping`\n"
        "    node `aten_linear_default_1`: no partitioner took it\n"
        "  to do: let the partitioner take the operation, or exclude it by the filter of `ops_to_not_decompose`; "
        "`EdgeCompileConfig(preserve_ops=[...])` keeps an operator whole without a delegate"
    )
    nothing = Keeping([LINEAR], lambda node: None)
    names = targets(lowered_by(nothing, compile_config=EdgeCompileConfig(preserve_ops=[LINEAR])))
    assert names.count("aten.linear.default") == 2


def test_another_partitioner_may_take_what_one_kept() -> None:
    names = targets(lowered_by(Keeping([LINEAR], lambda node: None), TagBy(takes(LINEAR))))
    assert names.count("executorch_call_delegate") == 2


def test_operators_that_cannot_be_kept_are_passed_over() -> None:
    """Core operators have no decomposition; those that change arguments, and `item`, have to be decomposed."""
    wanted = [aten.add.Tensor, aten.relu_.default, aten.item.default, aten.unbind.int, ops.edge.aten.mul.Tensor]
    for filter_ in (None, lambda node: True):
        assert "aten.add.Tensor" in targets(lowered_by(Keeping(wanted, lambda node: None, filter_)))


class Mutating(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        branch = torch.cond(given.sum() > 0, lambda t: self.net(t), lambda t: t - 1, (given,))
        return self.net(branch) * self.seen


def test_filters_see_functional_programs_and_branches() -> None:
    seen: list[str] = []

    def note(node: Node) -> bool:
        seen.append(str(node.target))
        assert not any(each.target._schema.is_mutable for each in node.graph.nodes if hasattr(each.target, "_schema"))
        return True

    partitioner = Keeping([LINEAR], takes(LINEAR), note)
    manager = to_edge_transform_and_lower(exported(Mutating()), partitioner=partitioner)
    program = manager.exported_program()
    assert seen == ["aten.linear.default"] * 4
    assert "aten.linear.default" not in targets(program)
    module, eager = program.module(), Mutating()
    for _ in range(3):
        torch.testing.assert_close(module(x()), eager(x()))


def test_a_functional_program_has_no_operator_that_torch_cannot_trace() -> None:
    class Spread(torch.nn.Module):
        def forward(self, given: torch.Tensor) -> object:
            # a constant is copied, and then detached in place
            return torch.std_mean(given, None, keepdim=True), torch.bucketize(given, torch.tensor([-1.0, 1.0]))

    rows = {"given": {0: torch.export.Dim("rows", min=2, max=40)}}
    program = torch.export.export(Spread(), (x(),), dynamic_shapes=rows)
    config = EdgeCompileConfig(_check_ir_validity=False)
    manager = to_edge_transform_and_lower(program, partitioner=Keeping([LINEAR], takes(LINEAR)), compile_config=config)
    torch.testing.assert_close(manager.exported_program().module()(x()), Spread()(x()))


def test_passes_run_before_partitioners() -> None:
    program = lowered_by(TagBy(takes(aten.sub.Tensor)), transform_passes=[swap])
    assert "aten.sub.Tensor" not in targets(program)
    assert "executorch_call_delegate" in targets(program)


def test_partitioners_by_method() -> None:
    programs = {"one": exported(), "other": exported()}
    manager = to_edge_transform_and_lower(programs, partitioner={"one": [Keeping([LINEAR], takes(LINEAR))]})
    assert targets(manager.exported_program("one")).count("executorch_call_delegate") == 2
    assert targets(manager.exported_program("other")).count("aten.addmm.default") == 2
    with pytest.raises(EdgeError) as caught:
        to_edge_transform_and_lower(programs, partitioner={"on": [TagBy(everything)]})
    assert str(caught.value) == (
        "there are partitioners for `on`, which is no method\n"
        "  found: did you mean `one`? known: `one`, `other`\n"
        "  to do: name partitioners for existing methods only"
    )


def test_the_lowered_result_is_checked() -> None:
    sums = aten.logcumsumexp.default
    with pytest.raises(SpecViolationError, match=r"aten.logcumsumexp.default is not core ATen"):
        to_edge_transform_and_lower(exported(Sums()), partitioner=[TagBy(lambda node: None)])
    manager = to_edge_transform_and_lower(exported(Sums()), partitioner=[TagBy(takes(sums))])
    assert targets(manager.exported_program())[0] == "executorch_call_delegate"
    assert manager.compile_config._check_ir_validity is True
    assert isinstance(manager, EdgeProgramManager)


def test_without_a_partitioner_nothing_is_lowered() -> None:
    manager = to_edge_transform_and_lower({"m": exported()}, constant_methods={"size": 2})
    assert manager.config_methods == {"size"}
    assert all("delegate" not in name for name in targets(manager.exported_program("m")))
