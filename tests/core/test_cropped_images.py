"""Language models whose images are crops: tokens and features are those of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pytest
import torch
from support.generators import loaded

from hatch_lower.errors import EntryPointError, InputError
from hatch_lower.events import NullReporter
from hatch_lower.format.crops import Crops, best_resolution
from hatch_lower.huggingface import generator
from hatch_lower.pipeline.capture import capture_model

pytest.importorskip("transformers.exporters")

from hatch_lower.huggingface import cropped_images

IMAGE = 98  # token
TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT |= {"num_key_value_heads": 2, "max_position_embeddings": 512}
VISION = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
VISION |= {"image_size": 16, "patch_size": 4}
GRIDS = [[16, 32], [32, 16], [32, 32], [16, 48], [48, 16]]  # resolutions
CLIP, SIGLIP = ({"model_type": f"{kind}_vision_model", **VISION} for kind in ("clip", "siglip"))
QWEN = {"text_config": {"model_type": "qwen2", **TEXT}, "vision_config": SIGLIP, "video_token_id": 95}
NETS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "with a class": ("LlavaNext", {"text_config": {"model_type": "llama", **TEXT}, "vision_config": CLIP}),
    "of several layers": (
        "LlavaNext",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": SIGLIP,
            "vision_feature_select_strategy": "full",
            "vision_feature_layer": [-1, -2],
        },
    ),
    "with all features": ("LlavaOnevision", {**QWEN, "vision_aspect_ratio": "anyres_max_9"}),
    "with fewer features": ("LlavaOnevision", {**QWEN, "vision_aspect_ratio": "anyres_max_2"}),
}
OPTIONS = {"max_new_tokens": 12, "eos_token_id": [], "pad_token_id": 0}
SIZES = [(20, 30), (31, 10), (40, 44), (5, 60)]  # of images


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("transformers.exporters")
    pytest.importorskip("PIL")
    return pytest.importorskip("transformers")


def cropped_model(transformers: Any, name: str) -> Any:
    """Return a model with large random weights, whose tokens depend on the images."""
    torch.manual_seed(0)
    kind, config = NETS[name]
    made = getattr(transformers, f"{kind}Config")(**config, image_token_id=IMAGE, image_grid_pinpoints=GRIDS)
    module = transformers.AutoModelForImageTextToText.from_config(made).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
        module.model.image_newline.normal_()
    return module


def processed(transformers: Any, module: Any, images: Sequence[Sequence[tuple[int, int]]]) -> dict[str, torch.Tensor]:
    """Return prompts with images of sizes, padded on the left, as a processor returns them."""
    kind = type(module).__name__.removesuffix("ForConditionalGeneration")
    values = numpy.random.default_rng(0)
    pictures = [[values.integers(0, 256, (*size, 3), dtype=numpy.uint8) for size in row] for row in images]
    has_groups = kind == "LlavaOnevision"
    sides = {"height": 16, "width": 16}
    read = getattr(transformers, f"{kind}ImageProcessorPil")(
        size=sides if has_groups else {"shortest_edge": 16}, crop_size=sides, image_grid_pinpoints=GRIDS
    )
    given = dict(read(pictures if has_groups else [each for row in pictures for each in row], return_tensors="pt"))
    torch.manual_seed(1)
    with torch.no_grad():
        features = iter(module.get_image_features(**given, return_dict=True).pooler_output)
    rows = []
    for row in images:
        tokens = torch.randint(3, 90, (2,)).tolist()
        for _ in row:
            tokens += [IMAGE] * len(next(features)) + torch.randint(3, 90, (3,)).tolist()
        rows.append(tokens)
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), **given}


@pytest.mark.parametrize("name", NETS)
def test_tokens_after_crops_are_those_of_transformers(name: str, transformers: Any) -> None:
    module = cropped_model(transformers, name)
    model = loaded(generator(module))
    for images in ([SIZES[:1], SIZES[1:2]], [SIZES[2:3]], [SIZES[3:], SIZES[:2]], [SIZES[:3]]):
        given = processed(transformers, module, images)
        wanted = module.generate(**given, **OPTIONS, do_sample=False)
        assert torch.equal(model.generate(**given, **OPTIONS), wanted), images
    ids = torch.randint(3, 90, (2, 6))
    wanted = module.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **OPTIONS, do_sample=False)
    assert torch.equal(model.generate(ids, **OPTIONS), wanted)


@pytest.mark.parametrize("most", [0, 2])
def test_features_of_crops_are_those_of_transformers(most: int, transformers: Any) -> None:
    module = cropped_model(transformers, "with fewer features" if most else "with a class")
    crops = Crops(16, 4, [(height, width) for height, width in GRIDS], most)
    options = {"vision_aspect_ratio": "anyres_max_2"} if most else {"vision_feature_select_strategy": "full"}
    for size in [*SIZES, (1, 16), (16, 16), (16, 47), (300, 7)]:
        rows, columns = crops.grid(size)
        features, end = torch.randn(rows * columns + 1, 16, 5), torch.randn(5)
        (wanted,), _ = module.model.pack_image_features([features], torch.tensor([size]), image_newline=end, **options)
        given = torch.cat([features, end.expand(len(features), 1, 5)], 1)
        found = torch.from_numpy(crops.packed(given.numpy(), size))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_resolutions_are_those_of_transformers(transformers: Any) -> None:
    from transformers.image_processing_utils import select_best_resolution

    resolutions = [(height, width) for height in range(10, 60, 7) for width in range(10, 60, 7)]
    for size in [(height, width) for height in range(1, 90, 4) for width in range(1, 90, 4)]:
        assert best_resolution(size, resolutions) == (select_best_resolution(size, resolutions) or (10, 10))


def test_the_methods_of_a_model_with_crops_are_exported(transformers: Any) -> None:
    made = generator(cropped_model(transformers, "with all features"))
    methods = {each.name: each.program for each in capture_model("net", made, NullReporter()).methods}
    assert sorted(methods) == ["decode", "embed", "encode_image", "start"]


def test_other_features_of_crops_are_found(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.format.crops.without_borders", lambda features, size: features)
    with pytest.raises(EntryPointError) as error:
        generator(cropped_model(transformers, "with a class"))
    assert str(error.value) == (
        "the images of `LlavaNextForConditionalGeneration` cannot be exported for generation\n"
        "  where: its images\n"
        "  found: an image of 9x32 has other features than in transformers\n"
        "  to do: export its method `forward`: in an entry point, return `hatch_lower.huggingface.model(module,"
        " inputs={…}, dynamic_shapes={…})`, without `dynamic_shapes` for fixed sizes"
    )


def test_wrong_features_of_a_crop_are_found(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = cropped_images.CroppedImageGenerator.encode_image
    monkeypatch.setattr(cropped_images.CroppedImageGenerator, "encode_image", lambda self, crop: encode(self, -crop))
    with pytest.raises(EntryPointError, match="generation is not possible with `LlavaNext"):
        generator(cropped_model(transformers, "with a class"))


@pytest.mark.parametrize(
    ("more", "message", "found"),
    [
        ({"image_sizes": None}, "the sizes of images must be positive integers", "nothing"),
        ({"image_sizes": torch.tensor([[20, 0]])}, "the sizes of images must be", "int64 of shape (1, 2)"),
        ({"image_sizes": torch.tensor([[20, 30]] * 2)}, "the sizes of images must be", "int64 of shape (2, 2)"),
        (
            {"pixel_values": torch.zeros(1, 4, 3, 16, 16)},
            "pixels must be float32",
            "float32 of shape (1, 4, 3, 16, 16)",
        ),
        ({"pixel_values": None}, "the sizes of images must be", "int64 of shape (1, 2)"),
        ({"pixel_values": torch.zeros(1, 3, 16, 16)}, "the sizes of images must be", "int64 of shape (1, 2)"),
        ({"pixel_values": torch.zeros(1, 3, 3, 8, 16)}, "pixels must be float32", "(1, 3, 3, 8, 16)"),
        ({"batch_num_images": torch.tensor([2])}, "the numbers of images of each text must be 1 together", "[2]"),
        ({"batch_num_images": torch.ones(1)}, "the numbers of images of each text", "[1.0]"),
        ({"input_ids": torch.full((1, 9), IMAGE)}, "a prompt must have places", "1 images, and 9 tokens `98`"),
        ({"image_grid_thw": torch.ones(1, 3)}, "has no argument `image_grid_thw`", ""),
    ],
)
def test_arguments_of_crops_are_checked(more: Mapping[str, Any], message: str, found: str, transformers: Any) -> None:
    module = cropped_model(transformers, "with all features")
    given = {**processed(transformers, module, [SIZES[:1]]), **more}
    with pytest.raises(InputError) as error:
        loaded(generator(module)).generate(**{**given, "attention_mask": None}, **OPTIONS)
    assert message in str(error.value)
    assert found in error.value.found


def test_a_model_that_cuts_all_images_takes_no_groups(transformers: Any) -> None:
    module = cropped_model(transformers, "with a class")
    given = processed(transformers, module, [SIZES[:1]])
    with pytest.raises(InputError, match="the numbers of images of each text") as error:
        loaded(generator(module)).generate(**given, batch_num_images=torch.tensor([1]), **OPTIONS)
    assert error.value.found == "a model that cuts all images"
