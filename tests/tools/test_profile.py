"""Time by source line: what engines measure is divided among the lines that they compute."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from hatch_lower.backends.aoti.record import GeneratedCode, with_kernel_timers
from hatch_lower.backends.aoti.timed import run_of
from hatch_lower.backends.executorch.timed import read_dump_runs as runs_in_dump
from hatch_lower.backends.executorch.xnnpack_nodes import nodes_of_operators
from hatch_lower.backends.onnxruntime.model_file import ModelNode, originals, read_nodes
from hatch_lower.backends.onnxruntime.timed import TimedOnnxruntimeDelegate, event_runs
from hatch_lower.canonical import sha256_bytes
from hatch_lower.cli.entry import main
from hatch_lower.cli.measure.profile.profile import attribute, refuse_changed_project
from hatch_lower.cli.measure.profile.profile import settings_with_timers as with_timer_settings
from hatch_lower.cli.measure.profile.rows import Profile, ProfileRow, RecipeProfile, export_text, format_of
from hatch_lower.cli.profile import changed_lines, profile_lines
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.format.debug_map import DebugMap, DelegateDebug, MethodDebug, Origin
from hatch_lower.runtime.timing import TimedDelegate, Timing

if TYPE_CHECKING:
    import torch

    from hatch_lower.format.plan import Plan

pytestmark = pytest.mark.torch

LINEAR = Origin("aten.linear.default", "net.first", "net/model.py:5")
RELU = Origin("aten.relu.default", "net", "net/model.py:6")
VIEW = Origin("aten.view.default", "net", "net/model.py:7")
ADD = Origin("aten.add.Tensor", "net", "net/model.py:8")
HANDLES = {1: LINEAR, 2: RELU, 3: VIEW, 4: ADD}


def network() -> torch.nn.Module:
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(16, 32)
            self.norm = torch.nn.LayerNorm(32)
            self.last = torch.nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(torch.nn.functional.gelu(self.first(x)) + 1)
            return torch.softmax(self.last(y), -1)

    torch.manual_seed(0)
    return Network().eval()


def saved(folder: Path, *backends: str, module: torch.nn.Module | None = None, example: Any = None) -> Path:
    """Lower a network for some backends and save it."""
    import torch

    from hatch_lower.exir.backend.registry import find_backend
    from hatch_lower.exir.program import to_edge_transform_and_lower
    from hatch_lower.pipeline.save import save_program

    given = torch.randn(3, 16) if example is None else example
    program = torch.export.export(module or network(), (given,), strict=False)
    options = {"aoti": {"timers": True}}
    partitioners = [find_backend(name).partitioner(options.get(name, {})) for name in backends]
    return save_program(to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch(), folder)


def timed(folder: Path) -> tuple[Any, Timing]:
    """Load a program such that its calls are timed."""
    from hatch_lower.runtime.files import open_folder
    from hatch_lower.runtime.load import load_in_folder
    from hatch_lower.runtime.selection import DelegateKinds

    timing = Timing()
    return load_in_folder(open_folder(folder), None, None, DelegateKinds(timing=timing), False), timing


def called(model: Any, timing: Timing, *values: Any) -> list[tuple[str, int]]:
    """Call `forward`; return the paths of its instructions, empty around them, and their nanoseconds."""
    from time import perf_counter_ns

    begin = perf_counter_ns()
    model(*values)
    end = perf_counter_ns()
    clock = timing.clocks["forward"]
    taken = list(clock.take(begin, end))
    assert sum(nanoseconds for _, nanoseconds in taken) == end - begin
    return [(clock.instructions[number][0] if number >= 0 else "", nanoseconds) for number, nanoseconds in taken]


def test_the_instructions_of_a_plan_add_up_to_the_call(tmp_path: Path) -> None:
    import torch

    model, timing = timed(saved(tmp_path / "out"))
    found = called(model, timing, torch.randn(3, 16))
    debug = model.debug_map("forward")
    assert [path for path, _ in found][1:-1] == [path for path, _ in timing.clocks["forward"].instructions]
    assert debug.instructions.keys() <= {path for path, _ in found}
    assert len(called(model, timing, torch.randn(3, 16))) == len(found)  # a call does not see the one before it


def test_instructions_of_nested_graphs_have_the_paths_of_the_debug_map(tmp_path: Path) -> None:
    import torch

    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
            return found

    model, timing = timed(saved(tmp_path / "out", module=Branching(), example=torch.ones(3)))
    found = [path for path, _ in called(model, timing, torch.ones(3))]
    inside = [path for path in found if ".true." in path]
    assert inside
    assert set(inside) <= model.debug_map("forward").instructions.keys()
    assert not any(".false." in path for path in found)


def test_a_program_that_is_not_timed_has_no_marks(tmp_path: Path) -> None:
    import hatch_lower

    folder = saved(tmp_path / "out")
    model, _ = timed(folder)
    assert "mark" in model._runnable.source("forward")
    plain: Any = hatch_lower.load(folder)._runnable
    assert "mark" not in plain.source("forward")


@pytest.mark.parametrize("backend", ["aoti", "reference", "onnxruntime", "openvino"])
def test_an_engine_measures_the_instructions_of_its_debug_map(tmp_path: Path, backend: str) -> None:
    import torch

    if backend not in ("aoti", "reference"):
        pytest.importorskip(backend)
    model, timing = timed(saved(tmp_path / "out", backend))
    x = torch.randn(3, 16)
    expected = network()(x)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    timing.forget_runs()
    for _ in range(4):
        called(model, timing, x)
    (path, (delegate,)) = next(iter(model.debug_map("forward").delegates)), timing.delegates.values()
    assert isinstance(delegate, TimedDelegate)
    runs = timing.take_runs(0)
    assert len(runs) == 4
    known = model.debug_map("forward").delegates[path].map
    assert known is not None
    for run in runs:
        assert run
        assert all(ids and set(ids) <= known.keys() for ids in run)
        assert all(nanoseconds >= 0 for nanoseconds in run.values())


def test_runs_of_a_delegate_with_state_are_kept_when_the_state_is_reset(tmp_path: Path) -> None:
    import torch

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    model, timing = timed(saved(tmp_path / "out", "reference", module=Counting(), example=torch.ones(3)))
    for _ in range(2):
        model.reset()
        assert model(torch.ones(3)).tolist() == [2, 2, 2]
    timing.forget_runs()
    for _ in range(3):
        model.reset()
        model(torch.ones(3))
    assert len(timing.take_runs(0)) == 3


def found_of(*steps: dict[str, Any], **untimed: str) -> dict[str, Any]:
    timed = [1_000_000] * 4
    return {"times": {"plain": timed, "timed": timed}, "steps": list(steps), "untimed": untimed}


def plan_with(*backends: str) -> Plan:
    from types import SimpleNamespace

    plan: Any = SimpleNamespace(delegates=[SimpleNamespace(backend=backend) for backend in backends])
    return plan  # type: ignore[no-any-return]


def delegate_step(nanoseconds: int, *parts: tuple[list[str], int]) -> dict[str, Any]:
    step: dict[str, Any] = {"path": "0", "op": "delegate", "nanoseconds": nanoseconds, "count": 4, "delegate": 0}
    return {**step, "parts": [[ids, taken, 4] for ids, taken in parts]}


def debug_of(ids: dict[str, tuple[int, ...]]) -> MethodDebug:
    return MethodDebug(HANDLES, {"0": (1, 2, 3, 4)}, {"0": DelegateDebug("engine", ids)}, ())


def test_a_kernels_time_is_its_heaviest_operations() -> None:
    step = delegate_step(4_000_000, (["fused"], 2_000_000), (["sum"], 1_000_000))
    profile = attribute(found_of(step), plan_with("engine"), debug_of({"fused": (1, 2, 3), "sum": (2, 3, 4)}))
    seconds = {row.op: (round(row.seconds * 1e6), row.shared) for row in profile.rows}
    assert seconds["aten.linear.default"] == (500, True)
    assert seconds["aten.relu.default"] == (125, True)  # half of the second kernel
    assert seconds["aten.add.Tensor"] == (125, True)
    assert seconds["aten.view.default"] == (0, True)
    assert seconds["other work of the engine"] == (250, False)
    assert profile.attributed == pytest.approx(0.75)
    assert profile.unattributed == pytest.approx(0)


def test_a_product_that_is_taken_apart_is_heavy_where_it_takes_longest() -> None:
    step = delegate_step(4_000_000, (["product"], 2_000_000), (["bias, sum"], 1_000_000))
    profile = attribute(found_of(step), plan_with("engine"), debug_of({"product": (1,), "bias, sum": (1, 4)}))
    seconds = {row.op: round(row.seconds * 1e6) for row in profile.rows}
    assert seconds["aten.linear.default"] == 500
    assert seconds["aten.add.Tensor"] == 250
    (linear,) = (row for row in profile.rows if row.op == "aten.linear.default")
    assert linear.calls == 4  # not 8: one product, computed by two kernels


def test_an_engine_that_measures_nothing_has_one_row_and_a_note() -> None:
    found = found_of({**delegate_step(3_000_000), "parts": []}, **{"0": "no means"})
    profile = attribute(found, plan_with("engine"), debug_of({"a": (1,)}))
    assert [(row.op, row.source) for row in profile.rows] == [("whole delegate", "")]
    assert profile.attributed == 0
    assert profile.unattributed == pytest.approx(250e-6)
    assert profile.notes == ("`engine` is not measured inside: no means",)


def test_all_of_a_delegate_of_one_line_is_that_lines() -> None:
    debug = MethodDebug({1: LINEAR}, {"0": (1,)}, {"0": DelegateDebug("engine", None)}, ())
    profile = attribute(found_of(delegate_step(3_000_000)), plan_with("engine"), debug)
    assert [(row.op, row.source) for row in profile.rows] == [("whole delegate", "net/model.py:5")]


def test_without_a_debug_map_nothing_is_attributed() -> None:
    step = delegate_step(4_000_000, (["fused"], 4_000_000))
    profile = attribute(found_of(step), plan_with("engine"), MethodDebug({}, {}, {}, ()))
    assert profile.attributed == 0
    assert [(row.op, round(row.seconds * 1e6)) for row in profile.rows] == [("fused", 1000)]
    assert "has no operations for instructions inside `engine`" in profile.notes[0]


def profile_of(**recipes: RecipeProfile) -> Profile:
    return Profile("net", "forward", 1, recipes)


def recipe_of(*rows: ProfileRow, seconds: float = 0.001) -> RecipeProfile:
    return RecipeProfile(10, seconds, 0.02, rows, ())


def test_rows_and_the_rest_add_up_to_the_call() -> None:
    written = profile_of(default=recipe_of(ProfileRow("a.py:1", "m", "aten.mm.default", "plan", 0.0007, 10))).to_json()
    (recipe,) = written["recipes"].values()
    assert recipe["unattributed"] == pytest.approx(0.0003)
    assert recipe["rows"] == [
        {"source": "a.py:1", "module": "m", "op": "aten.mm.default", "engine": "plan", "seconds": 0.0007, "calls": 10}
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.json", "json"), ("a.speedscope.json", "speedscope"), ("a.trace.json", "trace"), ("trace.txt", "json")],
)
def test_a_files_name_says_its_format(name: str, expected: str) -> None:
    assert format_of(Path(name)) == expected


def test_a_trace_has_the_instructions_of_an_engine_inside_its_delegate() -> None:
    step = delegate_step(4_000_000, (["first"], 1_000_000), (["second"], 2_000_000))
    recipe = attribute(found_of(step), plan_with("engine"), debug_of({"first": (1,), "second": (2,)}))
    events = json.loads(export_text(profile_of(default=recipe), Path("x.trace.json")))["traceEvents"]
    whole, first, second = (event for event in events if event["ph"] == "X")
    assert (whole["ts"], whole["dur"]) == (0, 1000)
    assert (first["ts"], first["dur"]) == (0, 250)
    assert (second["ts"], second["dur"]) == (250, 500)
    assert first["args"]["sources"] == ["net/model.py:5"]


def test_a_speedscope_file_weighs_stacks_of_modules() -> None:
    recipe = recipe_of(ProfileRow("a.py:12", "net.first", "aten.mm.default", "aoti", 0.0007, 10))
    written = json.loads(export_text(profile_of(default=recipe), Path("x.speedscope.json")))
    frames = written["shared"]["frames"]
    (profile,) = written["profiles"]
    stacks = [[frames[index]["name"] for index in stack] for stack in profile["samples"]]
    assert stacks == [["net", "net.first", "aten.mm.default (aoti)"], ["not attributed"]]
    assert frames[2] == {"name": "aten.mm.default (aoti)", "file": "a.py", "line": 12}
    assert profile["weights"] == pytest.approx([0.0007, 0.0003])
    assert profile["endValue"] == pytest.approx(0.001)


def test_another_program_than_the_packaged_one_is_refused() -> None:
    packaged = debug_of({"a": (1,)})
    refuse_changed_project(debug_of({"a": (1,)}), packaged, Path("/project"))
    with pytest.raises(ProgramError, match="the project has changed since its models were lowered"):
        refuse_changed_project(debug_of({"b": (1,)}), packaged, Path("/project"))


def test_a_build_with_timers_is_of_one_model_and_sets_the_option_where_there_is_one() -> None:
    choices = (BackendChoice("openvino", {}), BackendChoice("aoti", {"isa": "x86-64-v4"}))
    recipes = (Recipe("default", choices), Recipe("portable"), Recipe("other", (BackendChoice("aoti"),)))
    models = tuple(ModelSettings(name, "m:f", "m", ("default", "portable", "other")) for name in ("net", "far"))
    settings = Settings(Path("/project"), "net", "1", models, recipes)
    made = with_timer_settings(settings, "net", ["default"])
    assert [(model.name, model.recipes) for model in made.models] == [("net", ("default",))]
    (recipe,) = made.recipes
    assert [choice.options for choice in recipe.backends] == [{}, {"isa": "x86-64-v4", "timers": True}]
    assert not recipe.verify


WRAPPER = """\
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles
) {
    first(a);
    // [Provenance debug handles] cpp_fused_relu_0:1
    cpp_fused_relu_0(a);
    {
        // [Provenance debug handles] aoti_torch_cpu_addmm_out:2
        aoti_torch_cpu_addmm_out(a);
    }
}
"""


def test_a_mark_stands_in_front_of_each_kernel() -> None:
    origins = {"cpp_fused_relu_0:1": (0,), "aoti_torch_cpu_addmm_out:2": (1,)}
    made = with_kernel_timers(GeneratedCode(WRAPPER, "", (), origins)).wrapper
    lines = [line.strip() for line in made.splitlines()]
    assert lines[lines.index("cpp_fused_relu_0(a);") - 1] == "hatch_lower_mark(0);"
    assert lines[lines.index("aoti_torch_cpu_addmm_out(a);") - 1] == "hatch_lower_mark(1);"
    assert lines[lines.index("first(a);") - 1] == "HatchLowerRun hatch_lower_run;"
    assert 'return "cpp_fused_relu_0:1\\naoti_torch_cpu_addmm_out:2";' in lines


def test_code_that_does_not_name_its_kernels_is_refused() -> None:
    with pytest.raises(BackendError, match="does not say where its kernels are called"):
        with_kernel_timers(GeneratedCode(WRAPPER, "", (), {"cpp_fused_relu_0:1": (0,)}))


def test_a_kernel_of_a_library_runs_until_the_next_begins() -> None:
    assert run_of([0, 100, 1, 250, 0, 300, -1, 400], ["a:1", "b:2"]) == {("a:1",): 250, ("b:2",): 50}
    assert run_of([-1, 400], []) == {}


def test_nodes_of_a_model_are_read_without_its_library() -> None:
    onnx = pytest.importorskip("onnx")
    made = onnx.helper.make_node("Add", ["a", "b"], ["c"], name="Add_0", domain="x")
    graph = onnx.helper.make_graph([made], "g", [], [])
    model = onnx.helper.make_model(graph).SerializeToString()
    assert read_nodes(model) == [ModelNode("Add_0", ("a", "b"), ("c",))]
    with pytest.raises(ValueError, match="longer than its message"):
        read_nodes(model[:-1])


def test_a_fused_node_stands_for_what_lies_between_its_values() -> None:
    known = [
        ModelNode("MatMul_0", ("x", "w"), ("a",)),
        ModelNode("Add_1", ("a", "b"), ("c",)),
        ModelNode("Gelu_2", ("c",), ("d",)),
        ModelNode("Relu_3", ("d",), ("y",)),
    ]
    optimized = [
        ModelNode("MatMul_0", ("x", "w"), ("a",)),
        ModelNode("BiasGelu", ("a", "b"), ("d",)),
        ModelNode("Relu_3", ("d",), ("y",)),
    ]
    found = originals(known, optimized)
    assert found["BiasGelu"] == ("Gelu_2", "Add_1")
    assert found["Relu_3"] == ("Relu_3",)


def test_nodes_in_blocks_of_channels_and_what_turns_them_stand_for_what_they_compute() -> None:
    known = [
        ModelNode("Conv_0", ("x", "w"), ("a",)),
        ModelNode("Relu_1", ("a",), ("b",)),
        ModelNode("Conv_2", ("b", "u"), ("c",)),
        ModelNode("Add_3", ("c", "b"), ("d",)),
        ModelNode("Exp_4", ("d",), ("y",)),
    ]
    optimized = [
        ModelNode("ReorderInput", ("x",), ("r0",)),
        ModelNode("b_nchwc", ("r0", "w0"), ("r1",)),
        ModelNode("c_nchwc_token_1", ("r1", "u0", "r1"), ("r2",)),
        ModelNode("ReorderOutput", ("r2",), ("d",)),
        ModelNode("Exp_4", ("d",), ("y",)),
    ]
    assert originals(known, optimized) == {
        "ReorderInput": ("Relu_1", "Conv_0"),
        "b_nchwc": ("Relu_1", "Conv_0"),
        "c_nchwc_token_1": ("Conv_2",),
        "ReorderOutput": ("Add_3",),
        "Exp_4": ("Exp_4",),
    }


def test_a_node_with_a_graph_inside_has_its_own_time_only() -> None:
    def event(name: str, begin: int, duration: int, cat: str = "Node") -> dict[str, Any]:
        return {"cat": cat, "name": name, "ts": begin, "dur": duration}

    events = [
        event("model_loading_array", 0, 5, "Session"),
        event("Add_kernel_time", 10, 3),
        event("Mul_kernel_time", 22, 4),
        event("If_kernel_time", 20, 10),
        event("model_run", 9, 30, "Session"),
        event("Add_kernel_time", 40, 2),
        event("model_run", 39, 9, "Session"),
    ]
    assert [dict(run) for run in event_runs(events)] == [{"Add": 3000, "Mul": 4000, "If": 6000}, {"Add": 2000}]


def test_nodes_that_stand_for_the_same_ones_are_timed_together(tmp_path: Path) -> None:
    """A convolution in blocks of channels takes its time, and the node that lays its input out for it does, too."""
    names = {"ReorderInput": ("Relu_1", "Conv_0"), "b_nchwc": ("Relu_1", "Conv_0")}
    rows = [("ReorderInput_kernel_time", 1, 2), ("b_nchwc_kernel_time", 4, 7), ("model_run", 0, 20)]
    events = [{"cat": "Node", "name": name, "ts": begin, "dur": duration} for name, begin, duration in rows]
    (tmp_path / "events.json").write_text(json.dumps(events))
    delegate = TimedOnnxruntimeDelegate.__new__(TimedOnnxruntimeDelegate)
    delegate.names = names
    delegate._session = SimpleNamespace(end_profiling=lambda: str(tmp_path / "events.json"))
    assert delegate.take_runs() == [{("Relu_1", "Conv_0"): 9000}]


def profiled(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, arguments), "--seconds", "0.1"], catch_exceptions=False)


def test_the_command_shows_and_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "out", "onnxruntime")
    written, temporary = tmp_path / "made.json", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    shown = profiled(folder, "--export", written)
    assert shown.exit_code == 0, shown.output
    assert list(temporary.iterdir()) == []
    assert "test_profile.py" in shown.output
    assert "not attributed" in shown.output
    (recipe,) = json.loads(written.read_text())["recipes"].values()
    total = sum(row["seconds"] for row in recipe["rows"]) + recipe["unattributed"]
    assert total == pytest.approx(recipe["seconds"])
    assert {"aten.linear.default", "aten.layer_norm.default"} <= {row["op"] for row in recipe["rows"]}


def test_the_command_refuses_what_is_not_there(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out")
    for arguments, message in (
        (["backward"], "has no such method"),
        (["--recipe", "other"], "there is no such recipe"),
        (["--inputs", tmp_path / "none.safetensors"], "the sample file does not exist"),
        (["--export", tmp_path / "no" / "where.json"], "the report cannot be written"),
    ):
        shown = profiled(folder, *arguments)
        assert shown.exit_code == 1
        assert message in shown.output


def test_operators_of_xnnpack_are_led_back_to_the_nodes_of_its_graph() -> None:
    operators = ["Copy (NC, X32) #1", "Convolution (NHWC, F32) IGEMM #1", "Add (NC) #1", "Static Reshape (NC) #1"]
    kinds = ["convolution", "clamp", "add", "reshape", "sigmoid"]
    assert nodes_of_operators(operators, kinds) == [[0, 1], [0, 1], [2], [3, 4]]
    assert nodes_of_operators([], kinds) == []
    assert nodes_of_operators(["Add (NC) #1"], []) == [[]]


class Flat:
    """Writes a flatbuffer from back to front, as its tables refer forward only."""

    def __init__(self) -> None:
        self.data = b""

    def place(self, content: bytes) -> int:
        # counted from the end
        self.data = content + b"\0" * (-len(content) % 8) + self.data
        return len(self.data)

    def text(self, text: str) -> int:
        return self.place(struct.pack("<I", len(text)) + text.encode())

    def vector(self, entries: list[int]) -> int:
        size = 4 + 4 * len(entries)
        begin = len(self.data) + size + -size % 8
        return self.place(
            struct.pack("<I", len(entries))
            + b"".join(struct.pack("<I", begin - 4 - 4 * index - entry) for index, entry in enumerate(entries))
        )

    def table(self, fields: dict[int, tuple[str, int]]) -> int:
        """Write a table of fields by number: a form of `struct` and a number, or `&` and a place."""
        count = max(fields, default=-1) + 1
        layout = 4 + 2 * count
        start = layout + -layout % 8
        size = start + 8 + 8 * len(fields)
        begin = len(self.data) + size
        offsets, body = [0] * count, b""
        for number, (form, value) in fields.items():
            offset = 8 + len(body)
            offsets[number] = offset
            target = begin - start - offset - value if form == "&" else value
            packed = struct.pack("<I" if form == "&" else f"<{form}", target)
            body += packed + b"\0" * (-len(packed) % 8)
        head = struct.pack(f"<HH{count}H", layout, 8 + len(body), *offsets)
        head += b"\0" * (-len(head) % 8)
        return self.place(head + struct.pack("<i", start) + b"\0" * 4 + body) - start

    def finish(self, root: int, identifier: bytes) -> bytes:
        self.data = b"\0" * 8 + self.data
        return struct.pack("<I", len(self.data) - root) + identifier + self.data[8:]


def event(flat: Flat, name: str, instruction: int, nanoseconds: int, operator: str = "") -> int:
    fields = {0: ("&", flat.text(name)), 2: ("i", instruction), 6: ("Q", 100), 7: ("Q", 100 + nanoseconds)}
    if operator:
        fields[4] = ("&", flat.text(operator))
    return flat.table({0: ("&", flat.table(fields))})


def test_runs_are_read_from_an_etdump() -> None:
    flat = Flat()
    events = [
        event(flat, "native_call_add.out", 0, 3),
        event(flat, "OPERATOR_CALL", 0, 5),
        event(flat, "", 1, 40, "Fully Connected (NC, F32) GEMM #1"),
        event(flat, "", 1, 8, "GELU (NC) #1"),
        event(flat, "DELEGATE_CALL", 1, 50),
        event(flat, "Method::execute", 0, 60),
        event(flat, "OPERATOR_CALL", 0, 6),
        event(flat, "Method::execute", 0, 9),
    ]
    dump = flat.finish(flat.table({1: ("&", flat.vector([flat.table({3: ("&", flat.vector(events))})]))}), b"ED00")
    names = {"0": ["0:aten.add"], "1": ["1:XnnpackBackend", "1:0:fully connected", "1:1:gelu"]}
    expected = [{("0:aten.add",): 5, ("1:0:fully connected",): 40, ("1:1:gelu",): 8}, {("0:aten.add",): 6}]
    assert list(runs_in_dump(dump, names)) == expected
    assert list(runs_in_dump(struct.pack("<I", len(dump)) + dump, names)) == expected


def test_a_source_that_has_changed_since_it_was_lowered_is_named(tmp_path: Path) -> None:
    row = ProfileRow("net/model.py:3", "", "aten.relu.default", "portable", 1e-3, 1)
    recipe = RecipeProfile(1, 1e-3, 0.0, (row,), ())
    found = Profile("net", "forward", 1, {"default": recipe})
    debug = DebugMap({}, {"net/model.py": sha256_bytes(b"as lowered"), "net/other.py": sha256_bytes(b"")})
    contents: Any = SimpleNamespace(debug=lambda entry: debug, manifest=SimpleNamespace(distribution="net"))
    entry: Any = SimpleNamespace(recipes={"default": None})

    def lines(data: bytes) -> list[str]:
        (tmp_path / "net" / "model.py").write_bytes(data)
        return list(changed_lines(tmp_path, contents, entry, found, tmp_path))

    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "other.py").write_bytes(b"no operation comes from it")
    assert lines(b"as lowered") == []
    (line,) = lines(b"edited")
    assert line == "net/model.py in the given folder has changed since the build: line numbers are those of the build"


def test_source_lines_are_added_up_and_an_overhead_below_zero_is_noise() -> None:
    row = ProfileRow("net.py:3", "net", "aten.mul.Tensor", "aoti", 0.25, 1)
    rows = (row, replace(row, op="aten.add.Tensor", seconds=0.5), replace(row, source="net.py:9", seconds=0.125))
    found = Profile("net", "forward", 1, {"default": RecipeProfile(9, 1.0, -0.117, rows, ())})
    lines = [line.split() for line in profile_lines(found, {})]
    assert ["default", "1", "s", "87.5%", "within", "noise"] in lines
    begin = lines.index(["sum", "of", "a", "source", "line", "default"])
    assert lines[begin + 1 :] == [["net.py:3", "750", "ms", "75.0%"], ["net.py:9", "125", "ms", "12.5%"]]
