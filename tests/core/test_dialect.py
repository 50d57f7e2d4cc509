from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan, while_loop
from torch.fx import Node
from torch.fx.node import _get_qualified_name
from torch.library import Library
from torchgen.model import SchemaKind

from hatch_lower.exir.dialects._ops import EdgeOpOverload, LibraryError, _DialectNamespace, _Ops, edge_overload, ops
from hatch_lower.exir.dialects.edge.op.api import VariantError, VariantKindError, to_variant
from hatch_lower.exir.graph.surgery import graph_modules, oldest_ancestor
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.passes.debug_handle_generator_pass import generate_missing_debug_handles

pytestmark = pytest.mark.torch

numbers = count()


@pytest.fixture
def library() -> Iterator[Library]:
    """A library of its own for each test; its operators go when the test ends."""
    made = Library(f"dialect_test_{next(numbers)}", "DEF")
    yield made
    made._destroy()


def test_the_root_makes_what_is_asked_for_once() -> None:
    root = _Ops()
    assert list(root) == []
    assert isinstance(root.edge, _DialectNamespace)
    assert root.edge is root.edge
    assert root.edge.aten is root.edge.aten
    assert root.edge.aten.add is root.edge.aten.add
    assert root.edge.aten.add.Tensor is root.edge.aten.add.Tensor
    assert (list(root), root._dir) == (["edge"], ["edge"])
    assert list(root.edge) == ["aten"]
    assert list(root.edge.aten) == root.edge.aten._dir == ["add"]
    assert list(root.edge.aten.add) == ["Tensor"]


def test_the_code_of_a_graph_names_operators_by_the_module_of_their_class() -> None:
    assert _get_qualified_name(ops.edge.aten.add.Tensor) == "hatch_lower.exir.dialects.edge._ops.aten.add.Tensor"


def test_what_is_missing_is_an_attribute_error() -> None:
    for place in (ops.edge.aten, ops.edge.aten.add, ops.edge.no_such_namespace):
        with pytest.raises(AttributeError):
            place.no_such_name  # noqa: B018
        assert getattr(place, "no_such_name", 3) == 3


def test_an_unknown_dialect_fails_when_an_operator_is_looked_up() -> None:
    assert "aten" in repr(ops.no_such_dialect.aten)
    with pytest.raises(KeyError, match="no_such_dialect"):
        ops.no_such_dialect.aten.add  # noqa: B018


def test_a_library_that_is_no_backend_s_is_refused() -> None:
    with pytest.raises(RuntimeError, match="does not belong to backend ops") as caught:
        ops.backend.aten  # noqa: B018
    assert isinstance(caught.value, LibraryError)
    assert str(caught.value) == (
        "the `aten` op library does not belong to backend ops\n"
        f"  found: {', '.join(f'`{name}`' for name in ops.backend._libraries)}\n"
        "  to do: bind a pattern to one of its operators with `bind_pattern_to_op`"
    )


def test_tools_that_ask_for_a_file_get_an_answer() -> None:
    places = (ops.edge, ops.edge.aten, ops.edge.aten.add)
    assert {place.__file__ for place in places} == {"hatch_lower.exir.dialects._ops"}
    for place in places:
        with pytest.raises(AttributeError):
            place.__wrapped__  # noqa: B018


def test_a_packet_stands_for_torchs() -> None:
    packet, torchs = ops.edge.aten.add, torch.ops.aten.add
    assert (str(packet), packet.__name__, repr(packet)) == ("aten.add", "aten.add", "<EdgeOpOverloadPacket: aten.add>")
    assert packet.op is torchs.op
    assert hash(packet) == hash(torchs)
    assert packet == ops.edge.aten.add
    assert packet != ops.edge.aten.sub
    assert packet.overloads() == torchs.overloads()
    torch.testing.assert_close(packet(torch.ones(2), 1), torch.full((2,), 2.0))
    assert copy.deepcopy(packet) is copy.copy(packet) is packet


def test_an_overload_falls_through_to_torchs() -> None:
    add = ops.edge.aten.add.Tensor
    assert add.tags == torch.ops.aten.add.Tensor.tags
    assert add.namespace == "aten"
    assert add.overloadpacket is torch.ops.aten.add
    assert copy.deepcopy(add) is copy.copy(add) is add
    assert pickle.loads(pickle.dumps(add)) is add
    assert ops.edge.aten.__and__.Tensor.__name__ == "aten.__and__.Tensor"
    with pytest.raises(AttributeError):
        add.no_such_attribute  # noqa: B018


def test_names_of_nodes_follow_from_the_overload() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    assert graph.call_function(ops.edge.aten.add.Tensor, (x, x)).name == "aten_add_tensor"


def test_an_operator_that_is_defined_anew_is_another(library: Library) -> None:
    library.define("twice(Tensor x) -> Tensor")
    first = getattr(ops.edge, library.ns).twice.default
    assert isinstance(first, EdgeOpOverload)
    assert edge_overload(first._op) is first
    name = library.ns
    library._destroy()
    again = Library(name, "DEF")
    again.define("twice(Tensor x, Tensor y) -> Tensor")
    second = getattr(ops.edge, name).twice.default
    assert second is not first
    assert len(second._schema.arguments) == 2
    again._destroy()


@pytest.mark.parametrize(
    ("op", "out"),
    [
        (torch.ops.aten.add.Tensor, torch.ops.aten.add.out),
        (torch.ops.aten.max.dim, torch.ops.aten.max.dim_max),
        (torch.ops.aten.relu.default, torch.ops.aten.relu.out),
        (torch.ops.aten.sum.dim_IntList, torch.ops.aten.sum.IntList_out),
    ],
)
def test_the_out_variant_and_back(op: Any, out: Any) -> None:
    assert to_variant(op, SchemaKind.out) is out
    assert to_variant(out, SchemaKind.functional) is op
    assert to_variant(op, SchemaKind.functional) is op
    assert edge_overload(op).to_out_variant() is out
    assert edge_overload(op).to_out_variant() is out


def test_an_operator_without_an_out_variant() -> None:
    with pytest.raises(RuntimeError) as caught:
        ops.edge.aten.view.default.to_out_variant()
    assert isinstance(caught.value, VariantError)
    assert str(caught.value) == (
        "Out variant of operator aten::view can't be found\n"
        "  found: aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)\n"
        "    aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)\n"
        "  to do: register an overload with the same arguments, or leave the operator as it is"
    )


def test_other_kinds_of_variants_are_not_made() -> None:
    with pytest.raises(AssertionError, match="its functional variant or its out variant only") as caught:
        to_variant(torch.ops.aten.add.Tensor, SchemaKind.inplace)
    assert isinstance(caught.value, VariantKindError)


def test_the_out_variant_of_an_operator_of_one_s_own(library: Library) -> None:
    library.define("twice(Tensor x, *, int n=2) -> Tensor")
    packet = getattr(torch.ops, library.ns).twice
    with pytest.raises(VariantError, match="Out variant"):
        to_variant(packet.default, SchemaKind.out)
    library.define("twice.out(Tensor x, *, int n=2, Tensor(a!) out) -> Tensor(a!)")
    library.define("twice.other(Tensor x, *, int n=3, Tensor(a!) out) -> Tensor(a!)")
    fresh = getattr(torch.ops, library.ns).twice
    assert to_variant(fresh.default, SchemaKind.out) is fresh.out


class Loops(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.hardsigmoid(x) + torch.nn.functional.hardsigmoid(x * 2)
        return torch.cond(y.sum() > 0, torch.nn.functional.hardsigmoid, torch.neg, (y,))


def targets(program: torch.export.ExportedProgram) -> list[str]:
    modules = graph_modules(program.graph_module)
    return [str(node.target) for each in modules for node in each.graph.nodes if node.op == "call_function"]


def test_single_operations_are_kept_whole() -> None:
    exported = torch.export.export(Loops(), (torch.randn(3),), strict=False)
    hardsigmoid = torch.ops.aten.hardsigmoid.default
    before = str(exported.graph_module.code)
    for wanted, kept in [
        (lambda node: node.args[0].op == "placeholder", 2),
        (lambda node: node.args[0].name == "x", 1),
        (lambda node: node.args[0].name == "mul", 1),
        (lambda node: False, 0),
        (lambda node: True, 3),
    ]:
        program = to_edge(exported, keep_nodes={hardsigmoid: wanted})
        assert targets(program).count("aten.hardsigmoid.default") == kept
        x = torch.randn(3)
        torch.testing.assert_close(program.module()(x), Loops()(x))
        assert all("hatch_lower_kept" not in node.meta for node in program.graph.nodes)
    assert exported.graph_module.code == before
    assert all("hatch_lower_kept" not in node.meta for node in exported.graph.nodes), "the given program is left alone"


def test_single_composite_operations_are_kept_whole() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    exported = torch.export.export(module, (torch.randn(3, 4),), strict=False)
    small = {torch.ops.aten.linear.default: lambda node: node.meta["val"].shape[-1] == 2}
    names = targets(to_edge(exported, keep_nodes=small))
    assert names == ["aten.permute.default", "aten.addmm.default", "aten.linear.default"]
    both = to_edge(exported, keep=[torch.ops.aten.linear.default], keep_nodes=small)
    assert targets(both) == ["aten.linear.default"] * 2, "an operator kept everywhere needs no filter"


class AllLoops(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        soft = torch.nn.functional.hardsigmoid
        _, y = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, soft(t)), (torch.tensor(0), x))
        z = torch_map(lambda t: soft(t) + 1, y)
        _, each = scan(lambda c, t: (soft(c + t), c * 1.0), z[0], z)
        return soft(each)


@pytest.mark.parametrize("dynamic", [None, {"x": {0: torch.export.Dim("batch", min=2, max=9)}}])
def test_single_operations_are_kept_whole_in_every_kind_of_control_flow(dynamic: Any) -> None:
    x = torch.randn(4, 3)
    exported = torch.export.export(AllLoops(), (x,), dynamic_shapes=dynamic, strict=False)
    hardsigmoid = torch.ops.aten.hardsigmoid.default
    inner = to_edge(exported, keep_nodes={hardsigmoid: lambda node: not node.graph.find_nodes(op="get_attr")})
    everywhere = to_edge(exported, keep_nodes={hardsigmoid: lambda node: True})
    for program, kept in ((inner, 3), (everywhere, 4)):
        assert targets(program).count("aten.hardsigmoid.default") == kept
        torch.testing.assert_close(program.module()(x), AllLoops()(x))


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights:UserWarning")
def test_operations_that_decompositions_call_are_kept_as_the_program_s_own() -> None:
    """There is no `linear` in the export of an LSTM, and one for the inputs of all steps, and one a step."""
    exported = torch.export.export(torch.nn.LSTM(3, 4), (torch.randn(2, 1, 3),), strict=False)
    linear = torch.ops.aten.linear.default
    assert linear not in [node.target for node in exported.graph.nodes]
    every = targets(to_edge(exported, keep=[linear])).count("aten.linear.default")
    assert every == 3
    for wanted, kept in (
        (lambda node: True, every),
        (lambda node: False, 0),
        (lambda node: "linear_1" in node.name, 1),
    ):
        program = to_edge(exported, keep_nodes={linear: wanted})
        assert targets(program).count("aten.linear.default") == kept
    torch.testing.assert_close(program.module()(torch.ones(2, 1, 3))[0], exported.module()(torch.ones(2, 1, 3))[0])


class Settings(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(4, 4)
        with torch.no_grad():
            y = torch.nn.functional.linear(x, weight)
        with torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.linear(y, weight)


def test_operations_keep_their_lines_and_stay_whole_where_a_setting_of_torch_is_another() -> None:
    exported = torch.export.export(Settings(), (torch.randn(3, 4),), strict=False)
    code = exported.graph_module.code
    linear = torch.ops.aten.linear.default
    assert linear not in [node.target for node in exported.graph.nodes]
    for wanted, kept in ((True, 2), (False, 0)):
        program = to_edge(exported, keep_nodes={linear: lambda node, wanted=wanted: wanted})
        assert targets(program).count("aten.linear.default") == kept
        torch.testing.assert_close(program.module()(torch.ones(3, 4)), exported.module()(torch.ones(3, 4)))
        traces = [node.meta["stack_trace"].splitlines() for node in program.graph.nodes if "linear" in ancestor(node)]
        assert {trace[-1].split()[0] for trace in traces} == {"y", "return"}, "the lines of `forward`"
    assert exported.graph_module.code == code, "the given program is left alone"


def test_a_setting_of_torch_may_be_another_in_a_branch_and_inside_another() -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
                y = Settings()(x)
            return torch.cond(y.sum() > 0, Settings(), lambda x: x.to(torch.bfloat16), (x,))

    exported = torch.export.export(Nested(), (torch.ones(3, 4),), strict=False)
    program = to_edge(exported, keep_nodes={torch.ops.aten.linear.default: lambda node: True})
    assert [targets(program).count("aten.linear.default"), len(list(graph_modules(program.graph_module)))] == [4, 3]
    torch.testing.assert_close(program.module()(torch.ones(3, 4)), exported.module()(torch.ones(3, 4)))


def ancestor(node: Node) -> str:
    oldest = oldest_ancestor(node) if node.op == "call_function" else None
    return oldest.target if oldest is not None else ""


def test_a_decomposition_of_a_kept_kind_of_operation_is_none_of_the_program_s() -> None:
    """Inside `linear`'s own decomposition torch may call operators of kept kinds; these are not kept."""

    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.multi_head_attention_forward(
                x, x, x, 4, 2, torch.ones(12, 4), None, None, None, False, 0.0, torch.ones(4, 4), None, training=False
            )[0]

    exported = torch.export.export(Nested(), (torch.randn(2, 3, 4),), strict=False)
    program = to_edge(exported, keep_nodes={torch.ops.aten.linear.default: lambda node: True})
    own = sum(node.target is torch.ops.aten.linear.default for node in exported.graph.nodes)
    assert targets(program).count("aten.linear.default") == own > 0


def test_missing_debug_handles_are_filled_in() -> None:
    program = to_edge(torch.export.export(Loops(), (torch.randn(3),), strict=False))
    nodes = [node for each in graph_modules(program.graph_module) for node in each.graph.nodes]
    calls = [node for node in nodes if node.op == "call_function"]
    highest = max(node.meta["debug_handle"] for node in calls)
    calls[0].meta["debug_handle"] = 0
    calls[1].meta["debug_handle"] = None
    kept = [node.meta["debug_handle"] for node in calls[2:]]
    generate_missing_debug_handles(program)
    assert [node.meta["debug_handle"] for node in calls[2:]] == kept
    handles = [node.meta["debug_handle"] for node in nodes if node not in calls[2:]]
    assert handles == list(range(highest + 1, highest + 1 + len(handles)))
    assert operator.getitem in {node.target for node in calls}
