"""Language models with Pixtral as their reader of images: tokens are those of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from support.generators import loaded

from hatch_lower.errors import EntryPointError, InputError
from hatch_lower.events import NullReporter
from hatch_lower.huggingface import generator
from hatch_lower.pipeline.capture import capture_model

pytest.importorskip("transformers.exporters")

from hatch_lower.huggingface import pixtral

IMAGE = 98  # token
WIDTH = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"model_type": "mistral", "vocab_size": 99, "hidden_size": 32, "head_dim": 8, **WIDTH}
TEXT |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": None}
VISION = {"model_type": "pixtral", "hidden_size": 32, "head_dim": 8, "image_size": 16, "patch_size": 2, **WIDTH}
NETS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {  # with the side of a place in pixels
    "Mistral 3": ("Mistral3", 4, {"spatial_merge_size": 2}),
    "Mistral 3 of an inner layer": ("Mistral3", 4, {"spatial_merge_size": 2, "vision_feature_layer": -2}),
    "Pixtral": ("Llava", 2, {"vision_feature_select_strategy": "full", "vision_feature_layer": -1}),
    "Pixtral of several layers": (
        "Llava",
        2,
        {"vision_feature_select_strategy": "full", "vision_feature_layer": [0, -1]},
    ),
}
OPTIONS = {"max_new_tokens": 12, "eos_token_id": [], "pad_token_id": 0}


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("transformers.exporters")
    return pytest.importorskip("transformers")


def pixtral_model(transformers: Any, name: str) -> Any:
    """Return a model with large random weights, whose tokens depend on the images."""
    torch.manual_seed(0)
    kind, _, more = NETS[name]
    config = getattr(transformers, f"{kind}Config")(
        text_config=TEXT, vision_config=VISION, image_token_id=IMAGE, **more
    )
    module = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    return module


def processed(name: str, prompts: Sequence[Sequence[tuple[int, int]]]) -> dict[str, torch.Tensor]:
    """Return prompts with images, whose sides are numbers of places, as a processor returns them."""
    torch.manual_seed(1)
    side = NETS[name][1]
    rows = []
    for images in prompts:
        row = torch.randint(3, 90, (2,)).tolist()
        for height, width in images:
            for _ in range(height):
                row += [IMAGE] * width + [95]  # the end of a line
            row += torch.randint(3, 90, (3,)).tolist()
        rows.append(row)
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    given = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    if sizes := [[side * height, side * width] for images in prompts for height, width in images]:
        given["image_sizes"] = torch.tensor(sizes)
        # with numbers beyond the smaller images, which a processor sets to zero
        given["pixel_values"] = torch.randn(len(sizes), 3, *given["image_sizes"].amax(0).tolist())
    return given


@pytest.mark.parametrize("name", NETS)
def test_tokens_after_images_of_pixtral_are_those_of_transformers(name: str, transformers: Any) -> None:
    module = pixtral_model(transformers, name)
    model = loaded(generator(module))
    for prompts in ([[(3, 5)]], [[(1, 1), (6, 2)]], [[(5, 4)], [(2, 7), (1, 3)]], [[], [(2, 2)]], [[], []]):
        given = processed(name, prompts)
        wanted = module.generate(**given, **OPTIONS, do_sample=False)
        assert torch.equal(model.generate(**given, **OPTIONS), wanted), prompts


@pytest.mark.parametrize("name", ["Mistral 3", "Pixtral"])
def test_sizes_of_pixtral_are_dynamic(name: str, transformers: Any) -> None:
    made = generator(pixtral_model(transformers, name))
    methods = {each.name: each.program for each in capture_model("net", made, NullReporter()).methods}
    assert sorted(methods) == ["decode", "embed", "encode_image", "start"]
    module: Any = made.module
    for places in (1, 21):
        patches = NETS[name][1] ** 2 // 4
        given = {"pixel_values": torch.randn(places, patches, 12), "patch_positions": torch.rand(places, patches, 2)}
        found = methods["encode_image"].module()(**given)
        torch.testing.assert_close(found, module.encode_image(**given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrong", ["image_patches", "patch_positions"])
def test_wrong_patches_of_pixtral_are_found(wrong: str, transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = getattr(pixtral, wrong)
    monkeypatch.setattr(pixtral, wrong, lambda *given: computed(*given)[::-1].copy())
    with pytest.raises(EntryPointError, match="generation is not possible with `Mistral3"):
        generator(pixtral_model(transformers, "Mistral 3"))


@pytest.mark.parametrize(
    ("more", "message", "found"),
    [
        ({"image_sizes": None}, "the sizes of images must be positive integers", "nothing"),
        ({"image_sizes": torch.tensor([[12, -20]])}, "the sizes of images must be", "int64 of shape (1, 2)"),
        ({"image_sizes": torch.tensor([[12, 18]])}, "images must be float32 of shape (images, channels", "[(12, 18)]"),
        ({"image_sizes": torch.tensor([[16, 20]])}, "with sizes of multiples of 4", "(1, 3, 12, 20); sizes [(16, 20)]"),
        ({"pixel_values": None}, "the sizes of images must be", "int64 of shape (1, 2)"),
        ({"pixel_values": torch.zeros(1, 1, 3, 12, 20)}, "the sizes of images must be", "int64 of shape (1, 2)"),
        ({"image_sizes": torch.tensor([[4, 20]])}, "a prompt must have places", "1 images, and 15 tokens `98`"),
        ({"batch_num_images": torch.ones(1)}, "has no argument `batch_num_images`", ""),
    ],
)
def test_arguments_of_pixtral_are_checked(more: Mapping[str, Any], message: str, found: str, transformers: Any) -> None:
    model = loaded(generator(pixtral_model(transformers, "Mistral 3")))
    with pytest.raises(InputError) as error:
        model.generate(**{**processed("Mistral 3", [[(3, 5)]]), **more}, **OPTIONS)
    assert message in str(error.value)
    assert found in error.value.found
