"""The two backends for the machinery: `reference`, which says what a delegate must return, and `null`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import TagBy, everything
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from hatch_lower.backends.null.compile import NullBackend
from hatch_lower.backends.null.run import NullDelegate
from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate, join_blob, split_blob
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.exir.backend.backend_api import lower_methods, to_backend
from hatch_lower.exir.backend.backend_details import BackendDetails
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.pipeline.emit.delegates import delegate_file
from hatch_lower.pipeline.emit.emit import EmittedProgram, MethodToEmit, emit_program
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.executor import Executor, execute_plan

pytestmark = pytest.mark.torch

BATCH = Dim("batch", max=16)
DELEGATES = {"reference": ReferenceDelegate, "null": NullDelegate}


@pytest.fixture(autouse=True)
def _declared_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the backends as the distribution's entry points do, which a source tree does not have."""
    declared = [
        EntryPoint(name, f"hatch_lower.backends.{name}.compile:{name.title()}Backend", "hatch_lower.backends")
        for name in ("null", "reference")
    ]
    monkeypatch.setattr("hatch_lower.exir.backend.registry.entry_points", lambda group: declared)


def module(forward: Callable[..., Any], **state: Any) -> torch.nn.Module:
    """Return a module with `forward(self, …)`, and state: `b_…` are buffers."""
    made: torch.nn.Module = type("Module", (torch.nn.Module,), {"forward": forward})()
    for name, value in state.items():
        if name.startswith("b_"):
            made.register_buffer(name, value)
        else:
            setattr(made, name, value)
    return made.eval()


def edge(made: torch.nn.Module, args: tuple[Any, ...], dynamic: Any = None) -> ExportedProgram:
    with torch.no_grad():
        return to_edge(torch.export.export(copy.deepcopy(made), args, dynamic_shapes=dynamic, strict=False))


def emit(**programs: ExportedProgram) -> EmittedProgram:
    methods = {}
    for name, program in programs.items():
        count = program.call_spec.in_spec.child(0).num_children
        methods[name] = MethodToEmit(name, program, tuple(f"a{index}" for index in range(count)))
    return emit_program("model", methods)


def execute(emitted: EmittedProgram, folder: Path) -> Executor:
    (folder / "model" / "delegates").mkdir(parents=True, exist_ok=True)
    for digest, blob in emitted.blobs.items():
        (folder / "model" / delegate_file(digest, blob.suffix)).write_bytes(blob.data)
    spans = [emitted.storages[storage.key].view(getattr(torch, storage.dtype)) for storage in emitted.plan.storages]
    return execute_plan(emitted.plan, spans, DELEGATES, folder)


def check(made: torch.nn.Module, folder: Path, *calls: tuple[Any, ...], dynamic: Any = None) -> EmittedProgram:
    """Lower for the reference backend and compare all calls with eager."""
    lowered = to_backend(edge(made, calls[0], dynamic), ReferenceBackend.partitioner({}))
    emitted = emit(forward=lowered)
    executor = execute(emitted, folder)
    eager = copy.deepcopy(made)
    for call in calls:
        with torch.no_grad():
            expected, given = eager(*copy.deepcopy(call)), executor.methods["forward"](*copy.deepcopy(call))
        pytree.tree_map(lambda left, right: torch.testing.assert_close(left, right), given, expected)
    return emitted


def test_a_network_is_one_delegate_with_its_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    )
    made = module(lambda self, x: torch.softmax(self.layers(x), -1), layers=layers)
    calls = [(torch.randn(size, 1, 8, 8),) for size in (2, 5)]
    emitted = check(made, tmp_path, *calls, dynamic={"x": {0: BATCH}})
    assert len(emitted.plan.delegates) == 1
    assert emitted.plan.constants == {}
    assert emitted.plan.delegates[0].info == {}


def count(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = self.b_count.clone()
    self.b_count.add_(x.sum())
    return before + x * self.scale, self.b_count


def test_state_stays_in_the_program(tmp_path: Path) -> None:
    made = module(count, b_count=torch.zeros(()), scale=torch.nn.Parameter(torch.ones(3)))
    emitted = check(made, tmp_path, *[(torch.ones(3) * index,) for index in range(4)])
    assert list(emitted.plan.constants) == ["b_count"]


def test_methods_see_each_others_state(tmp_path: Path) -> None:
    made = module(count, b_count=torch.zeros(()), scale=torch.nn.Parameter(torch.ones(3)))
    reader = module(lambda self, x: x * 2 + self.b_count, b_count=torch.zeros(()))
    programs = {"forward": edge(made, (torch.ones(3),)), "peek": edge(reader, (torch.ones(3),))}
    lowered = lower_methods(programs, {name: ReferenceBackend.partitioner({}) for name in programs})
    executor = execute(emit(**{name: each.program for name, each in lowered.items()}), tmp_path)
    executor.methods["forward"](torch.ones(3))
    assert torch.equal(executor.methods["peek"](torch.zeros(3)), torch.full((3,), 3.0))


def test_state_inside_a_delegate_is_kept_and_reset(tmp_path: Path) -> None:
    """A partitioner of somebody else may give buffers to the backend."""
    made = module(count, b_count=torch.zeros(()), scale=torch.nn.Parameter(torch.ones(3)))
    emitted = emit(forward=to_backend(edge(made, (torch.ones(3),)), TagBy(everything, "reference")))
    assert emitted.plan.constants == {}
    assert emitted.plan.delegates[0].info == {"stateful": True}
    executor = execute(emitted, tmp_path)
    for expected in (3.0, 6.0):
        assert executor.methods["forward"](torch.ones(3))[1].item() == expected
    executor.reset()
    assert executor.methods["forward"](torch.ones(3))[1].item() == 3.0


def test_equal_partitions_with_state_do_not_share_it(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.b_one.add_(1)
        self.b_two.add_(1)
        return self.b_one + 0, self.b_two + 0

    program = edge(module(forward, b_one=torch.zeros(()), b_two=torch.zeros(())), (torch.ones(1),))

    def by_buffer(node: torch.fx.Node) -> str | None:
        source = node.all_input_nodes[0]
        while source.op != "placeholder":
            source = source.all_input_nodes[0]
        return source.name

    emitted = emit(forward=to_backend(program, TagBy(by_buffer, "reference")))
    assert len(emitted.blobs) == 1
    assert len(emitted.plan.delegates) == 2
    methods = execute(emitted, tmp_path).methods
    assert [each.item() for each in methods["forward"](torch.ones(1))] == [1.0, 1.0]


def split(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = (x * self.scale).sin()
    z = torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,))
    return (z + y).cos() * x.shape[0]


def test_control_flow_divides_the_partitions(tmp_path: Path) -> None:
    made = module(split, scale=torch.nn.Parameter(torch.ones(3)))
    calls = [(torch.ones(2, 3),), (-torch.ones(4, 3),)]
    emitted = check(made, tmp_path, *calls, dynamic={"x": {0: BATCH}})
    paths = list(emitted.debug.methods["forward"].delegates)
    assert [re.sub(r"\d+", "n", path) for path in paths] == ["n", "n.true.n", "n.false.n", "n"]
    program = edge(made, (torch.ones(2, 3),), {"x": {0: BATCH}})
    reasons = lower_methods({"forward": program}, {"forward": ReferenceBackend.partitioner({})})["forward"].reasons
    assert reasons["cond"] == (
        "the reference backend leaves control flow, assertions and arithmetic on sizes to the program"
    )


def cond_in_scan(self: Any, x: torch.Tensor) -> Any:
    def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
        chosen = torch.cond(row.sum() > 0, lambda c, r: c + r * self.scale, lambda c, r: c - r, (carry, row))
        return chosen, carry * row

    return scan(step, torch.zeros(3), x)


def map_in_while(self: Any, x: torch.Tensor) -> Any:
    def step(index: torch.Tensor, value: torch.Tensor) -> Any:
        return index + 1, torch_map(lambda row: torch.sin(row) * self.scale, value)

    return while_loop(lambda index, value: index < 3, step, (torch.zeros((), dtype=torch.int64), x))[1]


def count_in_map(self: Any, x: torch.Tensor) -> Any:
    """The buffer changes outside, and is read in each row."""
    self.b_count.add_(x.sum())
    return torch_map(lambda row: row * self.scale + self.b_count, x)


LOOPS = {
    "cond in scan": (cond_in_scan, {"n", "n.body.n", "n.body.n.true.n", "n.body.n.false.n"}),
    "map in while_loop": (map_in_while, {"n", "n.condition.n", "n.body.n", "n.body.n.body.n"}),
    "map beside state": (count_in_map, {"n", "n.body.n"}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_delegates_in_loops(name: str, tmp_path: Path) -> None:
    forward, places = LOOPS[name]
    made = module(forward, scale=torch.nn.Parameter(torch.full((3,), 3.0)), b_count=torch.zeros(()))
    calls = [(torch.randn(count, 3),) for count in (4, 2, 7)]
    emitted = check(made, tmp_path, *calls, dynamic={"x": {0: BATCH}})
    debug = emitted.debug.methods["forward"]
    assert {re.sub(r"\d+", "n", path) for path in debug.delegates} == places
    assert {each.op for each in debug.undelegated} <= {"cond", "map", "scan", "while_loop"}


@pytest.mark.parametrize("name", ["cond in scan", "map in while_loop"])
def test_a_whole_loop_in_a_delegate(name: str, tmp_path: Path) -> None:
    made = module(LOOPS[name][0], scale=torch.nn.Parameter(torch.full((3,), 3.0)))
    program = edge(made, (torch.ones(4, 3),), {"x": {0: BATCH}})
    emitted = emit(forward=to_backend(program, TagBy(everything, "reference")))
    assert list(emitted.debug.methods["forward"].delegates) == ["0"]
    forward = execute(emitted, tmp_path).methods["forward"]
    for x in (torch.randn(4, 3), torch.randn(2, 3)):
        with torch.no_grad():
            pytree.tree_map(torch.testing.assert_close, tuple(forward(x)), tuple(made(x)))


def data_dependent(self: Any, x: torch.Tensor) -> Any:
    found = torch.nonzero(x.relu())
    return found.sin() if found.dtype.is_floating_point else found * 2, found.shape[0]


def test_sizes_that_depend_on_data(tmp_path: Path) -> None:
    calls = [(torch.tensor([1.0, -1.0, 2.0]),), (torch.tensor([1.0, 1.0, 2.0]),)]
    check(module(data_dependent), tmp_path, *calls)


def test_outputs_that_are_inputs_constants_and_sizes(tmp_path: Path) -> None:
    made = module(
        lambda self, x: (x, x.view(-1), self.scale, x.sin(), x.shape[0] + 1, None, torch.max(x, 1)[1]),
        scale=torch.nn.Parameter(torch.ones(3)),
    )
    check(made, tmp_path, (torch.randn(2, 3),), (torch.randn(4, 3),), dynamic={"x": {0: BATCH}})


def test_every_kind_of_constant_in_the_blob(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(3, 3))
    made = module(
        lambda self, x: x @ self.one @ self.two @ self.turned * self.low + self.number[0] + torch.tensor([1.0, 2, 3]),
        one=weight,
        two=weight,
        turned=torch.nn.Parameter(torch.randn(3, 3).t()),
        low=torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float16)),
        number=torch.nn.Parameter(torch.tensor([2]), requires_grad=False),
    )
    emitted = check(made, tmp_path, (torch.randn(2, 3),))
    assert emitted.plan.constants == {}


def test_debug_map_of_the_delegate() -> None:
    program = edge(module(lambda self, x: (x.sin() + 1).cos()), (torch.ones(2),))
    debug = emit(forward=to_backend(program, ReferenceBackend.partitioner({}))).debug.methods["forward"]
    (path,) = debug.delegates
    assert [debug.origins(path, index)[0].op for index in range(3)] == [
        "aten.sin.default",
        "aten.add.Tensor",
        "aten.cos.default",
    ]


def test_the_blob_does_not_depend_on_names() -> None:
    def blob(name: str) -> bytes:
        made = module(lambda self, x: x * getattr(self, name), **{name: torch.nn.Parameter(torch.ones(2))})
        program = edge(made, (torch.ones(2),))
        (found,) = emit(forward=to_backend(program, ReferenceBackend.partitioner({}))).blobs.values()
        return found.data

    assert blob("first") == blob("second")


def load(data: bytes, folder: Path) -> ReferenceDelegate:
    path = folder / "blob.reference"
    path.write_bytes(data)
    return ReferenceDelegate.load(DelegateBlob(path), [])


def test_damaged_blobs_are_refused(tmp_path: Path) -> None:
    made = module(lambda self, x: x * self.scale, scale=torch.nn.Parameter(torch.ones(2)))
    program = to_backend(edge(made, (torch.ones(2),)), ReferenceBackend.partitioner({}))
    (blob,) = emit(forward=program).blobs.values()
    plan, weights = split_blob(blob.data, "blob")
    assert join_blob(plan, weights) == blob.data
    load(blob.data, tmp_path)
    for length in (0, 5, 8, 40, len(blob.data) - len(weights), len(blob.data) - 1):
        with pytest.raises(ProgramError):
            load(blob.data[:length], tmp_path)
    with pytest.raises(ProgramError) as caught:
        load(blob.data[:20], tmp_path)
    assert str(caught.value) == (
        "a delegate of the reference backend is damaged\n  where: blob.reference\n"
        f"  found: 20 bytes instead of at least {8 + len(plan)}\n"
        "  to do: install the package again, or build it again"
    )
    with pytest.raises(ProgramError, match="the weights of a delegate of the reference backend are damaged"):
        load(join_blob(plan, b""), tmp_path)
    with pytest.raises(ProgramError, match=r"7 bytes of a tensor \[2\], where 2 elements are expected"):
        load(join_blob(plan, weights[:-1]), tmp_path)


def test_null_takes_everything_and_computes_nothing(tmp_path: Path) -> None:
    made = module(split, scale=torch.nn.Parameter(torch.ones(3)))
    program = edge(made, (torch.ones(2, 3),), {"x": {0: BATCH}})
    emitted = emit(forward=to_backend(program, NullBackend.partitioner({})))
    assert len(emitted.plan.delegates) == 1
    assert [blob.data for blob in emitted.blobs.values()] == [b""]
    assert emitted.debug.methods["forward"].undelegated == ()
    with pytest.raises(ProgramError) as caught:
        execute(emitted, tmp_path).methods["forward"](torch.ones(2, 3))
    assert str(caught.value) == (
        "the null backend computes nothing\n  where: backend `null`\n"
        "  to do: lower the model with another backend; the null backend is for tests of the build"
    )


@pytest.mark.parametrize(("backend", "name"), [(NullBackend, "null"), (ReferenceBackend, "reference")])
def test_options_are_refused(backend: type[BackendDetails], name: str) -> None:
    with pytest.raises(BackendError) as caught:
        backend.partitioner({"threads": 2, "isa": "v3"})
    assert str(caught.value) == (
        f'the backend `{name}` has no options\n  found: `isa`, `threads`\n  to do: name it without a table: `"{name}"`'
    )


def test_an_empty_program_has_no_partition() -> None:
    program = edge(module(lambda self, x: x), (torch.ones(2),))
    for backend in (NullBackend, ReferenceBackend):
        assert emit(forward=to_backend(program, backend.partitioner({}))).plan.delegates == ()
