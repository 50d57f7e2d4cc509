"""Builds of a checkpoint of the Hugging Face hub with code of its own, from a stand-in for the hub, in strict mode."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from support.scenarios import Project, only
from support.weights import COMMIT, hub_answers, served

pytestmark = [pytest.mark.slow]

PYPROJECT = f"""\
[build-system]
requires = ["hatchling", "hatch-lower[transformers]"]
build-backend = "hatchling.build"

[project]
name = "net"
version = "1.0"

[tool.hatch.build.hooks.lower]
runtime-requirements = "add"
strict = true

[tool.hatch.build.hooks.lower.models.net]
transformers = "org/name@{COMMIT}"
trust-remote-code = true
weights = "hub"
"""
CODE = b"""\
from transformers import BertForSequenceClassification


class OwnNet(BertForSequenceClassification):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask).logits * 2
"""
TOKEN = "hf_secret"


def files_of_hub(folder: Path) -> dict[str, bytes]:
    """Return the files of a repository with a small model and its code."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=99, **sizes)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["OwnNet"], "auto_map": {"AutoModelForSequenceClassification": "modeling_own.OwnNet"}}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": (folder / "model.safetensors").read_bytes(),
        "modeling_own.py": CODE,
        "LICENSE": b"Apache-2.0",
        "pytorch_model.bin": b"a pickle",
    }


def test_a_checkpoint_of_the_hub_is_built_once_and_needs_no_hub_again(tmp_path: Path) -> None:
    pytest.importorskip("transformers.exporters")
    project = Project(tmp_path / "net", tmp_path / "dist", tmp_path / "cache")
    (project.root / "net").mkdir(parents=True)
    (project.root / "net" / "__init__.py").touch()
    (project.root / "pyproject.toml").write_text(PYPROJECT)
    variables = {"HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    with served(hub_answers(files_of_hub(tmp_path / "made"))) as server:
        wheel = project.wheel({**variables, "HF_ENDPOINT": server.url})
        assert any(headers.get("authorization") == f"Bearer {TOKEN}" for _, _, headers in server.requests)
        assert not any("pytorch_model.bin" in path for _, path, _ in server.requests)
    with ZipFile(wheel) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    bytes_of_wheel = wheel.read_bytes()
    wheel.unlink()

    # the hub is gone
    done = project.build(environment={**variables, "HF_ENDPOINT": server.url}).check()
    assert "unchanged" in done.output
    assert only(project.dist, "*.whl").read_bytes() == bytes_of_wheel

    assert not any(name.endswith("modeling_own.py") for name in contents)
    assert "net/_lowered/net/assets/LICENSE" in contents
    debug = json.loads(contents["net/_lowered/net/default.debug.json"])
    assert any(name == "modeling_own.py" for name in debug["files"])
    (source,) = json.loads(contents["net/_lowered/net/weights.json"])["sources"]
    assert source["url"] == f"hf://org/name@{COMMIT}/model.safetensors"
    kept = [path.read_bytes() for path in project.cache.rglob("*") if path.is_file()]
    for data in (*contents.values(), *kept):
        assert TOKEN.encode() not in data
    for data in contents.values():
        assert str(tmp_path).encode() not in data

    project.build("sdist", {**variables, "HF_HUB_OFFLINE": "1"}).check()
    with tarfile.open(only(project.dist, "*.tar.gz")) as archive:
        assert not any(name.endswith(("config.json", ".safetensors", "modeling_own.py")) for name in archive.getnames())
