from __future__ import annotations

import itertools
import random
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hatch_lower.cache.directory import history_path
from hatch_lower.cache.store import Store, open_store
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.cli.explain import explain_lines, last_report
from hatch_lower.config.settings import Settings
from hatch_lower.driver.context import ProjectView, build_context
from hatch_lower.driver.diff.forms import MOST_EDITS, Form, align, differences, gaps, read_form
from hatch_lower.driver.diff.words import consequences, key_changes, literal_words, operator_text
from hatch_lower.driver.executor import last_build, record_results, summary_note
from hatch_lower.driver.explain import (
    FIRST_BUILD,
    NOTHING,
    BuildHistory,
    ModelHistory,
    explain_methods,
    in_last_environment,
    places_of_path,
    read_history,
    write_history,
)
from hatch_lower.driver.inputs.machine import Distribution
from hatch_lower.driver.lookup import LookupResult, backend_distributions
from hatch_lower.driver.protocol import Answer
from hatch_lower.events import NullReporter
from hatch_lower.exir.graph.canonical import canonical_form
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.record import MethodRecord, ModelReport
from hatch_lower.format.results import MethodRow
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.graph_key import form_bytes

Function = Callable[[Any, torch.Tensor], Any]
BATCH = {"x": {0: torch.export.Dim("batch", min=2, max=1024)}}


class Net(nn.Module):
    """A linear layer, a buffer, and whatever a test does with them."""

    def __init__(self, call: Function, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.register_buffer("steps", torch.zeros(1))
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self, self.linear(x))


def stored(module: nn.Module, x: torch.Tensor | None = None, dynamic: Any = None) -> bytes:
    """Return the blob that a build stores of a module's export; a node's source line is its position."""
    args = (torch.zeros(2, 3) if x is None else x,)
    program = torch.export.export(module, args, dynamic_shapes=dynamic, strict=False)
    sources = [f"net.py:{at}" for at, _ in enumerate(program.graph.nodes)]
    return form_bytes(CapturedMethod("forward", program, args, {}, ("x",)), canonical_form(program), sources)


def form(module: nn.Module, x: torch.Tensor | None = None, dynamic: Any = None) -> Form:
    found = read_form(stored(module, x, dynamic))
    assert found is not None
    return found


def clamp(maximum: float, **options: Any) -> Net:
    return Net(lambda net, y: y.clamp(max=maximum), **options)


def count_steps(net: Any, y: torch.Tensor) -> torch.Tensor:
    net.steps.add_(1)
    return y.clamp(max=6.0)


def branch(function: Callable[[torch.Tensor], torch.Tensor]) -> Net:
    return Net(lambda net, y: torch.cond(y.sum() > 0, lambda z: function(z), lambda z: z.cos(), (y,)))


def both(net: Any, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y.sin(), y.cos()


def both_turned(net: Any, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return both(net, y)[::-1]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (clamp(6.0), clamp(1.0), ["aten.clamp max 6.0 → 1.0 (net.py:5)"]),
        (clamp(6.0), Net(lambda net, y: y.clamp(min=0.0, max=6.0)), ["aten.clamp min None → 0.0 (net.py:5)"]),
        (clamp(6.0), Net(lambda net, y: y.relu().clamp(max=6.0)), ["aten.relu added (net.py:5)"]),
        (Net(lambda net, y: y.relu().clamp(max=6.0)), clamp(6.0), ["aten.relu removed (was net.py:5)"]),
        (
            Net(lambda net, y: nn.functional.gelu(y)),
            Net(lambda net, y: nn.functional.silu(y)),
            ["aten.gelu → aten.silu (net.py:5)"],
        ),
        (
            Net(lambda net, y: nn.functional.gelu(y)),
            Net(lambda net, y: nn.functional.gelu(y, approximate="tanh")),
            ["aten.gelu approximate default → 'tanh' (net.py:5)"],
        ),
        (
            clamp(6.0),
            clamp(6.0, width=5),
            ["constant linear.weight: float32[4, 3] → float32[5, 3]", "constant linear.bias: float32[4] → float32[5]"],
        ),
        (clamp(6.0), Net(count_steps), ["aten.add_.Tensor added (net.py:5)"]),
        (
            Net(lambda net, y: y - net.steps),
            Net(lambda net, y: net.steps - y),
            ["aten.sub.Tensor takes another value as self, other (net.py:5)"],
        ),
        (Net(both), Net(both_turned), ["outputs in another order"]),
        (Net(both), Net(lambda net, y: y.cos()), ["aten.sin removed (was net.py:5)", "outputs 2 → 1"]),
        (branch(torch.sin), branch(torch.tanh), ["in a nested graph: aten.sin → aten.tanh"]),
        (clamp(6.0), clamp(6.0), []),
    ],
)
def test_a_changed_graph_in_words(before: nn.Module, after: nn.Module, expected: list[str]) -> None:
    assert differences(form(before), form(after)) == expected


def test_inputs_and_their_sizes_in_words() -> None:
    module, longer = clamp(6.0), {"x": {0: torch.export.Dim("batch", min=2, max=2048)}}
    fixed, dynamic = form(module), form(module, dynamic=BATCH)
    assert differences(fixed, form(module, torch.zeros(5, 3))) == ["input x: float32[2, 3] → float32[5, 3]"]
    assert differences(fixed, dynamic) == ["input x: float32[2, 3] → float32[s0, 3]", "dynamic sizes 0 → 1"]
    assert differences(dynamic, form(module, dynamic=longer)) == ["size s0: 2 to 1024 → 2 to 2048"]
    assert differences(dynamic, form(module, torch.zeros(5, 3), BATCH)) == ["input x: example size of s0 2 → 5"]
    turned = torch.zeros(3, 2).t()
    assert differences(fixed, form(module, turned)) == ["input x: strides [3, 1] → [1, 2]"]
    lines = differences(fixed, form(clamp(6.0).double(), torch.zeros(2, 3, dtype=torch.float64)))
    assert lines[:2] == [
        "input x: float32[2, 3] → float64[2, 3]",
        "constant linear.weight: float32[4, 3] → float64[4, 3]",
    ]


class Product(nn.Module):
    """Multiplies by parameters of the given names."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self.names = names
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = x * getattr(self, name)
        return x


def test_a_renamed_constant_is_no_change_of_the_graph_and_a_new_one_is() -> None:
    before = form(Product("ab"))
    assert differences(before, form(Product("ac"))) == []
    assert differences(before, form(Product("abc"))) == [
        "aten.mul.Tensor added (net.py:6)",
        "constant c added: float32[3]",
    ]
    assert differences(before, form(Product("b"))) == [
        "aten.mul.Tensor removed (was net.py:4)",
        "constant a removed: float32[3]",
    ]


def test_equal_changes_are_counted() -> None:
    before = Form([["call_function", "f:m:relu:", ["list", []], {}, None]] * 3, [], [], [])
    after = Form([["call_function", "f:m:gelu:", ["list", []], {}, None]] * 3, [], [], [])
    assert differences(before, after) == ["relu → gelu, 3 times"]


def long_form(count: int, width: int, *, every: int = 0) -> Form:
    """Return a chain of `count` operators of `width` kinds, each `every`th of which is another one."""
    kind = [f"f:m:op{(at * at) % width if not every or at % every else 'x'}:" for at in range(count)]
    rows = [["call_function", name, ["list", [["node", at]]], {}, None] for at, name in enumerate(kind)]
    return Form(rows, [], [], [], [f"net.py:{at}" for at in range(count)])


def test_each_of_many_changes_in_a_large_graph_is_named() -> None:
    lines = differences(long_form(5000, 40), long_form(5000, 40, every=60))
    assert len(lines) == 84
    assert all("→ opx (net.py:" in line for line in lines)


def test_graphs_that_share_little_are_summed_up() -> None:
    (line,) = differences(long_form(3000, 3), long_form(2600, 1, every=2))
    assert line == "another graph: operators 3,000 → 2,600, op1 2,000 → 0, opx 0 → 1,300, op0 1,000 → 1,300"


def test_an_alignment_pairs_equal_items_in_order() -> None:
    draw = random.Random(5)
    for _ in range(500):
        before, after = ("".join(draw.choice("abc") for _ in range(draw.randrange(10))) for _ in range(2))
        pairs = align(before, after)
        assert pairs is not None
        assert all(before[left] == after[right] for left, right in pairs)
        assert all(one[0] < two[0] and one[1] < two[1] for one, two in itertools.pairwise(pairs))
        left_over = [(list(first), list(second)) for first, second in gaps(pairs, len(before), len(after))]
        assert sorted([at for first, _ in left_over for at in first] + [left for left, _ in pairs]) == list(
            range(len(before))
        )
        assert sum(len(second) for _, second in left_over) + len(pairs) == len(after)


def test_an_alignment_finds_all_unchanged_operators_of_a_large_graph() -> None:
    draw = random.Random(1)
    before = [f"op{at % 40}{draw.randrange(3)}" for at in range(1200)]
    after = list(before)
    for at in draw.sample(range(1200), 24):
        after[at] = "changed"
    del after[600:619]
    pairs = align(before, after)
    assert pairs is not None
    assert len(pairs) == 1157


def test_sequences_that_share_nothing_have_no_alignment() -> None:
    assert align("a" * MOST_EDITS, "b" * MOST_EDITS) is None
    assert align("a" * MOST_EDITS, "") == []


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("OpOverload:torch._ops.aten:clamp.default:aten::clamp.", "aten.clamp"),
        ("OpOverload:torch._ops.aten:add.Tensor:aten::add.Tensor", "aten.add.Tensor"),
        ("builtin_function_or_method:_operator:getitem:", "getitem"),
        ("CondOp:torch.ops.higher_order:cond:", "cond"),
    ],
)
def test_operators_are_named_as_in_their_documentation(target: str, text: str) -> None:
    assert operator_text(target) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["float", (6.0).hex()], "6.0"),
        (["int", "3"], "3"),
        (None, "None"),
        (True, "True"),
        ("tanh", "'tanh'"),
        (["list", [["int", "2"], ["symbolic", "s0", "2"]]], "[2, s0]"),
        (["dtype", "torch.float32"], "float32"),
        (["slice", [None, ["int", "2"], None]], ":2:"),
        (["complex", (1.0).hex(), (2.0).hex()], "(1+2j)"),
        (["dict", [["a", ["int", "1"]]]], "{a: 1}"),
        (["device", "cpu"], "cpu"),
        (["node", 7], "a value"),
        (["list", [["int", "1"]] * 50], "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1…"),
    ],
)
def test_literals_are_written_as_python_does(value: Any, text: str) -> None:
    assert literal_words(value) == text


@pytest.mark.parametrize(
    "data",
    [
        b"no zlib",
        zlib.compress(b"no json"),
        zlib.compress(canonical_json({"form": {"graph": []}})),
        zlib.compress(canonical_json([])),
    ],
)
def test_a_form_that_cannot_be_read_is_none(data: bytes) -> None:
    assert read_form(data) is None


AOTI = {"name": "aoti", "options": {"isa": "native"}}
NULL = {"name": "null", "options": {}}
RECIPE = {"name": "default", "backends": [AOTI], "verify": True, "rtol": 1e-4}
OLD, NEW = "a" * 64, "b" * 64
KEY = {
    "model": "digits",
    "graphs": [OLD],
    "eager": OLD,
    "sharing": OLD,
    "recipes": [RECIPE],
    "inputs": ["weights/*"],
    "entry_points": OLD,
    "variables": [["CC", OLD]],
    "check": 0,
    "weights": [["https://a/1", OLD]],
    "samples": [["forward", "a.safetensors", OLD]],
    "metric": ["digits:accuracy", 0.01],
    "kept": [["int8", ["first", "head"]]],
    "torch": "2.13.0",
    "interpreter": "3.11.2",
    "machine": [["cpu", "avx avx2"], ["libc", "glibc 2.36"]],
    "backends": [["hatch-lower", "0.1.0", OLD]],
    "tools": [["backend aoti", f"hatch-lower 0.1.0 {OLD}"]],
    "code": OLD,
    "schema": [1, 2],
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        (
            {"recipes": [{**RECIPE, "backends": [{"name": "aoti", "options": {"isa": "x86-64-v3"}}]}]},
            ['recipe default, backend aoti: option isa "native" → "x86-64-v3"'],
        ),
        (
            {"recipes": [{**RECIPE, "backends": [{"name": "aoti", "options": {"isa": "native", "lanes": [8]}}]}]},
            ["recipe default, backend aoti: option lanes default → [8]"],
        ),
        ({"recipes": [{**RECIPE, "backends": [AOTI, NULL]}]}, ["recipe default, backend null added"]),
        ({"recipes": [{**RECIPE, "backends": []}]}, ["recipe default, backend aoti removed"]),
        ({"recipes": [{**RECIPE, "verify": False}]}, ["recipe default: verify true → false"]),
        ({"recipes": [RECIPE, {"name": "portable", "backends": []}]}, ["recipe portable added"]),
        ({"check": 3}, ["check 0 → 3"]),
        ({"weights": [["https://a/1", OLD], ["https://a/2", OLD]]}, ["weights in https://a/2"]),
        ({"weights": [["https://a/1", NEW]]}, ["other contents of https://a/1"]),
        ({"weights": (("file", ""),)}, ["weights no longer in https://a/1", "weights in a file beside the wheel"]),
        ({"samples": [["forward", "a.safetensors", NEW]]}, ["other real inputs of `forward` in a.safetensors"]),
        ({"metric": ["digits:f1", 0.01]}, ["metric digits:accuracy → digits:f1"]),
        ({"metric": ["digits:accuracy", 0.0]}, ["max-drop 0.01 → 0"]),
        ({"metric": ["", 0.01]}, ["metric digits:accuracy → none"]),
        ({"kept": [["int8", ["last", "head"]]]}, ["recipe int8: layers kept in float32: also last; no longer first"]),
        ({"kept": []}, ["recipe int8: layers kept in float32: no longer first, head"]),
        ({"samples": (("forward", "net:data", NEW),)}, ["real inputs of `forward` from net:data"]),
        (
            {"samples": [["embed", "a.safetensors", OLD]]},
            ["no real inputs of `forward`", "real inputs of `embed` from a.safetensors"],
        ),
        ({"inputs": ["data/*"]}, ['inputs ["weights/*"] → ["data/*"]']),
        ({"entry_points": NEW}, ["the project's entry points"]),
        ({"variables": [["CC", NEW]]}, ["variable CC"]),
        ({"variables": []}, ["variable CC"]),
        ({"torch": "2.14.0"}, ["torch 2.13.0 → 2.14.0"]),
        ({"interpreter": "3.12.1"}, ["Python 3.11.2 → 3.12.1"]),
        ({"machine": [["cpu", "avx"], ["libc", "glibc 2.36"]]}, ["the processor's instruction sets avx avx2 → avx"]),
        ({"machine": [["cpu", "avx avx2"], ["libc", "glibc 2.40"]]}, ["C library glibc 2.36 → glibc 2.40"]),
        (
            {"tools": [["backend aoti", f"hatch-lower 0.2.0 {NEW}"]]},
            ["backend aoti hatch-lower 0.1.0 → hatch-lower 0.2.0"],
        ),
        ({"tools": [["backend aoti", f"hatch-lower 0.1.0 {NEW}"]]}, ["backend aoti"]),
        ({"backends": [["hatch-lower", "0.1.0", OLD], ["rival", "2", NEW]]}, ["backends of rival none → 2"]),
        ({"code": NEW}, ["hatch-lower's own code"]),
        ({"schema": [1, 3]}, ["hatch-lower's stored form 1, 2 → 1, 3"]),
        ({"graphs": [NEW], "eager": NEW, "sharing": NEW}, []),
        (
            {"code": NEW, "check": 3, "torch": "2.14.0"},
            ["check 0 → 3", "torch 2.13.0 → 2.14.0", "hatch-lower's own code"],
        ),
    ],
)
def test_settings_and_tools_in_words(change: dict[str, Any], expected: list[str]) -> None:
    assert key_changes(KEY, {**KEY, **change}) == expected


def test_the_order_of_backends_is_a_setting() -> None:
    before, after = ({"recipes": [{**RECIPE, "backends": each}]} for each in ([AOTI, NULL], [NULL, AOTI]))
    assert key_changes(before, after) == ['recipe default: backends ["aoti", "null"] → ["null", "aoti"]']


def test_a_key_is_the_same_before_and_after_it_was_stored() -> None:
    fresh = {**KEY, "variables": (("CC", OLD),), "entry_points": OLD, "recipes": (RECIPE,)}
    assert key_changes(KEY, fresh) == []


def test_what_follows_from_other_parts_speaks_last() -> None:
    after = {**KEY, "eager": NEW, "sharing": NEW}
    assert consequences(KEY, after) == ["which tensors share memory", "the outputs of the eager module"]
    assert explained(build_of(KEY), build_of(after)) == tuple(consequences(KEY, after))
    assert explained(build_of(KEY), build_of(after), "digits/model.py") == ("digits/model.py",)


def record(graph: str = "g", *, form: str = "", names: str = "n", examples: str = "e", **state: str) -> MethodRecord:
    return MethodRecord(graph, names, examples, state or {"weight": "1", "bias": "2"}, form)


def build_of(key: Mapping[str, Any] | None = None, **methods: MethodRecord) -> ModelHistory:
    return ModelHistory(1, methods=methods or {"forward": record()}, key=KEY if key is None else key)


def explained(before: ModelHistory | None, after: ModelHistory, *changes: str, **blobs: bytes) -> Sequence[str]:
    by_digest = {sha256_bytes(data): data for data in blobs.values()}
    return explain_methods(before, after, changes, by_digest.get)["forward"]


def test_a_first_build_says_so() -> None:
    assert explained(None, build_of(), "digits/model.py") == (FIRST_BUILD,)


def test_what_level_one_saw_is_named_where_nothing_else_differs() -> None:
    assert explained(build_of(), build_of(), "digits/model.py", "variable HOME") == ("digits/model.py", "variable HOME")
    assert explained(build_of(), build_of()) == (NOTHING,)


def test_a_method_that_was_not_there_is_new() -> None:
    after = build_of(forward=record(), embed=record())
    assert explain_methods(build_of(), after, ["digits/model.py"], lambda digest: None) == {
        "forward": ("digits/model.py",),
        "embed": ("new method",),
    }


def test_methods_without_digests_are_explained_by_settings_and_files() -> None:
    row = MethodRow("digits", "default", "forward", 1, 0, 0, 0, 0.0, 0)
    before = ModelHistory(0, key={"torch": "2.13.0"}, rows=(row,))
    assert explained(before, before, "digits/model.py") == ("digits/model.py",)
    assert explained(before, ModelHistory(0, key={"torch": "2.14.0"}, rows=(row,))) == ("torch 2.13.0 → 2.14.0",)


def test_the_weightiest_component_comes_first() -> None:
    data = {"old": stored(clamp(6.0)), "new": stored(clamp(1.0))}
    old = record("1", form=sha256_bytes(data["old"]), names="1", examples="1", weight="1", bias="1")
    new = record("2", form=sha256_bytes(data["new"]), names="2", examples="2", weight="2", bias="1")
    key = {**KEY, "torch": "2.14.0", "check": 1}
    assert explained(build_of(forward=old), build_of(key, forward=new), "digits/model.py", **data) == (
        "check 0 → 1",
        "torch 2.13.0 → 2.14.0",
        "aten.clamp max 6.0 → 1.0 (net.py:5)",
        "weights: 1 of 2 tensors",
        "example inputs",
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (record(weight="9", bias="2"), "weights only: 1 of 2 tensors"),
        (record(examples="other"), "example inputs"),
        (record(names="other"), "names only: modules or sizes"),
        (record("other"), "the exported graph"),
    ],
)
def test_one_component_alone(after: MethodRecord, expected: str) -> None:
    assert explained(build_of(), build_of(forward=after), "digits/model.py") == (expected,)


def test_a_renamed_parameter_is_named() -> None:
    class Other(Net):
        def forward(self, image: torch.Tensor) -> Any:
            return super().forward(image)

    data = {"old": stored(clamp(6.0)), "new": stored(Other(lambda net, y: y.clamp(max=6.0)))}
    old, new = (record(names=name, form=sha256_bytes(each)) for name, each in data.items())
    assert explained(build_of(forward=old), build_of(forward=new), **data) == ("names only: x → image",)


def test_a_damaged_form_is_not_read() -> None:
    data = stored(clamp(6.0))
    old, new = record("1", form="0" * 64), record("2", form=sha256_bytes(data))
    found = explain_methods(build_of(forward=old), build_of(forward=new), [], lambda digest: data)
    assert found == {"forward": ("the exported graph",)}


def history(name: str = "digits") -> BuildHistory:
    row = MethodRow(name, "default", "forward", 9, 8, 1, 1000, 0.5, 1, level=3)
    model = ModelHistory(
        3, ("digits/model.py",), (), {"forward": ("digits/model.py",)}, {"forward": record()}, KEY, (row,)
    )
    return BuildHistory(name, "1.0", {name: model})


def test_a_build_is_remembered_by_its_project(tmp_path: Path) -> None:
    write_history(tmp_path / "v1", tmp_path / "a", history("a"))
    write_history(tmp_path / "v1", tmp_path / "b", history("b"))
    assert read_history(tmp_path / "v1", tmp_path / "a") == history("a")
    assert read_history(tmp_path / "v1", tmp_path / "b") == history("b")
    assert read_history(tmp_path / "v1", tmp_path / "c") is None
    write_history(tmp_path / "v1", tmp_path / "a", history("c"))
    assert read_history(tmp_path / "v1", tmp_path / "a") == history("c")
    assert len(list((tmp_path / "v1" / "history").iterdir())) == 2


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":0,"build":{}}', b'{"schema":1,"build":{"name":1}}'])
def test_a_history_that_cannot_be_read_is_none(tmp_path: Path, data: bytes) -> None:
    write_history(tmp_path, tmp_path, history())
    history_path(tmp_path, tmp_path).write_bytes(data)
    assert read_history(tmp_path, tmp_path) is None


def test_a_history_that_cannot_be_written_is_left(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("in the way")
    write_history(tmp_path / "v1", tmp_path, history())
    assert read_history(tmp_path / "v1", tmp_path) is None


def recorded(folder: Path, level: int, before: BuildHistory | None) -> tuple[str, BuildHistory | None]:
    """Return the note of a build with an answer of a level, and the last build afterwards."""
    settings, store = Settings(folder, "digits", "1.0", (), ()), Store(folder / "v1", "on", print)
    context = build_context(settings, ProjectView("", "", (), (), (), ()), folder, store, NullReporter())
    row = MethodRow("digits", "default", "forward", 9, 8, 1, 1000, 0.5, 0, level=level)
    report = ModelReport("digits", ModelEntry((), None, None, {}), (), (row,), methods={"forward": record()}, key=KEY)
    known = {"digits": LookupResult({}, context.store, None)}
    found = record_results(context, known, [Answer(report)], before)
    return found["digits"].rows[0].note, last_build(context)


def test_a_build_is_compared_with_the_last_build_before_its_exports(tmp_path: Path) -> None:
    write_history(tmp_path / "v1", tmp_path, history())  # of another build of the project, meanwhile
    assert recorded(tmp_path, 0, None)[0] == FIRST_BUILD


def test_a_build_that_waited_for_another_one_has_no_reasons_and_is_no_last_build(tmp_path: Path) -> None:
    note, last = recorded(tmp_path, 1, None)
    assert (note, last is not None and last.models["digits"].level) == ("", 1)
    write_history(tmp_path / "v1", tmp_path, history())  # of the build that exported
    assert recorded(tmp_path, 1, None) == ("", history())


def test_few_projects_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.driver.explain.MOST_FILES", 3)
    for number in range(5):
        write_history(tmp_path, tmp_path / str(number), history(str(number)))
    kept = [number for number in range(5) if read_history(tmp_path, tmp_path / str(number))]
    assert kept == [2, 3, 4]


def test_the_key_of_a_history_names_no_path(tmp_path: Path) -> None:
    write_history(tmp_path, tmp_path / "secret-name", history())
    assert b"secret-name" not in history_path(tmp_path, tmp_path / "secret-name").read_bytes()
    assert "secret-name" not in history_path(tmp_path, tmp_path / "secret-name").name


def shown(last: Any, following: dict[str, Any], cache: str = "on", environment: str = "this") -> str:
    report = {"name": "digits", "version": "1.0", "root": "/project", "cache": cache, "last": last, "next": following}
    report["environment"] = environment
    return "\n".join(explain_lines(report))


def next_of(*, unchanged: bool = False, **lines: list[str]) -> dict[str, Any]:
    return {"unchanged": unchanged, "changes": [], "settings": [], "unknown": [], **lines}


def test_explain_before_anything_was_built() -> None:
    assert shown(None, {"digits": next_of()}) == (
        "digits 1.0 in /project\n\nlast build: unknown\n\nnext build\n  digits: will be exported for the first time"
    )


def test_the_summary_names_several_reasons_and_says_how_many_more_there_are() -> None:
    """A build that failed is no last build: its changes and those after it are told together."""
    changed = ["recipe default, backend aoti added", "recipe default: rtol 0.0001 → 0.001"]
    assert summary_note(changed) == "recipe default, backend aoti added; recipe default: rtol 0.0001 → 0.001"
    assert summary_note([*changed, "a", "b", "c"]).endswith("→ 0.001; a; 2 more, see `hatch-lower explain`")
    assert summary_note([]) == ""


def test_explain_without_a_cache() -> None:
    assert shown(None, {"digits": next_of()}, "off").endswith("\n\nnext build: everything, for the cache is off")


def test_explain_says_all_reasons() -> None:
    rows = tuple(
        MethodRow("digits", recipe, method, 9, 8, 4, 1000, seconds, reused, level=level)
        for method, recipe, reused, seconds, level in [
            ("forward", "default", 3, 2.1, 0),
            ("forward", "portable", 0, 0.2, 3),
            ("embed", "default", 4, 0.1, 3),
        ]
    )
    lines = ("torch 2.13.0 → 2.14.0",)
    reasons = {"forward": (*lines, "aten.clamp max 6.0 → 1.0 (digits/model.py:31)", "example inputs"), "embed": lines}
    last = BuildHistory(
        "digits",
        "1.0",
        {
            "digits": ModelHistory(0, (), ("a connection to example.org",), reasons, rows=rows),
            "tiny": ModelHistory(1, rows=(MethodRow("tiny", "default", "forward", 1, 1, 1, 10, 0.0, 1, level=1),)),
        },
    )
    following = {
        "digits": next_of(changes=["digits/model.py", "input weights/digits.safetensors"]),
        "tiny": next_of(unchanged=True),
        "lost": next_of(unknown=["a connection to example.org"]),
    }
    assert shown(last_report(last, ["digits", "tiny", "lost"]), following) == (
        "digits 1.0 in /project\n"
        "\n"
        "last build\n"
        "  digits: lowered\n"
        "    all methods: torch 2.13.0 → 2.14.0\n"
        "    forward:\n"
        "      aten.clamp max 6.0 → 1.0 (digits/model.py:31)\n"
        "      example inputs\n"
        "    not known completely: a connection to example.org\n"
        "    method   recipe    partitions  reused  seconds\n"
        "    forward  default            4       3     2.10  lowered\n"
        "    forward  portable           4       0     0.20  exported, no partition had to be lowered\n"
        "    embed    default            4       4     0.10  exported, no partition had to be lowered\n"
        "  tiny: unchanged, not exported\n"
        "    method   recipe   partitions  reused  seconds\n"
        "    forward  default           1       1     0.00\n"
        "\n"
        "next build\n"
        "  digits: will be exported again, for 2 reasons\n"
        "    digits/model.py\n"
        "    input weights/digits.safetensors\n"
        "  tiny: unchanged, will not be exported\n"
        "  lost: will be exported again, for 1 reason\n"
        "    a connection to example.org"
    )


def test_explain_of_a_result_that_was_trimmed() -> None:
    last = last_report(BuildHistory("digits", "1.0", {"digits": ModelHistory(1)}), ["digits"])
    expected = "  digits: will be exported, because the cache has no result"
    assert shown(last, {"digits": next_of()}).endswith(f"next build\n{expected}")


def test_the_packages_of_the_last_build_are_compared_while_they_are_there(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    settings = Settings(tmp_path, "digits", "1", (), ())
    view = ProjectView("", "", (), (), (), ())
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache")}, lambda line: None)
    here = build_context(settings, view, tmp_path, store, NullReporter())
    last = replace(history(), path=(str(site),))
    found, environment = in_last_environment(here, last)
    assert (found.search_path, environment) == ((site, tmp_path), "last build")
    site.rmdir()
    assert in_last_environment(here, last) == (here, "gone")
    assert in_last_environment(here, history()) == (here, "this")
    assert in_last_environment(here, None) == (here, "this")
    assert places_of_path()
    assert set(places_of_path()) <= set(sys.path)


def test_explain_gives_no_verdict_without_the_environment_of_the_last_build() -> None:
    last = last_report(replace(history(), path=("/gone",)), ["digits"])
    lines = shown(last, {"digits": next_of(changes=["numpy 2.1 is no longer installed"])}, environment="gone")
    assert lines.endswith(
        "next build\n  digits: not known, for the environment of the last build is gone;"
        " seen from the environment of this command: numpy 2.1 is no longer installed"
    )
    lines = shown(last, {"digits": next_of()}, environment="gone")
    assert lines.endswith("is gone; build, or run this command in the environment that builds")
    assert shown(last, {"digits": next_of(unchanged=True)}, environment="gone").endswith("will not be exported")


@pytest.mark.parametrize(
    ("text", "named", "counts"),
    [
        ("[hatch_lower.backends]\nmine = a:B\n", {"mine"}, True),
        ("[hatch_lower.delegates]\nmine = a:B\n[other]\nx = y:z\n", {"mine", "aoti"}, True),
        ("[hatch_lower.backends]\nmine = a:B\n", {"aoti"}, False),
        ("[hatch_lower.backends]\nmine = a:B\n", set(), False),
        ("[hatch_lower.backends]\nMine = a:B\n", {"mine"}, False),
        ("[other]\nmine = a:B\n[hatch_lower.backends]\n", {"mine"}, False),
        ("[hatch_lower.backends\nmine", {"aoti"}, True),
    ],
)
def test_only_the_distributions_of_named_backends_are_in_a_key(
    tmp_path: Path, text: str, named: set[str], counts: bool
) -> None:
    information = tmp_path / "mine-1.0.dist-info"
    information.mkdir()
    (information / "entry_points.txt").write_text(text)
    found = backend_distributions([Distribution("mine", "1.0", str(tmp_path), str(information))], named)
    assert [name for name, *_ in found] == (["mine"] if counts else [])
