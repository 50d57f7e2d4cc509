"""Level 2: an export whose graphs are known is not lowered again, and its debug map is none the staler for it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import TagBy, Versioned
from support.exports import BRANCHING, SOURCE, Workshop, files_of, key_of, settings_of
from torch.export import ExportedProgram

from hatch_lower.cache.key import ExportKey
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError, CacheError, ProgramError, SampleError, VerificationError
from hatch_lower.events import NullReporter
from hatch_lower.exir.backend.partitioner import PartitionResult
from hatch_lower.format.debug_map import read_debug
from hatch_lower.format.record import ModelReport, VerifiedMethod
from hatch_lower.model import Method, Model
from hatch_lower.pipeline import verify
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.emit.constants import constants_bytes

pytestmark = pytest.mark.torch

REFERENCE = Recipe("default", (BackendChoice("reference"),))
ONE = settings_of(REFERENCE)  # where recipes are not the subject
LOWERING = {"decompose", "compile", "package", "compare"}


@pytest.fixture(scope="module")
def base(plain: CapturedModel, tmp_path_factory: pytest.TempPathFactory) -> ExportKey:
    """The key of the unchanged source, which two exports in two folders share."""
    first, second = key_of(plain), key_of(Workshop(tmp_path_factory.mktemp("shop")).capture())
    assert first == second
    return first


@pytest.fixture(scope="module")
def branching(tmp_path_factory: pytest.TempPathFactory) -> ExportKey:
    """The key of the source with control flow."""
    return key_of(Workshop(tmp_path_factory.mktemp("shop")).capture(BRANCHING))


def uncached(
    shop: Workshop, source: CapturedModel, monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None
) -> ModelReport:
    with monkeypatch.context() as patch:
        patch.setenv("HATCH_LOWER_CACHE", "off")
        report, events = shop.build(source, settings)
    assert events.stages() >= LOWERING
    return report


def lines_of(report: ModelReport) -> set[int]:
    debug = read_debug(files_of(report)["net/default.debug.json"], "debug")
    sources = {origin.source for method in debug.methods.values() for origin in method.handles.values()}
    return {int(source.removeprefix("net.py:")) for source in sources if source}


def test_a_comment_moves_the_lines_in_the_debug_map_and_nothing_is_lowered(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, events = shop.build(shop.capture(BRANCHING))
    assert events.stages() >= LOWERING
    assert events.notes() == []
    moved = shop.capture(BRANCHING, {"class Block": "# A comment\n# on two lines.\nclass Block"})
    second, events = shop.build(moved)
    assert events.stages() == {"lookup"}
    assert lines_of(second) == {line + 2 for line in lines_of(first)}
    fresh = uncached(shop, moved, monkeypatch)
    assert files_of(second) == files_of(fresh)
    assert second.manifest == fresh.manifest
    assert {replace(file, source=Path()) for file in second.files} == {
        replace(file, source=Path()) for file in fresh.files
    }
    assert [row.level for row in first.rows] == [0, 0, 3, 3], "a portable recipe has nothing to lower"
    assert [row.level for row in second.rows] == [2] * 4
    assert [replace(row, level=0, seconds=0, reused=0) for row in second.rows] == [
        replace(row, level=0, seconds=0, reused=0) for row in fresh.rows
    ]


def test_other_real_inputs_verify_again_and_lower_no_partition_again(shop: Workshop, plain: CapturedModel) -> None:
    model = replace(ONE.models[0], verify_inputs="samples.safetensors")
    settings = replace(ONE, root=shop.folder, models=(model,))
    file = shop.folder / "samples.safetensors"

    def build(value: float, settings: Settings = settings) -> tuple[ModelReport, set[str]]:
        file.write_bytes(constants_bytes({"embed/0/image": torch.full((3, 4), value)}))
        report, events = shop.build(plain, settings)
        return report, events.stages()

    first, stages = build(1.0)
    assert stages >= {*LOWERING, "inputs"}
    assert build(1.0)[1] == {"inputs", "lookup"}
    second, stages = build(2.0)
    assert "compare" in stages
    assert [row.level for row in second.rows] == [3, 3]
    assert files_of(second) == files_of(first)
    assert build(2.0, ONE)[1] >= {"compare"}, "what was verified without them is another result"
    (embed,) = [each for each in second.verified if each.method == "embed"]
    assert embed.compared == "example inputs, equal numbers, random inputs, zeros, 1 real input of samples.safetensors"
    assert build(2.0)[0].verified == second.verified, "the record is kept with the result"


def test_real_inputs_that_nothing_compares_are_not_read_and_it_is_said(shop: Workshop, plain: CapturedModel) -> None:
    settings = settings_of(replace(REFERENCE, verify=False), check=False)
    model = replace(settings.models[0], verify_inputs="samples.safetensors")
    _, events = shop.build(plain, replace(settings, models=(model,)))
    assert "`verify-inputs` are not used: `verify` is false for every recipe of the model" in events.notes()


def test_a_model_in_training_mode_is_noted(shop: Workshop) -> None:
    declared = Model(torch.nn.BatchNorm1d(4), {"forward": Method((torch.ones(3, 4),))})
    _, events = shop.build(capture_model(settings_of().models[0].name, declared, NullReporter()))
    assert any("the module is in training mode" in note for note in events.notes())


def test_a_real_input_that_eager_refuses_costs_no_partition(shop: Workshop) -> None:
    guarded = shop.capture(
        edits={
            "return self.block(image).sum(1)": "if not torch.compiler.is_exporting() and bool((image > 5).any()):\n"
            "            raise ValueError('too bright')\n        return self.block(image).sum(1)"
        }
    )
    model = replace(ONE.models[0], verify_inputs="samples.safetensors")
    file = shop.folder / "samples.safetensors"
    file.write_bytes(constants_bytes({"embed/0/image": torch.full((3, 4), 9.0)}))
    with pytest.raises(SampleError, match="the eager module cannot run a real input"):
        shop.build(guarded, replace(ONE, root=shop.folder, models=(model,)))
    assert not list(shop.folder.rglob("suspects.json"))
    assert [row.level for row in shop.build(guarded, ONE)[0].rows] == [3, 3]


def test_lines_that_move_apart_are_told_apart(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    one_line = {
        "        hidden = torch.clamp(self.block(image) * scale, 0, 600)\n": "        hidden = self.block(image)"
        " * scale; hidden = torch.clamp(hidden, 0, 600)\n"
    }
    shop.build(shop.capture(edits=one_line), ONE)
    moved = shop.capture(
        edits={
            "        hidden = torch.clamp(self.block(image) * scale, 0, 600)\n": "        hidden = self.block(image)\n"
            "        hidden = hidden * scale\n\n        hidden = torch.clamp(hidden, 0, 600)\n"
        }
    )
    second, events = shop.build(moved, ONE)
    assert events.stages() == {"lookup"}
    assert files_of(second) == files_of(uncached(shop, moved, monkeypatch, ONE))


@pytest.mark.parametrize(
    "edits",
    [
        {"hidden.sum() > 0": "(hidden).sum() > 0"},
        {"h * 2": "(h * 2)"},
        {"lambda h: h - 1": "lambda other: other - 1"},
    ],
    ids=["parentheses", "more parentheses", "a local variable"],
)
def test_how_a_branch_is_written_does_not_show(shop: Workshop, branching: ExportKey, edits: dict[str, str]) -> None:
    assert key_of(shop.capture(BRANCHING, edits)) == branching


@pytest.mark.parametrize(
    "edits",
    [
        {"    torch.manual_seed(3)": "    import json\n    torch.manual_seed(3)"},
        {'torch.tensor([1.0, 2.0, 3.0, 4.0]), "count"': 'torch.tensor([1, 2, 3, 4.0]), "count"'},
    ],
    ids=["an import", "another way to write a constant"],
)
def test_what_does_not_show_in_the_export_is_a_hit(shop: Workshop, base: ExportKey, edits: dict[str, str]) -> None:
    assert key_of(shop.capture(edits=edits)) == base


def test_renamed_nodes_are_a_hit(shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.build(plain, ONE)
    renamed = shop.capture()
    for method in renamed.methods:
        program = method.program
        names = {}
        for number, node in enumerate(program.graph.nodes):
            if node.op == "call_function":
                names[node.name] = f"renamed_{number}"
                node.name = f"renamed_{number}"
        outputs = program.graph_signature.output_specs
        for spec in outputs:
            name = getattr(spec.arg, "name", None)
            if name in names:
                spec.arg = replace(spec.arg, name=names[name])
    second, events = shop.build(renamed, ONE)
    assert events.stages() == {"lookup"}
    assert files_of(second) == files_of(uncached(shop, renamed, monkeypatch, ONE))


MISSES: dict[str, dict[str, str]] = {
    "a literal": {"0, 600)": "0, 601)"},
    "an operator": {"torch.relu(": "torch.nn.functional.gelu("},
    "the order of operands": {"hidden + self.table": "self.table + hidden"},
    "weights": {"torch.manual_seed(3)": "torch.manual_seed(4)"},
    "a constant in the code": {"[1.0, 2.0, 3.0, 4.0]": "[1.0, 2.0, 3.0, 5.0]"},
    "a plain attribute": {"torch.arange(4.0)": "torch.arange(1.0, 5.0)"},
    "a buffer that becomes a parameter": {
        'self.register_buffer("count", torch.zeros(()))': "self.count = torch.nn.Parameter(torch.zeros(()))"
        ".requires_grad_(False)"
    },
    "the values of an example input": {"torch.linspace(0, 1, 12)": "torch.linspace(0, 2, 12)"},
    "the sizes of an example input": {
        "torch.linspace(0, 1, 12).reshape(3, 4)": "torch.linspace(0, 1, 16).reshape(4, 4)"
    },
    "the strides of an example input": {"reshape(3, 4)": "reshape(4, 3).t()"},
    "the dtype": {
        "Net().eval()": "Net().double().eval()",
        "torch.linspace(0, 1, 12)": "torch.linspace(0, 1, 12).double()",
    },
    "a literal among the example inputs": {'{"scale": 2.0}': '{"scale": 3.0}'},
    "the name of a positional parameter": {
        "def embed(self, image):\n        return self.block(image)": "def embed(self, picture):\n"
        "        return self.block(picture)"
    },
    "the name of a keyword parameter": {
        "*, scale=2.0": "*, factor=2.0",
        "self.block(image) * scale": "self.block(image) * factor",
        '{"scale": 2.0}': '{"factor": 2.0}',
        '"scale": None': '"factor": None',
    },
    "the name of a dimension": {'Dim("rows"': 'Dim("lines"'},
    "the range of a dimension": {"max=64": "max=65"},
    "no dynamic dimension": {'{"image": {0: rows}, "scale": None}': "None"},
    "the name of a method": {'"embed": Method': '"encode": Method', "(images,))})": '(images,), attribute="embed")})'},
    "the order of methods": {
        '{"forward": forward, "embed": Method((images,))}': '{"embed": Method((images,)), "forward": forward}'
    },
    "a method less": {', "embed": Method((images,))': ""},
    "a key of the result": {'{"out": hidden': '{"result": hidden'},
    "the container of the result": {"self.block(image).sum(1)": "[self.block(image).sum(1)]"},
    "the path of a module": {
        "self.block = Block()": "self.stage = Block()",
        "self.block(image) * scale": "self.stage(image) * scale",
        "self.block(image).sum": "self.stage(image).sum",
    },
    "the class of a module": {"class Block(": "class Stage(", "self.block = Block()": "self.block = Stage()"},
    "a tie": {
        'self.register_buffer("count", torch.zeros(()))': "self.count = torch.nn.Buffer(torch.zeros(()))\n"
        "        self.block.linear.bias.data = self.block.linear.weight.data[0]"
    },
    "persistence": {'"count", torch.zeros(()))': '"count", torch.zeros(()), persistent=False)'},
    "what eager computes": {"return torch.relu(": "return (1 if torch.compiler.is_exporting() else 2) * torch.relu("},
}


@pytest.mark.parametrize("change", MISSES)
def test_a_change_of_the_export_is_a_miss(shop: Workshop, base: ExportKey, change: str) -> None:
    assert key_of(shop.capture(edits=MISSES[change])).digest() != base.digest()


@pytest.mark.parametrize(
    "edits",
    [{"lambda h: h * 2": "lambda h: h * 2.0"}, {"lambda h: h - 1": "lambda h: h - 2"}],
    ids=["the type of a literal", "a literal"],
)
def test_a_change_of_a_branch_is_a_miss(shop: Workshop, branching: ExportKey, edits: dict[str, str]) -> None:
    assert key_of(shop.capture(BRANCHING, edits)).digest() != branching.digest()


SETTINGS = {
    "a tolerance": settings_of(replace(REFERENCE, rtol=1e-3), Recipe("portable")),
    "another tolerance": settings_of(replace(REFERENCE, atol=1e-3), Recipe("portable")),
    "whether a recipe is verified": settings_of(replace(REFERENCE, verify=False), Recipe("portable")),
    "a backend": settings_of(replace(REFERENCE, backends=()), Recipe("portable")),
    "an option": settings_of(
        replace(REFERENCE, backends=(BackendChoice("reference", {"ops": ["aten.relu.default"]}),)), Recipe("portable")
    ),
    "the name of a recipe": settings_of(REFERENCE, Recipe("plain")),
    "a recipe more": settings_of(REFERENCE, Recipe("portable"), Recipe("more")),
    "the order of recipes": settings_of(order=("portable", "default")),
    "the name of the model": settings_of(name="other"),
    "check data": settings_of(check=False),
}


@pytest.mark.parametrize("change", SETTINGS)
def test_a_change_of_the_settings_is_a_miss(plain: CapturedModel, base: ExportKey, change: str) -> None:
    assert key_of(plain, SETTINGS[change]).digest() != base.digest()


def test_a_stored_file_that_is_damaged_is_a_miss(shop: Workshop, plain: CapturedModel, tmp_path: Path) -> None:
    report, _ = shop.build(plain, ONE)
    plan = next(file for file in report.files if file.path == "net/default.json")
    (blob,) = (tmp_path / "cache").rglob(plan.sha256)
    blob.write_bytes(blob.read_bytes()[:-1] + b" ")
    again, events = shop.build(plain, ONE)
    assert events.stages() >= LOWERING - {"compare"}, "its record says that the very same was verified"
    assert any("damaged" in note for note in events.notes())
    assert files_of(again) == files_of(report)


def test_no_look_up(shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = shop.build(plain, ONE)
    for mode in ("refresh", "off"):
        monkeypatch.setenv("HATCH_LOWER_CACHE", mode)
        again, events = shop.build(plain, ONE)
        assert events.stages() >= LOWERING, mode
        assert files_of(again) == files_of(report), mode


def test_a_look_up_that_writes_nothing(
    shop: Workshop, plain: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = shop.build(plain, ONE)
    entries = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    moved = shop.capture(edits={"class Block": "# moved\nclass Block"})
    for mode in ("read-only", "frozen"):
        monkeypatch.setenv("HATCH_LOWER_CACHE", mode)
        again, events = shop.build(moved, ONE)
        assert events.stages() == {"lookup"}, mode
        assert files_of(again).keys() == files_of(report).keys(), mode
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == entries, mode


def test_a_frozen_cache_lets_no_changed_program_through(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = settings_of(Recipe("portable"))
    shop.build(plain, portable)
    monkeypatch.setenv("HATCH_LOWER_CACHE", "frozen")
    assert shop.build(plain, portable)[1].stages() == {"lookup"}
    for edit in ({"manual_seed(3)": "manual_seed(4)"}, {"0, 600)": "0, 601)"}):  # weights, the graph
        with pytest.raises(CacheError, match="the cache is frozen") as caught:
            shop.build(shop.capture(edits=edit), portable)
        assert (caught.value.where, caught.value.found[:9]) == ("model `net`", "no result")


def test_operators_that_are_composed_in_python_are_lowered_each_time(shop: Workshop) -> None:
    with torch.library._scoped_library("hatch_lower_reuse", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        source = shop.capture(edits={"torch.relu(self.linear(x))": "torch.ops.hatch_lower_reuse.twice(self.linear(x))"})
        for _ in range(2):
            report, events = shop.build(source, settings_of(Recipe("portable")))
            assert events.stages() >= LOWERING - {"compile"}
            assert report.methods == {}
        (note,) = events.notes()
    assert re.search(
        r"only partitions are looked up in the cache: .*twice.* has a decomposition in code of its own", note
    )


def test_the_stored_form_of_a_method_has_its_source_lines(shop: Workshop, plain: CapturedModel) -> None:
    from hatch_lower.cache.store import open_store
    from hatch_lower.driver.diff.forms import read_form

    report, _ = shop.build(plain)
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(shop.folder / "cache")}, pytest.fail)
    data = store.read_blob(report.methods["embed"].form)
    assert data is not None
    form = read_form(data)
    assert form is not None
    line = SOURCE.splitlines().index("        return self.block(image).sum(1)") + 1
    operator = next(at for at, row in enumerate(form.graph) if "aten::sum" in str(row[1]))
    assert form.sources[operator] == f"net.py:{line}"
    assert "block.linear.weight" in form.names
    assert "image" in form.names


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (ProgramError("the plan is damaged", found="no `methods`"), "the plan is damaged: no `methods`"),
    ],
    ids=["an exit", "a plan that cannot be read back"],
)
def test_what_cannot_be_loaded_does_not_verify(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch, error: BaseException, found: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(verify, "load_written", fail)
    with pytest.raises(VerificationError, match="the lowered program cannot be loaded") as caught:
        shop.build(plain, ONE)
    assert caught.value.found == found


def test_memory_that_runs_out_while_a_program_is_loaded_is_no_fault_of_the_program(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(verify, "load_written", fail)
    with pytest.raises(MemoryError):
        shop.build(plain, ONE)


def test_a_backend_that_has_changed_lowers_again(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(Recipe("default", (BackendChoice("Versioned"),), verify=False))
    report, _ = shop.build(plain, settings)
    assert [row.level for row in report.rows] == [0, 0]
    again, events = shop.build(plain, settings)
    assert events.stages() == {"lookup"}
    assert files_of(again) == files_of(report)
    monkeypatch.setattr(Versioned, "library", "2.0")
    third, events = shop.build(plain, settings)
    assert events.stages() >= LOWERING - {"compare"}
    assert files_of(third) != files_of(report)
    monkeypatch.setattr(Versioned, "library", "broken")
    with pytest.raises(BackendError, match="the library is broken"):
        shop.build(plain, settings)
    monkeypatch.setattr(Versioned, "library", "2.0")
    other = replace(settings, recipes=(replace(settings.recipes[0], rtol=0.5),))
    fourth, events = shop.build(plain, other)
    assert events.stages() >= LOWERING - {"compare"}
    assert [row.level for row in fourth.rows] == [3, 3], "the partitions are known"
    assert files_of(fourth) == files_of(third)


def test_a_reason_that_names_a_source_line_would_be_stale(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Telling(TagBy):
        def partition(self, exported_program: ExportedProgram) -> PartitionResult:
            result = super().partition(exported_program)
            return replace(result, reasons={node.name: "see net.py:9" for node in exported_program.graph.nodes})

    taken = classmethod(lambda cls, options: Telling(lambda node: None, "Versioned"))
    monkeypatch.setattr(Versioned, "partitioner", taken)
    settings = settings_of(Recipe("default", (BackendChoice("Versioned"),), verify=False))
    for _ in range(2):
        _, events = shop.build(plain, settings)
        assert events.stages() >= LOWERING - {"compare"}
        (note,) = events.notes()
        assert note.startswith("the model is not kept in the cache as a whole: a backend's reason names a source line:")


class Verdicts:
    """Stands for the comparison with eager: each entry is one verdict."""

    def __init__(self, *agree: bool) -> None:
        self.left = list(agree)

    def __call__(self, *arguments: Any, **options: Any) -> list[VerifiedMethod]:
        if not self.left.pop(0):
            raise VerificationError("it computes something else")
        return []


def test_what_does_not_verify_is_kept_and_verified_again(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "verify_here", Verdicts(False, True))
    with pytest.raises(VerificationError):
        shop.build(plain, settings_of(Recipe("default", (BackendChoice("reference"),))))
    looser = settings_of(Recipe("default", (BackendChoice("reference"),), rtol=1.0))
    report, events = shop.build(plain, looser)
    assert [row.level for row in report.rows] == [3, 3]
    assert events.notes() == []


def test_what_was_kept_and_does_not_verify_again_is_made_anew(
    shop: Workshop, plain: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(Recipe("default", (BackendChoice("reference"),)))
    verdicts = Verdicts(False, False, True)
    monkeypatch.setattr(verify, "verify_here", verdicts)
    with pytest.raises(VerificationError):
        shop.build(plain, settings)
    report, events = shop.build(plain, settings)
    assert [row.level for row in report.rows] == [0, 0]
    assert events.notes() == ["partitions from the cache are lowered again: it computes something else"]
    assert all(file.source.is_file() for file in report.files)
    assert verdicts.left == []
