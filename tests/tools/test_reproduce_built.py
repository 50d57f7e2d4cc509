"""`hatch-lower reproduce` of wheels with models: those that come out the same, and those that cannot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.scenarios import Project, only
from support.venv import Finished, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

MODEL = """\
import os
import torch
from hatch_lower import Method, Model


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for name in {names}:
            x = getattr(torch, name)(x)
        return x


def export() -> Model:
    torch.manual_seed({seed})
    return Model(Tiny().eval(), methods={{"forward": Method(args=(torch.zeros(2, 3),))}})
"""
UNSEEDED = MODEL.format(names="('relu',)", seed="int.from_bytes(os.urandom(4), 'big')")
OF_A_SET = MODEL.format(names='{"relu", "sigmoid", "tanh", "neg", "cos", "sin", "exp", "abs"}', seed="0")
LOWERED = "tiny/_lowered/tiny"


def reproduce(wheel: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> Finished:
    """Run the command."""
    words = [sys.executable, "-c", "from hatch_lower.cli.entry import main; main()", "reproduce", wheel, *arguments]
    return run(words, environment=environment)


def differences(done: Finished) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the command found, by member and place."""
    assert done.status == 1, done.output
    return {(each["member"], each["place"]): each for each in json.loads(done.stdout)["differences"]}


def test_a_wheel_is_built_again_from_the_tree_and_from_the_sdist(
    project: Callable[[str], Project], built: Callable[[str], Path]
) -> None:
    tiny = project("tiny")
    wheel = built("tiny")
    tiny.build("sdist").check()
    for source in (("--project", tiny.root), ("--sdist", only(tiny.dist, "*.tar.gz"))):
        done = reproduce(wheel, *source)
        assert done.status == 0, done.output
        assert done.stdout.startswith("tiny-1.0-py3-none-any.whl is reproducible: sha256 ")


def test_weights_that_are_random_each_time_are_named(project: Callable[[str], Project]) -> None:
    tiny = project("tiny")
    tiny.edit("pyproject.toml", 'backends = ["null"]', "backends = []")
    (tiny.root / "tiny" / "model.py").write_text(UNSEEDED)
    found = differences(reproduce(tiny.wheel(), "--project", tiny.root, "--json"))
    for name in ("layer.bias", "layer.weight"):
        assert "seed it there" in found.pop((f"{LOWERED}/constants.safetensors", f"tensor {name}"))["reason"]
    # nothing is said of plan, manifest and RECORD, which hold the weights' digests
    assert {member for member, _ in found} <= {
        f"{LOWERED}/check.safetensors",
        "tiny-1.0.dist-info/sboms/hatch-lower.cdx.json",
    }


def test_a_graph_in_the_order_of_a_set_is_named(project: Callable[[str], Project]) -> None:
    tiny = project("tiny")
    tiny.edit("pyproject.toml", 'backends = ["null"]', 'backends = []\npass-env = ["PYTHONHASHSEED"]')
    (tiny.root / "tiny" / "model.py").write_text(OF_A_SET)
    wheel = tiny.wheel({"PYTHONHASHSEED": "1"})
    found = differences(reproduce(wheel, "--project", tiny.root, "--json", environment={"PYTHONHASHSEED": "1"}))
    plan = [each for (member, _), each in found.items() if member == f"{LOWERED}/default.json"]
    assert plan
    for each in plan:
        assert each["place"].startswith("/methods/forward/graph/instructions/")
        assert each["first"].startswith('"aten.')
        assert "which follows the hash seed" in each["reason"]
    assert any(member == f"{LOWERED}/default.debug.json" for member, _ in found)
