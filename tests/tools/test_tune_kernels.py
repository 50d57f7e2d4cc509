"""`hatch-lower tune-kernels`, with the result of a build that has measured instead of a GPU."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.lowered import lowered_model, write_lowered
from support.plans import delegate_entry, method, plan_value

from hatch_lower.cli.entry import main
from hatch_lower.cli.measure import kernels
from hatch_lower.cli.measure.side import BenchSide, side_of_places
from hatch_lower.config.settings import Settings
from hatch_lower.driver.contents import find_contents, places_in

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling"),
]
PYPROJECT = """
[build-system]
requires = ["hatchling", "hatch-lower"]
build-backend = "hatchling.build"

[project]
name = "net"
version = "1.0"
dependencies = ["torch"]

[project.entry-points."hatch_lower.models"]
net = "net:export"

[tool.hatch.build.hooks.lower.recipes]
gpu.backends = [{ name = "cuda", arch = ["sm_80", "sm_90"] }]
new.backends = [{ name = "cuda", arch = ["sm_120"] }]
cpu.backends = ["null"]
"""
SMALL, LARGE = {"XBLOCK": 8, "num_warps": 2}, {"XBLOCK": 64, "num_warps": 8}
TIMES = [["a" * 64, [[SMALL, 2000], [LARGE, 1000]]], ["b" * 64, [[SMALL, 10], [LARGE, 20]]]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "net").mkdir(parents=True)
    (root / "net" / "__init__.py").touch()
    (root / "pyproject.toml").write_text(PYPROJECT)
    return root


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Settings]:
    """Give a GPU of sm_90, and a build that has measured two kernels; receive the settings of the build."""
    asked: list[Settings] = []

    @contextmanager
    def lowered_again(settings: Settings, view: object, store: Any, title: str, variables: Any) -> Iterator[BenchSide]:
        assert variables["HATCH_LOWER_CACHE"] == store.mode == "off"
        asked.append(settings)
        folder, file = tmp_path / "site" / "net" / "_lowered", "net/delegates/a.so"
        info = {"measure-kernels": {"arch": "sm_90", "machine": "H100, torch 2.13.0", "times": TIMES}}
        delegates = [delegate_entry("cuda", file=file, info=info)] * 2
        recipe = {"plan": plan_value(forward=method([], [], tree=None), delegates=delegates), "blobs": {file: b"code"}}
        write_lowered(folder, {"net": lowered_model(folder, "net", {"gpu": recipe})})
        contents = find_contents(folder)
        yield side_of_places(title, contents, places_in(contents, installed=False))

    monkeypatch.setattr(kernels, "find_gpu_here", lambda: "sm_90")
    monkeypatch.setattr(kernels, "lowered_again", lowered_again)
    return asked


def tune(root: Path, *arguments: object) -> Result:
    command = ["tune-kernels", "--root", str(root), *map(str, arguments)]
    return CliRunner().invoke(main, command, catch_exceptions=False)


def test_the_fastest_configurations_are_written_beside_those_of_other_gpus(
    project: Path, measured: list[Settings]
) -> None:
    before = {"format": 1, "measured": {"sm_80": "A100"}, "kernels": {"a" * 64: {"sm_80": SMALL, "sm_90": SMALL}}}
    (project / "kernels.json").write_text(json.dumps(before))
    text = PYPROJECT.replace('"sm_90"] }', '"sm_90"], kernels = { file = "kernels.json" } }')
    (project / "pyproject.toml").write_text(text)
    shown = tune(project)
    assert shown.exit_code == 0, shown.output
    assert "2 kernels measured on H100, torch 2.13.0, 1 faster in another configuration than the first" in shown.output
    assert json.loads((project / "kernels.json").read_text()) == {
        "format": 1,
        "measured": {"sm_80": "A100", "sm_90": "H100, torch 2.13.0"},
        "kernels": {"a" * 64: {"sm_80": SMALL, "sm_90": LARGE}, "b" * 64: {"sm_90": SMALL}},
    }
    (settings,) = measured
    (recipe,) = settings.recipes
    assert (recipe.name, recipe.verify) == ("gpu", False)
    assert recipe.backends[0].options == {"arch": ["sm_80", "sm_90"], "measure-kernels": True}
    assert [model.recipes for model in settings.models] == [("gpu",)]


def test_a_machine_without_a_gpu_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.runtime.torch_private.cuda.cuda_version", lambda: "")
    shown = tune(project)
    assert shown.exit_code == 1
    assert "kernels are measured on a GPU" in shown.output
    assert "found: this torch has no CUDA" in shown.output
    assert "run this on a machine with a GPU and check the file in" in shown.output
    assert not (project / "kernels.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "found"),
    [
        (["--recipe", "new"], "no recipe has kernels for the GPU of this machine, sm_90", "`new` is for sm_120"),
        (["--recipe", "cpu"], "there is no such recipe with the backend `cuda`", "gpu"),
        (["--output", "pyproject.toml"], "that `hatch-lower tune-kernels` has not written", "Expecting value"),
        (["--output", "no/where.json"], "the report cannot be written", "no writable folder"),
    ],
)
def test_the_command_refuses_what_cannot_be_measured(
    project: Path,
    measured: list[Settings],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    found: str,
) -> None:
    monkeypatch.chdir(project)
    shown = tune(project, *arguments)
    assert shown.exit_code == 1
    assert message in shown.output
    assert found in shown.output
    assert measured == []
