"""The search of mixed precision, and the file `precision.toml` of its result."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from hatch_lower.cli import precision as precision_command
from hatch_lower.cli.precision import finding_text, searched_model, searched_recipe, write_kept
from hatch_lower.config.precision_file import PRECISION_FILE, Recipes, read_kept
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import CaptureError, ConfigError, PackageError, VerificationError
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedModel, capture_model
from hatch_lower.pipeline.model_build import BuildInputs
from hatch_lower.pipeline.precision.convert import Conversion
from hatch_lower.pipeline.precision.finding import LayerEffect, PrecisionFinding, PrecisionSearch
from hatch_lower.pipeline.precision.search import least_count, search_precision

METRIC = """
import torch

INPUTS = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
EXPECTED = []

def closeness(model):
    output = torch.as_tensor(model(INPUTS))
    if not EXPECTED:  # eager is measured first
        EXPECTED.append(output)
    return torch.nn.functional.cosine_similarity(output, EXPECTED[0]).min()

def agreement(model):
    output = torch.as_tensor(model(INPUTS))
    if not EXPECTED:
        EXPECTED.append(output)
    return (output == EXPECTED[0]).float().mean()

def hopeless(model):
    output = torch.as_tensor(model(INPUTS))
    if not EXPECTED:
        EXPECTED.append(output)
    return float(torch.equal(output, EXPECTED[0]))
"""


class Quiet:
    def report(self, event: object) -> None:
        pass


class Outliers(nn.Module):
    """Twelve layers; the activations between the fourth pair have a channel that dwarfs the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(torch.linalg.qr(layer.weight).Q)
            self.layers[6].weight[3] = 0
            self.layers[6].bias[3] = 2000
            self.layers[7].weight[:, 3] /= 1000

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Labels(Outliers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(1)


def captured(kind: type[Outliers] = Outliers) -> CapturedModel:
    torch.manual_seed(0)
    return capture_model("net", Model(kind().eval(), {"forward": Method((torch.randn(64, 32),))}), Quiet())


def inputs_of(root: Path, metric: str, source: CapturedModel | None = None) -> BuildInputs:
    model = ModelSettings("net", "net:export", "net", ("small",), metric=metric, max_drop=0.01)
    recipe = Recipe("small", (BackendChoice("onnxruntime"),), precision="int8")
    return BuildInputs(Settings(root, "net", "1", (model,), (recipe,)), model, source or captured())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / f"metric_{tmp_path.name}.py").write_text(METRIC)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.torch
def test_the_layer_with_outliers_alone_goes_back_to_float32(project: Path) -> None:
    pytest.importorskip("torchao")
    found = search_precision(inputs_of(project, f"metric_{project.name}:closeness"), Quiet(), PrecisionSearch("small"))
    assert found.kept == ("layers.7",)
    assert found.layers[0].path == "layers.7"
    assert found.layers[0].error < 0.1 < found.layers[1].error
    assert found.eager - dict(found.tried)[0] > 0.01 >= found.eager - found.metric


@pytest.mark.torch
def test_outputs_without_fractions_show_the_layer_with_outliers(project: Path) -> None:
    pytest.importorskip("torchao")
    inputs = inputs_of(project, f"metric_{project.name}:agreement", captured(Labels))
    inputs = replace(inputs, model=replace(inputs.model, max_drop=0.1))
    found = search_precision(inputs, Quiet(), PrecisionSearch("small"))
    assert found.layers[0].path == "layers.7"
    assert found.layers[0].error < 0.5 < found.layers[1].error
    assert "layers.7" in found.kept
    assert dict(found.tried)[0] < 0.5


@pytest.mark.torch
def test_a_metric_that_no_choice_of_layers_keeps_is_an_error_with_its_numbers(project: Path) -> None:
    pytest.importorskip("torchao")
    with pytest.raises(VerificationError, match="no choice of layers") as caught:
        search_precision(inputs_of(project, f"metric_{project.name}:hopeless"), Quiet(), PrecisionSearch("small"))
    assert "0 in float32: 0; 11 in float32: 0; eager 1" in caught.value.found


@pytest.mark.torch
def test_layers_that_the_precision_leaves_alone_are_no_choice(project: Path) -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(8, 32))  # two weights of few elements
    source = capture_model("net", Model(net.eval(), {"forward": Method((torch.randn(64, 32),))}), Quiet())
    inputs = inputs_of(project, f"metric_{project.name}:hopeless", source)
    recipe = replace(inputs.recipes[0], precision="int8-weights")
    inputs = replace(inputs, settings=replace(inputs.settings, recipes=(recipe,)))
    with pytest.raises(VerificationError, match="no choice of layers") as caught:
        search_precision(inputs, Quiet(), PrecisionSearch("small"))
    assert caught.value.found.startswith("0 in float32: 0; eager 1")


@pytest.mark.torch
def test_a_module_that_the_model_lacks_is_refused_with_the_nearest_name() -> None:
    model = ModelSettings("net", "net:export", "net", ("small",))
    with pytest.raises(CaptureError, match="names a module that the model lacks") as caught:
        Conversion(captured(), model, {}).converted(Recipe("small", precision="bfloat16"), ("layers.77",))
    assert "did you mean `layers.7`? known: `layers.0`" in caught.value.found
    assert caught.value.hint == "search again: `hatch-lower precision net --recipe small --write`"


@pytest.mark.torch
def test_an_error_for_layers_that_all_stay_in_float32_names_the_list() -> None:
    model = ModelSettings("net", "net:export", "net", ("small",))
    kept = tuple(f"layers.{i}" for i in range(12))
    pytest.importorskip("torchao")
    with pytest.raises(CaptureError, match="changes no operation") as caught:
        Conversion(captured(), model, {}).converted(Recipe("small", precision="int8-weights"), kept)
    assert caught.value.hint == (
        "`precision.toml` keeps all layers in float32: remove modules from the list of this recipe"
    )


@pytest.mark.parametrize(("needed", "most"), [(1, 1), (1, 20), (7, 20), (20, 20)])
def test_bisection_finds_the_least_number(needed: int, most: int) -> None:
    assert least_count(most, lambda count: count >= needed) == needed


def test_bisection_without_a_number_that_holds_finds_none() -> None:
    assert least_count(20, lambda count: False) == 0
    assert least_count(0, lambda count: True) == 0


KNOWN: dict[str, Recipes] = {"net": {"default": "float32", "half": "bfloat16", "int8": "int8"}}


def finding(*kept: str) -> PrecisionFinding:
    layers = tuple(LayerEffect(path, 0.5) for path in kept)
    return PrecisionFinding("net", "int8", "int8", 1.0, 0.01, layers, kept, ((len(kept), 0.995),))


def test_the_written_list_is_read_and_other_entries_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / PRECISION_FILE
    path.write_text('# ours\n[net.half]\nfloat32 = ["head"]  # why\n')
    assert write_kept(path, finding("layers.1", "layers.0"))
    assert "# ours" in path.read_text()
    assert "# why" in path.read_text()
    assert read_kept(tmp_path, KNOWN) == {"net": {"half": ("head",), "int8": ("layers.0", "layers.1")}}
    assert write_kept(path, finding())
    assert not write_kept(path, finding())
    assert read_kept(tmp_path, KNOWN) == {"net": {"half": ("head",)}}
    assert [each.name for each in tmp_path.iterdir()] == [PRECISION_FILE]


def test_a_written_list_keeps_a_link_and_the_line_ends_of_windows(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    target, path = tmp_path / "shared" / "layers.toml", tmp_path / PRECISION_FILE
    target.write_bytes(b'[net.half]\r\nfloat32 = ["head"]\r\n')
    path.symlink_to(target)
    write_kept(path, finding("layers.0"))
    assert path.is_symlink()
    assert b"layers.0" in target.read_bytes()
    assert b"\n" not in target.read_bytes().replace(b"\r\n", b"")


@pytest.mark.parametrize("text", [None, "", "# ours\n", '[net.half]\nfloat32 = ["head"]\n', "net.int8.float32 = ['x']"])
def test_a_list_that_is_there_already_leaves_the_file_as_it_is(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / PRECISION_FILE
    if text is not None:
        path.write_text(text)
    assert write_kept(path, finding("layers.1", "head"))
    written = path.read_bytes()
    assert not write_kept(path, finding("head", "layers.1"))
    assert path.read_bytes() == written


def test_a_form_that_cannot_be_edited_is_refused_with_the_entry_to_write(tmp_path: Path) -> None:
    path = tmp_path / PRECISION_FILE
    text = 'net.half.float32 = ["head"]\nother.int8.float32 = ["body"]\n'
    path.write_text(text)
    with pytest.raises(ConfigError, match="the file has a form that cannot be edited") as error:
        write_kept(path, finding("head"))
    assert error.value.hint == 'write `[net.int8]` with `float32 = ["head"]`'
    assert path.read_text() == text


def test_a_file_that_is_damaged_during_the_search_is_refused_with_the_entry_to_write(tmp_path: Path) -> None:
    path = tmp_path / PRECISION_FILE
    path.write_text("[net")
    with pytest.raises(ConfigError, match="the file is no TOML") as error:
        write_kept(path, finding("head"))
    assert error.value.hint == 'write `[net.int8]` with `float32 = ["head"]`'


def test_a_read_only_folder_is_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomlkit")
    project = SimpleNamespace(settings=SimpleNamespace(root=tmp_path))
    monkeypatch.setattr(precision_command, "open_project", lambda root: project)
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(PackageError, match="the folder of a file to write is read-only") as error:
        CliRunner().invoke(precision_command.precision, ["--write"], catch_exceptions=False)
    assert error.value.where == str(tmp_path / PRECISION_FILE)


def test_no_empty_file_is_written_or_left(tmp_path: Path) -> None:
    path = tmp_path / PRECISION_FILE
    assert not write_kept(path, finding())
    assert not path.exists()
    write_kept(path, finding("head"))
    assert write_kept(path, finding())
    assert not path.exists()


@pytest.mark.parametrize(
    ("kept", "write", "changed", "last"),
    [
        ((), True, False, "nothing to write"),
        ((), True, True, "removed the list from precision.toml"),
        ((), False, False, "no layer needs float32: the drop of the metric is within `max-drop`, 0.01"),
        (("head",), False, False, "`--write` writes the list into precision.toml"),
        (("head",), True, True, "written into precision.toml"),
        (("head",), True, False, "precision.toml has this list already"),
    ],
)
def test_the_last_line_says_what_became_of_the_file(
    kept: tuple[str, ...], write: bool, changed: bool, last: str
) -> None:
    lines = list(finding_text(finding(*kept), write, changed))
    assert lines[0] == "net, recipe int8: metric 0.995, eager 1"
    assert lines[-1] == last


def test_a_single_layer_is_singular() -> None:
    assert "1 of 1 layer must stay in float32:" in finding_text(finding("head"), write=False, changed=False)


def searched(*recipes: Recipe, metric: str = "m:f", models: tuple[str, ...] = ("net",)) -> Settings:
    names = tuple(recipe.name for recipe in recipes)
    each = tuple(ModelSettings(name, "net:export", "net", names, metric=metric) for name in models)
    return Settings(Path("/project"), "net", "1", each, recipes)


DEFAULT, INT8, HALF = Recipe("default"), Recipe("int8", precision="int8"), Recipe("half", precision="bfloat16")


def test_the_only_model_and_the_only_recipe_with_a_precision_need_no_name() -> None:
    settings = searched(DEFAULT, INT8)
    assert searched_model(settings, None) == "net"
    assert searched_recipe(settings, "net", None) == "int8"
    assert searched_recipe(searched(INT8, HALF), "net", "half") == "half"


@pytest.mark.parametrize(
    ("recipes", "metric", "named", "text"),
    [
        ((DEFAULT, INT8), "m:f", "int9", "no recipe `int9`\n  where: model `net`\n  found: did you mean `int8`?"),
        ((DEFAULT, INT8), "m:f", "default", "`default` has no `precision`: all its layers are in float32"),
        ((DEFAULT,), "m:f", None, 'to do: write `precision = "int8"` in the table of a recipe'),
        ((INT8, HALF), "m:f", None, "to do: name a recipe: `hatch-lower precision net --recipe int8`"),
        ((INT8,), "", None, "needs a metric, which says whether a precision is good enough\n  where: model `net`"),
    ],
)
def test_a_search_without_recipe_or_metric_is_refused_before_an_export(
    recipes: tuple[Recipe, ...], metric: str, named: str | None, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        searched_recipe(searched(*recipes, metric=metric), "net", named)
    assert text in str(caught.value)


def test_a_model_to_search_is_one_of_the_projects() -> None:
    settings = searched(INT8, models=("net", "other"))
    with pytest.raises(ConfigError, match="several models") as several:
        searched_model(settings, None)
    assert several.value.hint == "name a model: `hatch-lower precision net`"
    with pytest.raises(ConfigError, match="no model `nett`") as unknown:
        searched_model(settings, "nett")
    assert "did you mean `net`" in unknown.value.found


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGTERM and SIGHUP as on POSIX")
def test_a_search_that_a_signal_ends_removes_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def search(context: object, model: str, wanted: PrecisionSearch) -> PrecisionFinding:
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler), "the signal would end the process at once"
        handler(signal.SIGTERM, None)
        raise AssertionError("the process goes on")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("hatch_lower.driver.context.build_context", lambda *_: None)
    monkeypatch.setattr("hatch_lower.driver.units.search_in_child", search)
    monkeypatch.setattr(precision_command, "open_here", lambda: None)
    project: Any = SimpleNamespace(settings=None, view=None)
    with pytest.raises(SystemExit):
        precision_command.finding_of(project, "net", PrecisionSearch("int8"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[net", "the file is no TOML: Expected"),
        ("a = " + "[" * 5000, "the file is no TOML: maximum recursion depth exceeded"),
        ('float32 = ["head"]\n', "`float32` must be in a table of a model and a recipe, as `[digits.int8]`"),
        ('[nett.int8]\nfloat32 = ["a"]\n', "`[nett]` names no model; did you mean `net`? known: `net`"),
        ('[net]\nfloat32 = ["a"]\n', "`[net]` must name a recipe, too, as `[net.int8]`"),
        (
            '[net.int9]\nfloat32 = ["a"]\n',
            "`[net.int9]` names no recipe of the model; did you mean `int8`? known: `default`, `half`, `int8`",
        ),
        (
            '[net.default]\nfloat32 = ["a"]\n',
            "`[net.default]` names a recipe that is in float32 as a whole; recipes with another precision:"
            " `half`, `int8`",
        ),
        ("[net]\nint8 = 1\n", '`[net.int8]` must be a table with a list of modules, `float32 = ["head"]`'),
        ("[net.int8]\n", '`[net.int8]` must have a list of paths of modules, as `float32 = ["head"]`'),
        ("[net.int8]\nfloat32 = 'a'\n", '`[net.int8]` must have a list of paths of modules, as `float32 = ["head"]`'),
        ("[net.int8]\nfloat32 = ['']\n", '`[net.int8]` must have a list of paths of modules, as `float32 = ["head"]`'),
        (
            "[net.int8]\nfloat23 = ['head']\n",
            "`[net.int8]` has no key `float23`; did you mean `float32`? known: `float32`",
        ),
    ],
)
def test_a_wrong_list_is_an_error_that_names_file_and_entry(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / PRECISION_FILE).write_text(text)
    with pytest.raises(ConfigError, match="an entry of") as caught:
        read_kept(tmp_path, KNOWN)
    assert caught.value.found.startswith(problem)
    assert "\n" not in caught.value.found
    assert caught.value.where == str(tmp_path / PRECISION_FILE)
    assert "correct precision.toml" in caught.value.hint


def test_all_problems_of_lists_are_in_one_error(tmp_path: Path) -> None:
    (tmp_path / PRECISION_FILE).write_text("[net.int8]\nother = 1\nfloat32 = 2\n[nett.int8]\n")
    with pytest.raises(ConfigError, match="3 entries of"):
        read_kept(tmp_path, KNOWN)
