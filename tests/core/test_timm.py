"""Checkpoints of timm as models: the setting, complete weights, and the size of images."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hatch_lower.config.checkpoint import CheckpointFolder, checkpoint_of
from hatch_lower.config.settings import Metadata, Settings, read_settings
from hatch_lower.driver.sources import find_assets
from hatch_lower.errors import ConfigError, EntryPointError
from hatch_lower.events import NullReporter
from hatch_lower.format.timm_config import image_size
from hatch_lower.huggingface.checkpoint import checkpoint_model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.pipeline.discover import EntryPoint, discover
from hatch_lower.runtime.eager import make_eager
from hatch_lower.runtime.texts import read_labels

CONFIG = {"architecture": "test_resnet", "num_classes": 10}


@pytest.fixture(scope="module")
def timm() -> Any:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # a torchvision for another torch raises `RuntimeError`
        pytest.skip(f"timm with torchvision is not installed: {error}")
    return timm


@pytest.fixture(scope="module")
def saved(timm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    made = timm.create_model("test_resnet", num_classes=7)
    place = tmp_path_factory.mktemp("timm") / "net"
    names = {"label_names": [f"class {index}" for index in range(7)]}
    timm.models.save_for_hf(made, place, safe_serialization=True, model_config=names)
    return place


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "models" / "net")


def change(folder: Path, **members: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **members}))


def model_in(folder: Path) -> Any:
    return checkpoint_model(CheckpointFolder(str(folder), library="timm"), Path(), "here")


def refusal(folder: Path) -> EntryPointError:
    with pytest.raises(EntryPointError) as error:
        model_in(folder)
    assert error.value.where == "here"
    assert error.value.found
    assert error.value.hint
    return error.value


def settings(root: Path, **net: Any) -> Settings:
    return read_settings(
        {"models": {"net": net}}, Metadata("net", "1.0", {}), root=root, packages=["net"], regular=["net"]
    )


# The setting


def test_a_folder_declares_a_model(tmp_path: Path) -> None:
    (found,) = settings(tmp_path, timm="models/net/").models
    assert (found.export, found.package) == ("timm:models/net", "net")
    assert checkpoint_of(found.export) == CheckpointFolder("models/net", library="timm")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"timm": "a", "transformers": "b"}, "has `transformers` and `timm`; keep one of them"),
        ({"timm": "a", "task": "image-classification"}, "is the task of a checkpoint, and the model has no"),
        ({"timm": "../a"}, "must be a folder of the project"),
    ],
)
def test_a_wrong_table_is_refused(table: Mapping[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, **table)
    assert words in error.value.found


def test_the_configuration_and_the_licence_are_assets(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("config.json", "LICENSE", "model.safetensors", "pytorch_model.bin", "README.md"):
        (tmp_path / "models" / name).write_text("{}")
    assert find_assets(settings(tmp_path, timm="models"))["net"].keys() == {"config.json", "LICENSE"}


# Refused folders


@pytest.mark.parametrize("config", [None, "{", "[]", '{"architectures": ["BertModel"]}', '{"architecture": 3}'])
def test_a_folder_without_a_checkpoint_is_refused(config: str | None, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    error = refusal(tmp_path)
    assert error.what == "the folder holds no checkpoint of timm"
    assert "safe_serialization=True" in error.hint


def test_a_folder_of_timm_is_no_checkpoint_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers.exporters")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(EntryPointError, match="the folder holds no checkpoint of transformers") as error:
        checkpoint_model(CheckpointFolder(str(tmp_path)), Path(), "here")
    assert error.value.hint == "declare the folder with `timm`"


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "other.safetensors").touch()
    error = refusal(tmp_path)
    assert error.what == "a checkpoint must have its weights in safetensors files"
    assert error.found == f"no file `model.safetensors` in {tmp_path}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth"])
def test_pickled_weights_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).touch()
    error = refusal(tmp_path)
    assert error.found == f"pickled weights alone: `{name}`"
    assert f"for k, v in l('{tmp_path / name}').items()" in error.hint


def test_the_line_of_the_refusal_converts_the_weights(timm: Any, folder: Path) -> None:
    loaded = model_in(folder).module
    (folder / "model.safetensors").unlink()
    timm.models.save_for_hf(loaded.inner, folder)  # pickled: timm's default
    _, _, line = refusal(folder).hint.partition('python -c "')
    exec(line.removesuffix('"'), {})
    images = torch.randn(1, 3, 40, 40)
    assert torch.equal(model_in(folder).module(images), loaded(images))


def test_weights_that_the_model_shares_may_have_a_single_name(timm: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_model

    made = timm.create_model("coat_tiny", num_classes=3, img_size=64).eval()
    timm.models.save_for_hf(made, tmp_path)  # timm refuses to write shared weights into a safetensors file
    _, _, line = refusal(tmp_path).hint.partition('python -c "')
    exec(line.removesuffix('"'), {})
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model_in(tmp_path).module(images), made(images))
    several = load_file(tmp_path / "model.safetensors").keys()
    save_model(made, str(tmp_path / "model.safetensors"))
    assert load_file(tmp_path / "model.safetensors").keys() < several
    assert torch.equal(model_in(tmp_path).module(images), made(images))


def without_timm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> EntryPointError:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").touch()
    monkeypatch.delitem(sys.modules, "hatch_lower.huggingface.image_models", raising=False)
    return refusal(folder)


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    error = without_timm(tmp_path, monkeypatch)
    assert error.what == "a model of the table `timm` needs the library"
    assert error.hint == 'add "hatch-lower[timm]" to `[build-system] requires`'


def test_a_torchvision_for_another_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    error = without_timm(tmp_path, monkeypatch)
    assert error.found == "RuntimeError: operator torchvision::nms does not exist"
    assert "torch and torchvision of releases that belong together" in error.hint


def test_an_architecture_that_timm_does_not_know_is_refused(timm: Any, folder: Path) -> None:
    change(folder, architecture="test_resnt")
    error = refusal(folder)
    assert error.what == "timm has no architecture `test_resnt`"
    assert error.found.startswith(f"timm {timm.__version__}, with `test_resnet`")


@pytest.mark.parametrize(
    ("members", "what", "words"),
    [
        ({"model_args": {"depth": 3}}, "timm cannot load the checkpoint as `test_resnet`", "TypeError"),
        ({"pretrained_cfg": 3}, "timm cannot load the checkpoint as `test_resnet`", "Error"),
        ({"num_classes": 8, "model_args": {}}, "timm cannot load the checkpoint as `test_resnet`", "size mismatch"),
        # timm drops the weights of a classifier of another size, and loads the rest
        ({"model_args": {"num_classes": 9}}, "no weights for parameters of `ResNet`", "`fc.bias`, `fc.weight`"),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_refused(
    members: Mapping[str, Any], what: str, words: str, folder: Path
) -> None:
    change(folder, **members)
    error = refusal(folder)
    assert what in error.what
    assert words in error.found


def test_weights_that_are_missing_or_spare_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "other.weight": torch.zeros(2)}, folder / "model.safetensors")
    error = refusal(folder)
    assert error.what == "the checkpoint has weights that `ResNet` does not take"
    assert error.found == "`other.weight`"
    lost = {name: value for name, value in weights.items() if not name.startswith("layer1.0.conv1")}
    save_file(lost, folder / "model.safetensors")
    error = refusal(folder)
    assert error.what == "the checkpoint has no weights for parameters of `ResNet`"
    assert error.found == "`layer1.0.conv1.weight`"


@pytest.mark.parametrize("size", [[3, 24], [3, 0, 24], "large", [3, 24, 1 << 20], [True, 24, 24]])
def test_an_impossible_size_is_refused(size: object, timm: Any) -> None:
    from hatch_lower.huggingface.image_models import model_of_images

    with pytest.raises(EntryPointError, match="no possible size of images") as error:
        model_of_images(torch.nn.Identity(), {**CONFIG, "pretrained_cfg": {"input_size": size}}, "here")
    assert error.value.found.startswith("`input_size`: ")


# The model


def test_the_model_is_the_one_that_timm_loads(timm: Any, folder: Path) -> None:
    found: Any = discover(EntryPoint("net", "timm:models/net", folder.parents[1]))
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    (method,) = capture_model("net", found, NullReporter()).methods
    assert set(method.dimensions.values()) == {"batch"}
    for batch in (1, 5):
        images = torch.randn(batch, *timm.data.resolve_model_data_config(theirs)["input_size"])
        torch.testing.assert_close(method.program.module()(images), theirs(images))
    eager = make_eager("net", f"timm:{folder}").methods["forward"]
    torch.testing.assert_close(eager(pixel_values=images), theirs(images))


def test_weights_in_half_precision_are_loaded_as_float32(timm: Any, folder: Path) -> None:
    timm.models.save_for_hf(model_in(folder).module.inner.bfloat16(), folder, safe_serialization=True)
    found = model_in(folder).module
    assert {parameter.dtype for parameter in found.parameters()} == {torch.float32}
    assert not found.training


def test_the_class_that_loads_weights_is_as_before(timm: Any, folder: Path) -> None:
    plain = torch.nn.Module.load_state_dict
    model_in(folder)
    assert torch.nn.Module.load_state_dict is plain


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_vit", {"img_size": 96}),
        ("test_vit", {"img_size": [80, 112], "in_chans": 1}),
        ("test_vit", {"dynamic_img_size": True}),
        ("test_convnext", {"in_chans": 5}),
        ("test_efficientnet", {"num_classes": 0}),
    ],
)
def test_the_size_of_images_is_timm_s(name: str, options: dict[str, Any], timm: Any, tmp_path: Path) -> None:
    made = timm.create_model(name, **options).eval()
    timm.models.save_for_hf(made, tmp_path, safe_serialization=True)
    theirs = timm.data.resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path}", pretrained=True))
    assert image_size(json.loads((tmp_path / "config.json").read_text())) == tuple(theirs["input_size"])
    found = model_in(tmp_path)
    (images,) = found.methods["forward"].args
    torch.testing.assert_close(found.module(images), made(images))


def test_the_labels_are_those_that_were_saved(saved: Path) -> None:
    assert read_labels("net", {"config.json": saved / "config.json"})[5:] == ("class 5", "class 6")
