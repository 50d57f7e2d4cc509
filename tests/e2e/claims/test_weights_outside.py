"""Builds of a wheel whose weights are elsewhere: on a server, or in a file beside the wheel."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from support.scenarios import Project, only, sha256
from support.weights import Served, served

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

PYPROJECT = """\
[build-system]
requires = ["hatchling", "hatch-lower", "torch==2.13.*"]
build-backend = "hatchling.build"

[project]
name = "net"
version = "1.0"
dependencies = ["hatch-lower>=0.1", "torch>=2.13"]

[project.entry-points."hatch_lower.models"]
net = "net:export"

[tool.hatch.build.targets.wheel.hooks.lower]
weights = "WEIGHTS"
"""
SOURCE = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, index):
        return torch.relu(self.layer(self.table(index).mean(1)))


def net():
    torch.manual_seed(0)
    return Net().eval()


def export():
    return Model(net(), {"forward": Method((torch.ones(2, 5, dtype=torch.int64),))})
"""
LOAD = """\
import pathlib, sys, torch, hatch_lower
import net
folder = pathlib.Path("unpacked/net/_lowered/net")
hatch_lower.fetch(folder, origins=sys.argv[1:])
index = torch.arange(10).reshape(2, 5)
print(torch.equal(hatch_lower.load(folder)(index), net.net()(index)))
"""


def make_project(folder: Path, weights: str) -> Project:
    root = folder / "project"
    (root / "net").mkdir(parents=True)
    (root / "net" / "__init__.py").write_text(SOURCE)
    (root / "pyproject.toml").write_text(PYPROJECT.replace("WEIGHTS", weights))
    return Project(root, folder / "dist", folder / "cache")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "net.py").write_text(SOURCE)
    code = "import net; from safetensors.torch import save_model; save_model(net.net(), 'model.safetensors')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def server(checkpoint: bytes) -> Iterator[Served]:
    with served({"/model.safetensors": checkpoint}) as running:
        yield running


def weights_in(wheel: Path) -> dict[str, Any]:
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "constants" in name]
        value: dict[str, Any] = json.loads(archive.read("net/_lowered/net/weights.json"))
    return value


def computes_as_eager(project: Project, wheel: Path, environment: dict[str, str], *origins: str | Path) -> bool:
    with ZipFile(wheel) as archive:
        archive.extractall(project.root / "unpacked")
    arguments = [sys.executable, "-c", LOAD, *map(str, origins)]
    done = subprocess.run(arguments, cwd=project.root, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout == "True\n"


def test_weights_of_a_published_checkpoint_are_in_no_wheel(
    tmp_path: Path, server: Served, checkpoint: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_LOWER_WEIGHTS", str(tmp_path / "weights"))
    url = f"{server.url}/model.safetensors"
    project = make_project(tmp_path, url)
    done = project.build().check()
    assert "weights of net: 3,472 bytes in 1 file outside the wheel; in the wheel none" in done.stderr
    wheel = only(project.dist, "*.whl")
    first, digest = weights_in(wheel), sha256(wheel)
    (source,) = first["sources"]
    assert (source["url"], source["size"]) == (url, len(checkpoint))
    assert server.asked() == [""]
    # nothing has changed: nobody is asked, and the wheel is the same
    server.faults.append("*404")
    assert "unchanged" in project.build(environment={"HATCH_LOWER_FETCH": "never"}).check().stderr
    assert sha256(wheel) == digest
    assert server.asked() == [""]
    # a release that changes code only: one byte is asked for, and the weights are the same
    server.faults.clear()
    wheel.unlink()
    project.edit("pyproject.toml", 'version = "1.0"', 'version = "1.1"')
    project.edit("net/__init__.py", "torch.relu(", "2 * torch.relu(")
    project.build(environment={"http_proxy": ""}).check()
    second = weights_in(only(project.dist, "*.whl"))
    assert second == first
    assert server.asked() == ["", f"bytes={len(checkpoint) - 1}-"]
    environment = {"PATH": "/usr/bin", "HATCH_LOWER_WEIGHTS": str(tmp_path / "others"), "PYTHONPATH": "."}
    assert computes_as_eager(project, only(project.dist, "*.whl"), environment)
    assert server.asked()[2:] == [""]


def test_weights_in_a_file_are_uploaded_once(tmp_path: Path) -> None:
    first = make_project(tmp_path / "first", "file")
    done = first.build().check()
    wheel, beside = only(first.dist, "*.whl"), only(first.dist, "*.safetensors")
    assert beside.name == f"net-net-{sha256(beside)[:16]}.safetensors"
    assert f"hatch-lower: to be uploaded: {beside}" in done.stderr
    assert weights_in(wheel)["sources"] == [
        {"url": beside.name, "size": beside.stat().st_size, "sha256": sha256(beside)}
    ]
    # elsewhere, from a folder of another name, in strict mode: the same bytes of both
    second = make_project(tmp_path / "of another name", "file")
    second.edit("pyproject.toml", 'weights = "file"', 'weights = "file"\nstrict = true')
    assert sha256(second.wheel()) == sha256(wheel)
    assert sha256(only(second.dist, "*.safetensors")) == sha256(beside)
    # another version has the same weights, under the same name
    first.edit("pyproject.toml", 'version = "1.0"', 'version = "1.1"')
    before, entries = beside.stat().st_mtime_ns, weights_in(wheel)
    wheel.unlink()
    assert weights_in(first.wheel()) == entries
    assert only(first.dist, "*.safetensors").stat().st_mtime_ns == before
    environment = {"PATH": "/usr/bin", "HATCH_LOWER_WEIGHTS": str(tmp_path / "weights"), "PYTHONPATH": "."}
    assert computes_as_eager(first, only(first.dist, "*.whl"), environment, first.dist)


def test_a_wheel_names_no_path_of_the_machine_that_built(tmp_path: Path, checkpoint: bytes) -> None:
    place = tmp_path / "published"
    place.mkdir()
    (place / "model.safetensors").write_bytes(checkpoint)
    project = make_project(tmp_path, (place / "model.safetensors").as_uri())
    wheel = project.wheel()
    (source,) = weights_in(wheel)["sources"]
    assert source["url"] == "model.safetensors"
    environment = {"PATH": "/usr/bin", "HATCH_LOWER_WEIGHTS": str(tmp_path / "weights"), "PYTHONPATH": "."}
    assert computes_as_eager(project, wheel, environment, place)
