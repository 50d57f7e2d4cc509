"""Code in checkpoints: refused without `trust-remote-code`, and with the setting run as it is in the checkpoint now."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hatch_lower.config.checkpoint import CheckpointFolder, checkpoint_of
from hatch_lower.config.settings import Metadata, Settings, read_settings
from hatch_lower.errors import ConfigError, EntryPointError
from hatch_lower.events import NullReporter
from hatch_lower.huggingface.checkpoint import checkpoint_assets, checkpoint_files, checkpoint_model
from hatch_lower.huggingface.code import COPIES
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.emit.sources import SourceRoots, source_lines

CONFIGURATION = """from transformers import BertConfig


class OwnConfig(BertConfig):
    model_type = "own"
    factor = {factor}
"""
MODELING = """from transformers import BertForSequenceClassification

from .configuration_own import OwnConfig


class OwnNet(BertForSequenceClassification):
    config_class = OwnConfig

    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask).logits * self.config_class.factor
"""
CLASSES = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModelForSequenceClassification": "modeling_own.OwnNet",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a checkpoint with code; its copies are forgotten behind the test."""
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("transformers.exporters")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    place = tmp_path / "models" / "own"
    transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=99, **sizes)).save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnNet"], "auto_map": CLASSES}
    (place / "config.json").write_text(json.dumps(config))
    (place / "modeling_own.py").write_text(MODELING)
    (place / "configuration_own.py").write_text(CONFIGURATION.format(factor=1.0))
    modules, path = set(sys.modules), list(sys.path)
    yield place
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


def loaded(folder: Path, task: str = "", *, trusted: bool = True) -> Any:
    return checkpoint_model(CheckpointFolder(str(folder), task, trusts_code=trusted), Path(), "here")


def logits(folder: Path) -> torch.Tensor:
    found: torch.Tensor = loaded(folder).module(torch.arange(6).reshape(2, 3))
    return found


def settings(root: Path, **model: Any) -> Settings:
    given = {"models": {"own": model}}
    return read_settings(given, Metadata("own", "1.0", {}), root=root, packages=["own"], regular=["own"])


def test_the_setting_is_part_of_the_export(tmp_path: Path) -> None:
    (model,) = settings(tmp_path, **{"transformers": "models/own", "trust-remote-code": True, "task": "x"}).models
    assert model.export == "transformers:models/own?trust-remote-code#x"
    assert checkpoint_of(model.export) == CheckpointFolder("models/own", "x", trusts_code=True)
    (plain,) = settings(tmp_path, **{"transformers": "models/own", "trust-remote-code": False}).models
    assert plain.export == "transformers:models/own"


@pytest.mark.parametrize("source", [{"export": "own:export"}, {"timm": "models/own"}])
def test_trust_without_a_checkpoint_that_may_have_code_is_refused(source: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, **{**source, "trust-remote-code": True})
    assert "is for the code of a checkpoint, and the model has no `transformers` and no `sentence-" in error.value.found


def test_code_is_refused_by_default(folder: Path) -> None:
    with pytest.raises(EntryPointError, match="brings code of its own, which a build does not run") as error:
        loaded(folder, trusted=False)
    assert error.value.found.endswith("config.json: AutoConfig, AutoModelForSequenceClassification")
    assert "set `trust-remote-code = true`" in error.value.hint
    assert not any(name.startswith("transformers_modules") for name in sys.modules)


@pytest.mark.parametrize("task", ["", "text-classification"])
def test_trusted_code_is_the_module_to_export(folder: Path, task: str) -> None:
    declared = loaded(folder, task)
    assert type(declared.module).__name__ == "OwnNet"
    assert set(declared.methods["forward"].kwargs) == {"input_ids", "attention_mask"}


def test_changed_code_replaces_its_copy(folder: Path) -> None:
    before = logits(folder)
    (folder / "configuration_own.py").write_text(CONFIGURATION.format(factor=2.0))
    torch.testing.assert_close(logits(folder), 2 * before)
    (folder / "modeling_own.py").write_text(MODELING.replace("* self", "/ self"))
    torch.testing.assert_close(logits(folder), before / 2)


def test_copies_are_not_in_the_user_s_cache(folder: Path) -> None:
    utilities: Any = importlib.import_module("transformers.dynamic_module_utils")
    before = utilities.HF_MODULES_CACHE
    place = Path(sys.modules[type(loaded(folder).module).__module__].__file__ or "")
    assert place.name == "modeling_own.py"
    assert any(part.startswith(COPIES) for part in place.parts)
    assert before == utilities.HF_MODULES_CACHE


def test_source_lines_have_no_folder_of_the_copies(folder: Path) -> None:
    (method,) = capture_model("own", loaded(folder), NullReporter()).methods
    lines = set(source_lines(method.program, SourceRoots([folder.parents[1], *map(Path, sys.path)])))
    own = [line for line in lines if "own" in line]
    assert own == ["modeling_own.py:10"]
    assert not any(line.startswith("/") or COPIES in line for line in lines)


def test_code_in_another_repository_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"]["AutoConfig"] = "org/name--configuration_own.OwnConfig"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EntryPointError, match="is in another repository, of which no commit is known") as error:
        loaded(folder)
    assert error.value.found.endswith("config.json: org/name--configuration_own.OwnConfig")


def test_code_is_a_file_of_the_build_and_no_asset(folder: Path) -> None:
    code = {"modeling_own.py", "configuration_own.py"}
    assert {path.name for path in checkpoint_files(folder, code=True)} >= code
    assert not {path.name for path in checkpoint_files(folder)} & code
    assert not {path.name for path in checkpoint_assets(folder)} & code


def test_a_class_of_an_encoder_s_own_code_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    (tmp_path / "modules.json").write_text('[{"path": "", "type": "own.Pooling"}]')
    with pytest.raises(EntryPointError, match="brings code of its own, which a build does not run") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path), library="sentence-transformers"), Path(), "here")
    assert error.value.found.endswith("modules.json: own.Pooling")
