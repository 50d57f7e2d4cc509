from __future__ import annotations

import copy
import operator

import pytest
import torch
from support.older import CHECKED_NUMBERS
from torch._export.verifier import SpecViolationError
from torch.library import EffectType

from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.dialects._ops import EdgeOpOverload, edge_overload, ops
from hatch_lower.exir.dialects.edge.verify import EdgeVerifier
from hatch_lower.exir.graph.surgery import rebuild_program
from hatch_lower.exir.graph.tensors import span_bytes, span_length, tensor_digest, tensor_digests
from hatch_lower.exir.lowering.convert import remove_idle, to_aten, to_edge

pytestmark = pytest.mark.torch


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        y = self.linear(x)
        attended = torch.nn.functional.scaled_dot_product_attention(y, y, y)
        return torch.cond(attended.sum() > 0, lambda t: t + 1, lambda t: t - 1, (attended,)) * self.count


def exported() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(Attention(), (torch.randn(1, 2, 4),), strict=False)


def test_an_edge_operator_exists_once_and_stands_for_torchs() -> None:
    add = ops.edge.aten.add.Tensor
    assert add is ops.edge.aten.add.Tensor
    assert add is edge_overload(torch.ops.aten.add.Tensor)
    assert copy.deepcopy(add) is add
    assert (str(add), add.__name__) == ("aten.add.Tensor", "aten.add.Tensor")
    assert add._schema == torch.ops.aten.add.Tensor._schema
    torch.testing.assert_close(add(torch.ones(2), 2), torch.full((2,), 3.0))
    assert getattr(ops.edge.aten, "no_such_operator", None) is None
    assert getattr(ops.edge.aten.add, "no_such_overload", None) is None


def test_an_edge_program_computes_what_the_module_computes() -> None:
    program = to_edge(exported())
    x = torch.randn(1, 2, 4)
    torch.manual_seed(0)
    torch.testing.assert_close(program.module()(x), Attention()(x))


def test_every_operation_has_a_handle_and_those_of_one_source_share_it() -> None:
    program = to_edge(exported())
    handles: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.op == "call_function":
            assert isinstance(node.target, EdgeOpOverload) or node.target in (
                operator.getitem,
                torch.ops.higher_order.cond,
            )
            handles[node.name] = node.meta["debug_handle"]
    assert handles["aten_permute_default"] == handles["aten_addmm_default"], "both come from the linear layer"
    assert sorted(set(handles.values()))[0] == 1
    branch = program.graph_module.true_graph_0
    assert all("debug_handle" in node.meta for node in branch.graph.nodes if node.op == "call_function")


def test_ops_are_kept_whole_where_asked() -> None:
    attention = torch.ops.aten.scaled_dot_product_attention.default
    names = {str(node.target) for node in to_edge(exported(), keep=[attention]).graph.nodes}
    assert "aten.scaled_dot_product_attention.default" in names
    assert "aten.scaled_dot_product_attention.default" not in {
        str(node.target) for node in to_edge(exported()).graph.nodes
    }


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)], ids=str)
def test_attention_that_is_taken_apart_lies_in_memory_as_the_query_does(order: tuple[int, ...]) -> None:
    """Else a `view` of it, which the exported program has, could not be taken apart."""

    class Attending(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            query = x.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
            result = torch.nn.functional.scaled_dot_product_attention(query, x, x, is_causal=True)
            rows = result.transpose(1, 2).flatten(2).contiguous()
            return result, rows.view(-1, rows.size(-1))

    batch, length = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("length", min=2, max=64)
    x = torch.randn(2, 4, 12, 8)
    for sizes in (None, {"x": {0: batch, 2: length}}):
        program = torch.export.export(Attending(), (x,), dynamic_shapes=sizes)
        result, rows = to_edge(program).module()(x)
        expected = Attending()(x)
        torch.testing.assert_close((result, rows), expected)
        assert result.stride() == expected[0].stride()


def test_strides_of_single_places_are_stated_for_callers_only() -> None:
    """torch's averages over images that lie channels last state them."""

    class Average(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            average = torch.nn.functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1)
            return average * 2, torch.nn.functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2) + 1, 1)

    x, batch = torch.randn(2, 5, 5, 3), torch.export.Dim("batch", min=1, max=8)
    program = to_edge(torch.export.export(Average(), (x,), dynamic_shapes={"x": {0: batch}}))
    names = [str(node.target) for node in program.graph.nodes if "as_strided" in str(node.target)]
    assert len(names) == 1
    for given in (x, torch.randn(4, 5, 5, 3)):
        results, expected = program.module()(given), Average()(given)
        torch.testing.assert_close(results, expected)
        assert results[1].stride() == expected[1].stride()


class Rotated(torch.nn.Module):
    """Turns the first `count` places of a row, and keeps the others, as a rotary embedding does."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned, kept = x[:, : self.count] * 2, x[:, self.count :]
        joined = torch.cat([turned, kept], 1)
        return joined.sin(), torch.cat([kept, turned, kept, turned], 1)


@pytest.mark.parametrize(("count", "parts"), [(3, [2, 4]), (8, [1, 2]), (0, [1, 2])], ids=["some", "all", "none"])
def test_parts_without_elements_are_not_joined(count: int, parts: list[int]) -> None:
    x, rows = torch.randn(2, 8), torch.export.Dim("rows", min=1, max=8)
    program = to_edge(torch.export.export(Rotated(count), (x,), dynamic_shapes={"x": {0: rows}}))
    joins = [node for node in program.graph.nodes if str(node.target) == "aten.cat.default"]
    assert [len(node.args[0]) for node in joins] == parts
    for given in (x, torch.randn(5, 8)):
        results, expected = program.module()(given), Rotated(count)(given)
        torch.testing.assert_close(results, expected)
        assert [result.stride() for result in results] == [result.stride() for result in expected]


class Joined(torch.nn.Module):
    """Joins images whose channels lie last with none, which makes the result lie as usual."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        none = torch.zeros(2, 0, 4, 5)
        return torch.cat([x, none], 1), torch.cat([x[:, :0], x], 1).flatten(1) + 1


def test_images_that_are_joined_with_none_lie_in_memory_as_in_eager() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    results, expected = to_edge(torch.export.export(Joined(), (x,))).module()(x), Joined()(x)
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)
        assert result.stride() == wanted.stride()


def test_a_part_that_is_joined_with_nothing_is_copied() -> None:
    """The result may be written into, and what it was made of stays."""

    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x[:, 4:]], 1).view(2, 2, 2)

    x = torch.ones(2, 4)
    to_edge(torch.export.export(Whole(), (x,))).module()(x).zero_()
    assert torch.equal(x, torch.ones(2, 4))


@torch.library.custom_op("hatch_lower_tests::note", mutates_args=())
def note(x: torch.Tensor, name: str) -> torch.Tensor:
    return x - 1


@torch.library.custom_op("hatch_lower_tests::note_two", mutates_args=())
def note_two(x: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x * 2


note.register_fake(lambda x, name: x.clone())
note_two.register_fake(lambda x, name: (x.clone(), x.clone()))
note.register_effect(EffectType.ORDERED)
note_two.register_effect(EffectType.ORDERED)


def test_operations_with_effects_stay_in_order_without_tokens() -> None:
    class Notes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            note(x, "first")
            one, two = note_two(x, "second")
            note(x, "third")
            return one, note(two, "last")

    x = torch.randn(3)
    program = to_edge(torch.export.export(Notes(), (x,)))
    assert [spec.arg.name for spec in program.graph_signature.input_specs] == ["x"]
    assert not [node for node in program.graph.nodes if "effects" in str(node.target)]
    called = [node.args[1] for node in program.graph.nodes if "note" in str(node.target)]
    assert called == ["first", "second", "third", "last"]
    torch.testing.assert_close(program.module()(x), (x + 1, x * 2 - 1))


class Idle(torch.nn.Module):
    """Computes what nothing uses: some products, and what is checked and counted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (x * 2).to(torch.float32)  # whose dtype torch checks, so that the product has a user
        torch.linalg.cholesky(x.mm(x.t()))
        torch._check(x.sum().item() < 1e6)
        return x + 1


@CHECKED_NUMBERS
def test_operations_that_change_no_result_are_left_out_and_checks_are_not() -> None:
    program = to_edge(torch.export.export(Idle(), (torch.randn(3, 4),)))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "aten.mul.Tensor" not in targets
    assert {"aten._linalg_check_errors.default", "aten._assert_scalar.default"} <= set(targets)
    idle = [node for node in program.graph.nodes if node.op == "call_function" and not node.users]
    assert all(node.meta["val"] is None for node in idle)


def test_an_idle_operation_that_draws_random_numbers_stays() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for op in (torch.ops.aten.relu.default, torch.ops.aten.rand_like.default):
        graph.call_function(op, (x,)).meta["val"] = torch.empty(2)
    graph.output((x,))
    remove_idle(graph)
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [torch.ops.aten.rand_like.default]


def test_the_way_back_to_aten() -> None:
    edge = to_edge(exported())
    aten = to_aten(edge)
    assert not any(isinstance(node.target, EdgeOpOverload) for node in aten.graph.nodes)
    assert any(isinstance(node.target, EdgeOpOverload) for node in edge.graph.nodes), "the edge program is untouched"
    assert aten.state_dict["linear.weight"] is edge.state_dict["linear.weight"]


def test_the_dialect_refuses_bare_operators_and_missing_handles() -> None:
    program = to_edge(exported())
    aten = to_aten(program)
    with pytest.raises(SpecViolationError, match="is not an edge operator"):
        rebuild_program(aten, aten.graph_module, aten.graph, verifier=EdgeVerifier)
    next(node for node in program.graph.nodes if node.op == "call_function").meta.pop("debug_handle")
    with pytest.raises(SpecViolationError, match="has no debug handle"):
        rebuild_program(program, program.graph_module, program.graph, verifier=EdgeVerifier)


def test_digests_of_tensors_see_contents_layout_and_type() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    same = [base, base.clone()]
    different = [base.t(), base.double(), base.reshape(4, 3), base + 1, base[0], base[:, 0], torch.empty(0)]
    assert len(set(tensor_digests(same))) == 1
    assert len({tensor_digest(each) for each in [base, *different]}) == len(different) + 1
    assert span_length(base[:, 0]) == 9
    assert span_length(torch.ones(1).expand(5)) == 1
    assert bytes(span_bytes(torch.tensor([1, 2], dtype=torch.uint8))) == b"\x01\x02"


def test_two_backends_of_one_name_are_an_error() -> None:
    first = type("TwiceBackend", (BackendDetails,), {"preprocess": staticmethod(lambda program, specs: None)})
    second = type("TwiceBackend", (BackendDetails,), {"preprocess": staticmethod(lambda program, specs: None)})
    assert first is not second
    with pytest.raises(BackendError, match="two backends have the id `TwiceBackend`"):
        find_backend("TwiceBackend")
