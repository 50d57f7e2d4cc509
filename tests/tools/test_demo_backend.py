"""The backend in docs/demo_backend, installed as a distribution of its own: its numbers, its fusion and its split."""

from __future__ import annotations

import importlib
import json
import linecache
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loading import load_folder
from support.lowered import install

from hatch_lower import BACKEND_GROUP, DELEGATE_GROUP
from hatch_lower.cache.store import open_store
from hatch_lower.cli.debug import debug_lines, debug_report
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError
from hatch_lower.events import NullReporter
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.lowered_backend_module import get_lowered_submodules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.format.manifest import Manifest, write_manifest
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.lower_model import lower_model, start_build
from hatch_lower.runtime.loaded import LoadedModel

pytestmark = pytest.mark.torch

DISTRIBUTION = Path(__file__).parents[2] / "docs" / "demo_backend"


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the distribution: its package and what it declares are found."""
    declared = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text())["project"]["entry-points"]
    assert list(declared) == [BACKEND_GROUP, DELEGATE_GROUP]
    install(tmp_path / "site", "demo-backend", declared)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(DISTRIBUTION)
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    yield
    for name in [each for each in sys.modules if each.split(".")[0] == "demo_backend"]:
        del sys.modules[name]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 2, 3, padding=1)
        self.second = torch.nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = self.first(image)
        found = torch.relu(found)
        found = self.second(found)
        return torch.tan(found * 0.25) * self.scale + torch.sin(found)


class Twins(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.randn(4))
        self.other = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tan(torch.cumsum(torch.tan(x) * self.one, 0)) * self.other


class Tapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 2, 3, bias=False)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.first(image)
        return torch.relu(found), found - 1


def image() -> torch.Tensor:
    return torch.randn(2, 1, 5, 6, generator=torch.Generator().manual_seed(0))


def delegates(net: torch.nn.Module, given: torch.Tensor, **options: Any) -> list[Any]:
    program = torch.export.export(net.eval(), (given,))
    manager = to_edge_transform_and_lower(program, partitioner=find_backend("demo").partitioner(options))
    return [module for _, module, _ in get_lowered_submodules(manager.exported_program().graph_module)]


def operations(delegate: Any) -> list[str]:
    return [name for name, _ in json.loads(delegate.processed_bytes)["instructions"]]


def package(folder: Path, net: torch.nn.Module, given: torch.Tensor) -> LoadedModel:
    """Lower a model with the backend, verify it, write it as a wheel would have it, and load it."""
    source = capture_model("net", Model(net.eval(), {"forward": Method((given,))}), NullReporter())
    model = ModelSettings("net", "net:export", "net", ("default",))
    recipe = Recipe("default", (BackendChoice("demo", {}),))
    settings = Settings(folder, "net", "1.0", (model,), (recipe,))
    store = open_store(os.environ, print)
    report = lower_model(*start_build(settings, model, source, folder, NullReporter(), store))
    for each in report.files:
        if each.source != folder / each.path:  # constants lie in the cache
            (folder / each.path).write_bytes(each.source.read_bytes())
    manifest = Manifest("net", "1.0", "0.1.0", torch.__version__, {}, {"net": report.manifest})
    (folder / "manifest.json").write_bytes(write_manifest(manifest))
    assert report.manifest.recipes["default"].requirements[0] == "demo-backend==1.0"
    return load_folder(folder)


@pytest.mark.parametrize("make", [Net, Tapped])
def test_the_packaged_program_computes_what_eager_does(tmp_path: Path, make: Callable[[], torch.nn.Module]) -> None:
    net = make()
    loaded = package(tmp_path / "net", net, image())
    given = torch.randn(2, 1, 5, 6)
    with torch.no_grad():
        torch.testing.assert_close(loaded(given), net(given))


def test_the_debug_map_leads_from_instructions_to_lines(tmp_path: Path) -> None:
    debug = package(tmp_path / "net", Net(), image()).debug_map("forward")
    ((path, delegate),) = debug.delegates.items()
    assert delegate.map is not None

    def lines(identifier: int) -> list[tuple[str, str]]:
        found = debug.origins(path, identifier)
        return [(each.op, source_line(each.source)) for each in found]

    fused = [("aten.conv2d.default", "found = self.first(image)"), ("aten.relu.default", "found = torch.relu(found)")]
    last = "return torch.tan(found * 0.25) * self.scale + torch.sin(found)"
    assert lines(0) == fused
    assert lines(1) == [("aten.conv2d.default", "found = self.second(found)")]
    split = [key for key in delegate.map if lines(int(key)) == [("aten.tan.default", last)]]
    assert len(split) == 2
    assert {delegate.map[key] for key in split} == {delegate.map[split[0]]}
    assert debug.undelegated == ()


def source_line(source: str) -> str:
    name, _, number = source.rpartition(":")
    assert Path(name).name == Path(__file__).name
    return linecache.getline(__file__, int(number)).strip()


def test_the_debug_map_as_the_command_line_shows_it(tmp_path: Path) -> None:
    debug = package(tmp_path / "net", Net(), image()).debug_map("forward")
    lines = list(debug_lines(debug_report(debug)))
    assert lines[0].split() == ["instruction", "op", "module", "source"]
    assert [line.split() for line in lines[1:3]] == [["0", "delegate", "of", "`demo`"], ["0"]]
    assert [line.split()[0] for line in lines[3:5]] == ["aten.conv2d.default", "aten.relu.default"]
    assert [line.rpartition("/")[2].split(":")[0] for line in lines[3:5]] == [Path(__file__).name] * 2
    assert sum("aten.tan.default" in line for line in lines) == 1


def test_a_convolution_that_something_else_uses_is_not_fused() -> None:
    (delegate,) = delegates(Tapped(), image())
    assert operations(delegate) == ["convolution", "relu", "subtract"]


def test_fusing_is_an_option() -> None:
    (fused,), (single,) = delegates(Net(), image()), delegates(Net(), image(), fuse=False)
    assert operations(fused)[:2] == ["convolution_relu", "convolution"]
    assert operations(single)[:3] == ["convolution", "relu", "convolution"]
    assert [len(handles) for handles in fused.meta["debug_handle_map"].values()] == [2, *[1] * 7]
    assert [len(handles) for handles in single.meta["debug_handle_map"].values()] == [1] * 9


def test_equal_partitions_with_other_weights_are_lowered_once() -> None:
    program = to_edge(torch.export.export(Twins().eval(), (torch.randn(4),)))
    lowered = lower_methods({"forward": program}, {"forward": find_backend("demo").partitioner({})})["forward"]
    assert (lowered.partitions, lowered.reused, lowered.delegated) == (2, 1, 4)
    one, other = (module for _, module, _ in get_lowered_submodules(lowered.program.graph_module))
    assert one.processed_bytes is other.processed_bytes
    assert (one.constants, other.constants) == (("one",), ("other",))
    assert one.meta["debug_handle_map"] != other.meta["debug_handle_map"]
    assert lowered.reasons == {"aten_cumsum_default": "the machine has no instruction for `aten.cumsum.default`"}


def test_the_program_holds_no_weights(tmp_path: Path) -> None:
    (one,), (other,) = delegates(Net(), image()), delegates(Net(), image())
    assert one.processed_bytes == other.processed_bytes
    net = Twins()
    loaded = package(tmp_path / "twins", net, torch.randn(4))
    given = torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(loaded(given), net(given))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fuze": True},
            "the backend `demo` has no option `fuze`\n  to do: leave it out; the only option is `fuse`",
        ),
        (
            {"fuse": 1},
            "the option `fuse` of the backend `demo` must be true or false\n"
            '  found: 1\n  to do: write `{ name = "demo", fuse = false }`',
        ),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError) as caught:
        find_backend("demo").partitioner(options)
    assert str(caught.value) == message


def test_the_run_half_does_not_import_the_compile_half(modules_after: Callable[[str], set[str]]) -> None:
    code = f"import sys; sys.path.insert(0, {str(DISTRIBUTION)!r}); import demo_backend.run"
    loaded = modules_after(code)
    assert "demo_backend.run" in loaded
    assert (
        not {"demo_backend.compile", "hatch_lower.exir.backend.backend_details", "hatch_lower.exir.dialects._ops"}
        & loaded
    )


def test_both_halves_are_declared_under_one_name() -> None:
    for group, kind in ((BACKEND_GROUP, "DemoBackend"), (DELEGATE_GROUP, "DemoDelegate")):
        (found,) = (each for each in entry_points(group=group) if each.name == "demo")
        assert found.load().__name__ == kind
    assert importlib.import_module("demo_backend").__version__ == "1.0"
