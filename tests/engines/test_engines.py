"""Recipes that combine backends: each takes its part of one model, and the wheel gives what eager gives."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.scenarios import copy_project, only, sha256, unpack
from support.venv import run

if None in (find_spec("openvino"), find_spec("onnxruntime")):
    pytest.skip("the engines are not installed", allow_module_level=True)

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

WIDE = ("aten.to.dtype", "aten.mul.Tensor", "aten.to.dtype")
ATTENTION = "aten.scaled_dot_product_attention.default"
SELECT = "aten.select.int"
SEEN = ("aten.linear.default", "aten.unsqueeze.default", "aten.chunk.default", ATTENTION, SELECT, SELECT)
LAST = ("aten.tanh.default", "aten.linear.default")
TAKEN = {
    "default": [("openvino", SEEN), ("aoti", WIDE), ("openvino", LAST)],
    "turned": [("openvino", SEEN), ("aoti", WIDE), ("openvino", LAST)],
    "both": [("onnxruntime", (*SEEN, *WIDE)), ("openvino", LAST[:1]), ("onnxruntime", LAST[1:])],
}
"""Recipe to the backend and the exported operations of each partition, in the order in which they run."""

CALL = """
import sys
import torch
from engines.model import make
from hatch_lower import load

eager = make()
torch.manual_seed(0)
for recipe in sys.argv[1:]:
    model = load("engines", recipe=recipe)
    for rows in (1, 4, 64):
        x = torch.randn(rows, 5, 8)
        torch.testing.assert_close(model(x), eager(x).detach(), rtol=1e-5, atol=1e-6)
    print(recipe, sorted({name for name in sys.modules if name in ("openvino", "onnxruntime")}))
"""


@dataclass(frozen=True, slots=True)
class Build:
    """A wheel, what its build said, and the home folder that it had."""

    wheel: Path
    told: str
    home: Path


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return build_in(tmp_path_factory.mktemp("first"), "1")


@pytest.fixture(scope="module")
def site(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(build.wheel, tmp_path_factory.mktemp("site"))


def build_in(folder: Path, seed: str) -> Build:
    """Build a copy of the project in a folder, with a cache and a home folder that are empty."""
    project = copy_project("engines", folder)
    home = folder / "home"
    home.mkdir()
    done = project.build(environment={"PYTHONHASHSEED": seed, "HOME": str(home)}).check()
    return Build(only(project.dist, "*.whl"), done.output, home)


def debug_of(site: Path, recipe: str) -> Mapping[str, Any]:
    """Return the debug map of a recipe's one method."""
    path = site / "engines" / "_lowered" / "engines" / f"{recipe}.debug.json"
    found: Mapping[str, Any] = json.loads(path.read_text())["methods"]["forward"]
    return found


@pytest.mark.parametrize("recipe", TAKEN)
def test_each_backend_takes_its_part_and_what_one_wants_whole_stays_whole(site: Path, recipe: str) -> None:
    debug = debug_of(site, recipe)
    found = []
    for place in sorted(debug["delegates"], key=int):
        delegate = debug["delegates"][place]
        handles = sorted({handle for handles in delegate["map"].values() for handle in handles})
        found.append((delegate["backend"], tuple(debug["handles"][str(handle)]["op"] for handle in handles)))
        if delegate["backend"] == "openvino" and ATTENTION in found[-1][1]:
            assert "ScaledDotProductAttention" in {name.partition("/")[2] for name in delegate["map"]}
    assert found == TAKEN[recipe]
    assert debug["undelegated"] == []


def test_the_summary_says_who_took_what(build: Build) -> None:
    lines = {" ".join(line.split()) for line in build.told.splitlines()}
    for recipe, parts in TAKEN.items():
        backends = [backend for backend, _ in parts]
        for backend in set(backends):
            count = backends.count(backend)
            stem, end = f"lower engines/{recipe} compile", f"s {backend}: {count} partition{'s' * (count > 1)}"
            assert [line for line in lines if line.startswith(stem) and end in line], (recipe, backend)
        assert [line for line in lines if line.startswith(f"engines forward {recipe} 11 11 {len(parts)} ")], recipe


def test_the_build_says_what_is_eagers_for_finite_numbers_only(build: Build) -> None:
    told = [line for line in build.told.splitlines() if "for finite numbers only" in line]
    assert [line.partition(" as eager does")[0] for line in told] == [
        f"lower  engines/{recipe}: `openvino` computes `{ATTENTION}`" for recipe in ("default", "turned")
    ]


def test_the_wheel_gives_what_eager_gives(site: Path, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(site), "HOME": str(tmp_path)}
    done = run([sys.executable, "-W", "error", "-c", CALL, "default", "both"], environment=environment)
    assert done.check().stdout.splitlines() == ["default ['openvino']", "both ['onnxruntime', 'openvino']"]
    assert list(tmp_path.iterdir()) == []


def test_an_engine_leaves_nothing_in_the_home_folder(build: Build) -> None:
    assert list(build.home.iterdir()) == []


def test_the_wheel_requires_each_engine(site: Path) -> None:
    metadata = Parser().parsestr(only(site, "*.dist-info/METADATA").read_text())
    required = metadata.get_all("Requires-Dist", [])
    for engine in ("onnxruntime", "openvino"):
        assert [line for line in required if line.startswith(f"{engine}>=")], engine


@pytest.mark.long
def test_another_folder_and_an_empty_cache_give_the_same_bytes(build: Build, tmp_path: Path) -> None:
    assert sha256(build_in(tmp_path, "2").wheel) == sha256(build.wheel)
