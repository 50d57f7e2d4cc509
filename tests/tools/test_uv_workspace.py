"""A workspace of uv: two members with a model each, and one model is built of the other member's package."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.scenarios import only
from support.venv import Finished, installer_environment, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

WORKSPACE = """\
[project]
name = "both"
version = "1.0"
requires-python = ">=3.11"

[tool.uv.workspace]
members = ["packages/*"]
"""
MEMBER = """\
[build-system]
requires = ["hatchling>=1.28", "hatch-lower", "torch==2.13.*", "numpy"{needs}]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["hatch-lower>=0.1", "torch>=2.13"]

[project.entry-points."hatch_lower.models"]
{name} = "{name}.model:export"

[tool.hatch.build.targets.wheel]
packages = ["src/{name}"]

[tool.hatch.build.hooks.lower]

[tool.uv]
cache-keys = [{{ file = "pyproject.toml" }}, {{ file = "src/{name}/**/*.py" }}]
"""
ENCODER = """\
import torch


class Encoder(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 4)
        torch.nn.init.constant_(self.weight, 1.0)


def export():
    return Encoder().eval(), (torch.zeros(2, 8),)
"""
HEAD = """\
import torch
from encoder.model import Encoder


def export():
    torch.manual_seed(0)
    return torch.nn.Sequential(Encoder(), torch.nn.Linear(4, 2)).eval(), (torch.zeros(2, 8),)
"""


def write_member(root: Path, name: str, code: str, needs: str = "") -> Path:
    package = root / "packages" / name / "src" / name
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model.py").write_text(code)
    (root / "packages" / name / "pyproject.toml").write_text(MEMBER.format(name=name, needs=needs))
    return package / "model.py"


def test_a_member_is_lowered_again_after_a_change_of_the_member_that_it_needs(wheelhouse: Path, tmp_path: Path) -> None:
    root, code = tmp_path / "workspace", {}
    code["encoder"] = write_member(root, "encoder", ENCODER)
    code["head"] = write_member(root, "head", HEAD, ', "encoder"')
    (root / "pyproject.toml").write_text(WORKSPACE)
    with (root / "packages/head/pyproject.toml").open("a") as file:
        file.write("\n[tool.uv.sources]\nencoder = { workspace = true }\n")
    environment = installer_environment(wheelhouse) | {"HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache")}
    uv = Path(sys.executable).parent / "uv"

    def build() -> tuple[Finished, dict[str, bytes]]:
        command = [uv, "build", "--all-packages", "--wheel", "--python", sys.executable]
        done = run(command, cwd=root, environment=environment).check()
        weights = {}
        for name in code:
            with ZipFile(only(root / "dist", f"{name}-*.whl")) as archive:
                weights[name] = archive.read(f"{name}/_lowered/{name}/constants.safetensors")
        return done, weights

    _, first = build()
    again, second = build()
    assert second == first
    assert again.output.count("unchanged") == 2
    code["encoder"].write_text(ENCODER.replace("1.0", "2.0"))
    _, third = build()
    assert third["head"] != first["head"]
    assert third["encoder"] != first["encoder"]
