"""Images as inputs of packaged models: as the image processors of transformers read them, or a clear error."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.runtime.image_defaults import DEFAULTS
from hatch_lower.runtime.image_patches import inputs_of_images
from hatch_lower.runtime.images import PLAIN, ImageReader, image_reader
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.numpy_arrays import NumpyArrays

MODULES = {
    "ChineseCLIP": "chinese_clip",
    "MobileNetV1": "mobilenet_v1",
    "MobileNetV2": "mobilenet_v2",
    "Qwen2VL": "qwen2_vl",
}
CONFIG = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 8, "width": 6},
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@pytest.fixture(autouse=True)
def pillow() -> Any:
    return pytest.importorskip("PIL.Image")


def pictures(pillow: Any) -> list[Any]:
    values = numpy.random.default_rng(0)
    sizes = ((30, 41), (97, 64), (33, 120))
    return [pillow.fromarray(values.integers(0, 256, (*size, 3), dtype=numpy.uint8)) for size in sizes]


def reader(folder: Path, **config: Any) -> ImageReader:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**CONFIG, **config}))
    return image_reader("net", {path.name: path})


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if kind != "BEiT"])
@pytest.mark.parametrize(
    "options",
    [{}, {"do_center_crop": True, "crop_size": {"height": 50, "width": 71}}, {"size": {"shortest_edge": 60}}],
    ids=["default", "crop", "shortest edge"],
)
def test_pixels_are_those_of_transformers(kind: str, options: Mapping[str, Any], tmp_path: Path, pillow: Any) -> None:
    pytest.importorskip("transformers")
    name = MODULES.get(kind, kind.lower())
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    theirs = getattr(module, f"{kind}ImageProcessorPil")(**options)
    theirs.save_pretrained(tmp_path)
    own = image_reader("net", {path.name: path for path in tmp_path.iterdir()})
    for picture in pictures(pillow):
        wanted = theirs(picture, return_tensors="np")["pixel_values"]
        assert (own.read([picture]) == wanted).all()


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_missing_member_has_the_value_of_the_class(kind: str) -> None:
    pytest.importorskip("transformers")
    name = MODULES.get(kind, kind.lower())
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    theirs = getattr(module, f"{kind}ImageProcessorPil")
    for member, value in DEFAULTS[kind].items():
        wanted = getattr(theirs, member)
        is_side = member == "crop_size"
        assert (value if not is_side else {"height": value, "width": value}) == (
            tuple(wanted) if isinstance(wanted, list) else wanted
        ), member
    steps = [name for name in vars(theirs) if name.startswith("do_") and getattr(theirs, name)]
    assert sorted(steps) == sorted(member for member in steps if DEFAULTS[kind].get(member))


@pytest.mark.parametrize("kind", ["Beit", "CLIP", "ConvNext", "Gemma3", "MobileNetV2", "Segformer", "Siglip"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": 40, "crop_size": [21, 33]},
        {"size": 40, "default_to_square": True, "image_mean": 0.25, "image_std": 2, "resample": 1},
        {"do_resize": None, "do_center_crop": None, "do_rescale": None, "image_std": [0.1, 0.2, 0.3]},
        {"do_normalize": None, "do_center_crop": True, "crop_size": 30, "size": {"shortest_edge": 50}},
        {"size": {"shortest_edge": 390}, "crop_pct": None, "do_center_crop": False, "do_normalize": False},
        {"size": 30, "use_square_size": True},
    ],
)
def test_a_configuration_is_read_as_transformers_reads_it(
    kind: str, config: Mapping[str, Any], tmp_path: Path, pillow: Any
) -> None:
    pytest.importorskip("transformers")
    name = MODULES.get(kind, kind.lower())
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    picture = pictures(pillow)[1]
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({"image_processor_type": f"{kind}ImageProcessor", **config}))
    try:
        wanted = getattr(module, f"{kind}ImageProcessorPil").from_dict(dict(config))(picture, return_tensors="np")
    except (AttributeError, TypeError, ValueError):
        with pytest.raises(ProgramError):
            image_reader("net", {path.name: path})
        return
    numpy.testing.assert_array_equal(image_reader("net", {path.name: path}).read([picture]), wanted["pixel_values"])


def test_an_image_is_a_file_or_an_array_or_an_image_of_pillow(tmp_path: Path, pillow: Any) -> None:
    picture = pictures(pillow)[0]
    picture.save(tmp_path / "picture.png")
    own = reader(tmp_path)
    found = own.read([picture, tmp_path / "picture.png", str(tmp_path / "picture.png"), numpy.array(picture)])
    assert found.shape == (4, 3, 8, 6)
    assert found.dtype == numpy.float32
    assert (found == found[:1]).all()
    grey = own.read([numpy.array(picture.convert("L")), picture.convert("L"), numpy.array(picture)[:, :, :1]])
    assert (grey[:2] == grey[:1]).all()


def test_transparency_is_white_as_in_transformers(tmp_path: Path, pillow: Any) -> None:
    pytest.importorskip("transformers")
    module = importlib.import_module("transformers.models.clip.image_processing_pil_clip")
    theirs = module.CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20})
    theirs.save_pretrained(tmp_path)
    own = image_reader("net", {path.name: path for path in tmp_path.iterdir()})
    values = numpy.random.default_rng(0).integers(0, 256, (30, 41, 4), dtype=numpy.uint8)
    clear = pillow.fromarray(values)
    palette = pictures(pillow)[0].convert("P")
    palette.info["transparency"] = 3
    for picture in (clear, clear.convert("LA"), palette):
        assert (own.read([picture]) == theirs(picture, return_tensors="np")["pixel_values"]).all()
    assert (own.read([values]) == own.read([clear])).all()


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("kind", ["CLIP", "ViT", "Qwen2VL"])
def test_files_and_arrays_are_read_as_transformers_reads_them(kind: str, tmp_path: Path, pillow: Any) -> None:
    pytest.importorskip("transformers")
    name = MODULES.get(kind, kind.lower())
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    theirs = getattr(module, f"{kind}ImageProcessorPil")()
    theirs.save_pretrained(tmp_path)
    assets = {path.name: path for path in tmp_path.iterdir()}
    picture = pictures(pillow)[0]
    turned = pillow.Exif()
    turned[0x0112] = 6
    picture.save(tmp_path / "turned.jpg", exif=turned)
    values = numpy.random.default_rng(0).integers(0, 256, (30, 41, 4), dtype=numpy.uint8)
    pillow.fromarray(values).save(tmp_path / "clear.png")
    picture.convert("P").save(tmp_path / "palette.png", transparency=bytes(range(200)))
    marked = picture.copy()
    marked.info["transparency"] = picture.getpixel((0, 0))
    files = [str(tmp_path / name) for name in ("turned.jpg", "clear.png", "palette.png")]
    with pillow.open(files[0]) as opened:
        given = [*files, opened, marked, *([] if kind == "ViT" else [values, values[:, :, :1]])]
        for each in given:
            found = inputs_of_images("net", assets, [each])["pixel_values"]
            numpy.testing.assert_array_equal(found, theirs(each, return_tensors="np")["pixel_values"])


def test_an_image_in_other_colours_is_converted_or_refused(tmp_path: Path, pillow: Any) -> None:
    other = pictures(pillow)[0].convert("YCbCr")
    with pytest.raises(InputError, match="an image must be in red, green and blue") as error:
        reader(tmp_path).read([other])
    assert error.value.found == "mode `YCbCr`"
    found = reader(tmp_path, do_convert_rgb=True).read([other, other.convert("RGB")])
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("shape", [(3, 8, 3), (1, 5, 3), (4, 9, 1)])
def test_an_array_whose_channels_could_be_first_or_last_is_refused(shape: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the first and the last dimension of an image could both be its channels"):
        reader(tmp_path).read([numpy.zeros(shape, numpy.uint8)])


def test_images_and_texts_make_the_arguments_of_a_method(tmp_path: Path, pillow: Any) -> None:
    reader(tmp_path)
    runnable: Any = SimpleNamespace(methods={"forward": lambda pixel_values: pixel_values}, arrays=NumpyArrays())
    path = tmp_path / "preprocessor_config.json"
    model = LoadedModel(runnable, SimpleNamespace(name="net", assets={path.name: path}))  # type: ignore[arg-type]
    picture = pictures(pillow)[0]
    assert model(**model.preprocess(images=picture)).shape == (1, 3, 8, 6)
    assert model(**model.preprocess(images=[picture, picture])).shape == (2, 3, 8, 6)


def test_a_processor_of_texts_and_images_has_the_configuration_in_its_own(tmp_path: Path, pillow: Any) -> None:
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({"image_processor": CONFIG, "processor_class": "CLIPProcessor"}))
    assert image_reader("net", {path.name: path}).read([pictures(pillow)[0]]).shape == (1, 3, 8, 6)
    other = tmp_path / "preprocessor_config.json"
    other.write_text(json.dumps({**CONFIG, "size": 3}))
    both = {each.name: each for each in (path, other)}
    assert image_reader("net", both).read([pictures(pillow)[0]]).shape == (1, 3, 8, 6), "as transformers reads them"
    path.write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert image_reader("net", both).read([pictures(pillow)[0]]).shape == (1, 3, 3, 3)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "has steps that need transformers"),
        ({"image_processor_type": 3}, "has steps that need transformers"),
        ({"do_pad": True}, "has steps that need transformers"),
        ({"size": "large"}, "a packaged configuration cannot be used"),
        ({"size": {"longest_edge": 8}}, "a packaged configuration cannot be used"),
        ({"size": {"height": 0, "width": 8}}, "a packaged configuration cannot be used"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "a packaged configuration cannot be used"),
        ({"resample": 9}, "a packaged configuration cannot be used"),
        ({"image_std": [0.5]}, "a packaged configuration cannot be used"),
        ({"image_mean": None}, "a packaged configuration cannot be used"),
    ],
)
def test_an_unknown_configuration_is_refused(config: Mapping[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramError) as error:
        reader(tmp_path, **config)
    assert what in error.value.what
    assert error.value.hint


def test_a_wrong_image_is_refused(tmp_path: Path, pillow: Any) -> None:
    own = reader(tmp_path)
    (tmp_path / "text.png").write_text("no image")
    pictures(pillow)[0].save(tmp_path / "whole.png")
    (tmp_path / "part.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    for wrong in (
        numpy.zeros((3, 8, 8), numpy.uint8),
        numpy.zeros((8, 8, 3)),
        tmp_path / "text.png",
        tmp_path / "part.png",
        3,
    ):
        with pytest.raises(InputError):
            own.read([wrong])
    with pytest.raises(InputError, match="there is no image"):
        own.read([])
    with pytest.raises(InputError, match="images of one call must have the same size"):
        reader(tmp_path, do_resize=False).read(pictures(pillow))
