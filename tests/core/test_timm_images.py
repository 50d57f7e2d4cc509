"""Images and labels of packaged models of timm: pixels as timm's own transform gives them, or a clear error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.timm_config import image_size, image_steps
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.numpy_arrays import NumpyArrays
from hatch_lower.runtime.timm_images import any_image_reader

IMAGES = {"input_size": [3, 24, 24], "mean": [0.5, 0.25, 0.125], "std": [0.5, 0.25, 0.5]}


@pytest.fixture(scope="module")
def timm() -> Any:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # a torchvision for another torch raises `RuntimeError`
        pytest.skip(f"timm with torchvision is not installed: {error}")
    return timm


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"architecture": "a"}, (3, 224, 224)),
        ({"architecture": "a", "input_size": [3, 8, 9]}, (3, 8, 9)),  # before `pretrained_cfg`
        ({"pretrained_cfg": {"input_size": [3, 8, 9]}, "model_args": {"in_chans": 1, "img_size": 7}}, (1, 8, 9)),
        ({"pretrained_cfg": {"fixed_input_size": True}, "model_args": {"img_size": 7}}, (3, 7, 7)),
        ({"pretrained_cfg": {"fixed_input_size": True}, "model_args": {"img_size": [7, 8]}}, (3, 7, 8)),
        (
            {"pretrained_cfg": {"fixed_input_size": True}, "model_args": {"img_size": 7, "dynamic_img_size": True}},
            (3, 224, 224),
        ),
    ],
)
def test_the_arguments_of_the_model_decide_the_size(config: Mapping[str, Any], size: tuple[int, ...]) -> None:
    assert image_size(config) == size


# Images


def packaged(folder: Path, **pretrained: Any) -> Mapping[str, Path]:
    path = folder / "config.json"
    path.write_text(json.dumps({"architecture": "test_resnet", "pretrained_cfg": {**IMAGES, **pretrained}}))
    return {path.name: path}


def pictures(mode: str = "RGB") -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    values = numpy.random.default_rng(0)
    sizes = ((30, 41), (97, 64), (33, 120), (5, 3))
    return [image.fromarray(values.integers(0, 256, (*size, 3), dtype=numpy.uint8)).convert(mode) for size in sizes]


@pytest.mark.parametrize("crop", ["center", "border", "squash"])
@pytest.mark.parametrize("size", [[3, 32, 32], [3, 37, 60], [1, 48, 31]])
@pytest.mark.parametrize(("share", "filter_name"), [(0.875, "bicubic"), (1.0, "bilinear"), (1.1, "lanczos")])
def test_pixels_are_those_of_timm(
    crop: str, size: list[int], share: float, filter_name: str, timm: Any, tmp_path: Path
) -> None:
    values = {"mean": [0.485, 0.456, 0.406][: size[0]], "std": [0.229, 0.224, 0.225][: size[0]]}
    config = {"input_size": size, "crop_pct": share, "crop_mode": crop, "interpolation": filter_name, **values}
    theirs = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=config), is_training=False)
    own = any_image_reader("net", packaged(tmp_path, **config))
    for picture in pictures("L" if size[0] == 1 else "RGB"):
        assert (own.read([picture]) == theirs(picture).numpy()).all()


@pytest.mark.parametrize(
    ("crop", "row"),
    [
        ("center", [1, 1, 1, 1]),
        ("squash", [0, 1, 1, 0]),
        ("border", [0, 1, 1, 0]),
    ],
)
def test_crops_keep_the_middle_the_whole_or_a_border(crop: str, row: list[float], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    wide = numpy.zeros((4, 8, 3), numpy.uint8)
    wide[:, 2:6] = 255
    options = {"input_size": [3, 4, 4], "crop_pct": 1, "crop_mode": crop, "interpolation": "nearest"}
    reader = any_image_reader("net", packaged(tmp_path, mean=[0, 0, 0], std=[1, 1, 1], **options))
    found = reader.read([image.fromarray(wide)])
    assert found.shape == (1, 3, 4, 4)
    assert found.dtype == numpy.float32
    assert found[0, 0, 2].tolist() == row
    assert found[0, :, 0].max() == (0 if crop == "border" else 1)


def test_a_border_has_the_color_of_the_mean(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    reader = any_image_reader("net", packaged(tmp_path, crop_mode="border", crop_pct=1))
    found = reader.read([image.new("RGB", (80, 20), "white")])[0]
    assert abs(found[:, 0]).max() < 0.01
    assert found[:, 12].min() == 1


def test_images_are_the_argument_of_the_method(tmp_path: Path) -> None:
    runnable: Any = SimpleNamespace(methods={"forward": lambda pixel_values: pixel_values}, arrays=NumpyArrays())
    model = LoadedModel(runnable, SimpleNamespace(name="net", assets=packaged(tmp_path)))  # type: ignore[arg-type]
    assert model(**model.preprocess(images=pictures()[0])).shape == (1, 3, 24, 24)
    assert model(**model.preprocess(images=pictures())).shape == (4, 3, 24, 24)
    with pytest.raises(InputError, match="there is no image"):
        model.preprocess(images=[])


@pytest.mark.parametrize(
    "pretrained",
    [
        {"input_size": [4, 24, 24]},
        {"input_size": [3, 24]},
        {"crop_mode": "random"},
        {"crop_pct": "all"},
        {"crop_pct": 0.01, "input_size": [3, 1000, 1000]},
        {"interpolation": "random"},
        {"interpolation": ["bicubic"]},
        {"mean": [0.5, 0.5]},
        {"mean": [10**400] * 3},
        {"std": [0.0, 0.5, 0.5]},
        {"std": float("nan")},
    ],
)
def test_unknown_steps_are_refused(pretrained: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="the images of model `net` have steps that need timm") as error:
        any_image_reader("net", packaged(tmp_path, **pretrained))
    assert error.value.found
    assert error.value.hint


def test_a_single_mean_is_for_all_channels() -> None:
    steps = image_steps({"pretrained_cfg": {"mean": [0.5], "std": 0.25}})
    assert (steps.mean, steps.deviation) == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


# Labels


@pytest.mark.parametrize(
    "config",
    [
        {"label_names": ["cat", "dog"]},
        {"label_names": {"1": "dog", "0": "cat"}},
        {"labels": ["cat", "dog"]},
        {"pretrained_cfg": {"label_names": ["cat", "dog"]}},
    ],
)
def test_labels_are_the_names_of_the_classes(config: Mapping[str, Any], tmp_path: Path) -> None:
    assert labels(tmp_path, config) == ("cat", "dog")


@pytest.mark.parametrize("config", [{}, {"label_names": {"1": "dog"}}, {"label_names": "cat"}, {"pretrained_cfg": 3}])
def test_a_checkpoint_without_labels_has_none(config: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="model `net` has no labels") as error:
        labels(tmp_path, config)
    assert error.value.found == "no `label_names` for each output"


def labels(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    path = folder / "config.json"
    path.write_text(json.dumps({"architecture": "test_resnet", **config}))
    model = LoadedModel(SimpleNamespace(methods={}), SimpleNamespace(name="net", assets={path.name: path}))  # type: ignore[arg-type]
    return model.labels
