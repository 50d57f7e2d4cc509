"""Language models whose images have sizes of their own: tokens, positions and texts are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from support.generators import loaded

from hatch_lower.errors import EntryPointError, InputError, ProgramError
from hatch_lower.events import NullReporter
from hatch_lower.format.grids import token_positions
from hatch_lower.huggingface import as_pretrained, generator
from hatch_lower.pipeline.capture import capture_model

pytest.importorskip("transformers.exporters")

from hatch_lower.huggingface import deep_images, sized_images

IMAGE = 98  # token
TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2}
TEXT |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
TOKENS = {"image_token_id": IMAGE, "video_token_id": 95, "vision_start_token_id": 97, "vision_end_token_id": 96}
VISION = {"num_heads": 2, "patch_size": 2}
NETS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2VL": {**VISION, "depth": 2, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
    # windows of 2 x 2 places in all layers but one
    "Qwen2_5_VL": {
        **VISION,
        "depth": 3,
        "hidden_size": 16,
        "intermediate_size": 24,
        "out_hidden_size": 32,
        "window_size": 8,
        "fullatt_block_indexes": [1],
    },
    # features for the first two layers of the language model, too
    "Qwen3VL": {
        **VISION,
        "depth": 3,
        "hidden_size": 16,
        "intermediate_size": 24,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
    },
}
PIXELS = 3 * 2 * 2 * 2  # of a patch
OPTIONS = {"max_new_tokens": 12, "eos_token_id": [], "pad_token_id": 0}
# of each row: numbers of tokens of texts, and sides of images in places
PROMPTS: Mapping[str, Sequence[Sequence[Any]]] = {
    "an image between texts": [[3, (3, 5), 4]],
    "an image first": [[(5, 3), 4]],
    "an image last": [[4, (3, 5)]],
    "images of several sizes": [[2, (1, 1), 3, (6, 2), 4]],
    "rows with padding": [[2, (5, 4), 3], [1, (2, 7), 2, (1, 3), 9]],
    "a row without an image": [[5], [1, (2, 7), 2]],
    "no image": [[5], [9]],
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("transformers.exporters")
    return pytest.importorskip("transformers")


def sized_model(transformers: Any, kind: str) -> Any:
    """Return a model with large random weights, whose tokens depend on the images."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(text_config=TEXT, vision_config=NETS[kind], **TOKENS)
    module = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2 if parameter.dim() > 1 else 1)
    return module


def processed(prompts: Sequence[Sequence[Any]]) -> dict[str, torch.Tensor]:
    """Return random prompts as a processor returns them, padded on the left."""
    torch.manual_seed(1)
    rows: list[list[int]] = []
    grids = []
    for prompt in prompts:
        row: list[int] = []
        for part in prompt:
            if isinstance(part, int):
                row += torch.randint(3, 90, (part,)).tolist()
            else:
                row += [IMAGE] * (part[0] * part[1])
                grids.append([1, 2 * part[0], 2 * part[1]])
        rows.append(row)
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    found = {"input_ids": ids, "attention_mask": (ids > 0).long(), "mm_token_type_ids": (ids == IMAGE).int()}
    if grids:
        found["image_grid_thw"] = torch.tensor(grids)
        found["pixel_values"] = torch.randn(int(found["image_grid_thw"].prod(1).sum()), PIXELS)
    return found


@pytest.mark.parametrize("kind", NETS)
def test_tokens_after_images_of_sizes_are_those_of_transformers(kind: str, transformers: Any) -> None:
    module = sized_model(transformers, kind)
    model = loaded(generator(module))
    for name, prompts in PROMPTS.items():
        given = processed(prompts)
        wanted = module.generate(**given, **OPTIONS, do_sample=False)
        assert torch.equal(model.generate(**given, **OPTIONS), wanted), name
        del given["mm_token_type_ids"]  # transformers needs them for three positions
        assert torch.equal(model.generate(**given, **OPTIONS), wanted), name


@pytest.mark.parametrize("kind", NETS)
def test_positions_of_tokens_are_those_of_transformers(kind: str, transformers: Any) -> None:
    given = processed(PROMPTS["rows with padding"])
    del given["pixel_values"]
    wanted, _ = sized_model(transformers, kind).model.get_rope_index(**given)
    sides = [(int(height) // 2, int(width) // 2) for _, height, width in given["image_grid_thw"]]
    visible = given["attention_mask"].bool().numpy()
    assert (token_positions(given["input_ids"].numpy(), visible, IMAGE, sides) == wanted.numpy()).all()


@pytest.mark.parametrize("kind", NETS)
def test_sizes_of_images_are_dynamic(kind: str, transformers: Any) -> None:
    made = generator(sized_model(transformers, kind))
    methods = {each.name: each for each in capture_model("net", made, NullReporter()).methods}
    assert sorted(methods) == ["decode", "embed", "encode_image", "start"]
    program, module = methods["encode_image"].program, made.module
    for sides in ((1, 1), (3, 7)):
        image = module.image_input(sides, PIXELS)  # type: ignore[operator]
        grid = torch.tensor([[1, 2 * sides[0], 2 * sides[1]]])
        (wanted,) = module.model.get_image_features(  # type: ignore[union-attr, operator]
            image["pixel_values"].flatten(0, 1), grid, return_dict=True
        ).pooler_output
        found = program.module()(**image)[:, : wanted.shape[1]]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("same_window", lambda sides, window: torch.ones(20, 20, dtype=torch.bool).numpy()),
        (
            "token_positions",
            lambda ids, visible, token, sides: torch.arange(ids.shape[1]).float().expand(3, 2, -1).numpy(),
        ),
        ("patch_positions", lambda sides, merge: torch.arange(160.0).reshape(20, 4, 2).numpy()),
    ],
)
def test_wrong_numbers_of_a_grid_are_found(
    name: str, wrong: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sized_images, name, wrong)
    with pytest.raises(EntryPointError, match="generation is not possible with `Qwen2_5_VLForConditionalGeneration`"):
        generator(sized_model(transformers, "Qwen2_5_VL"))


def test_wrong_weights_of_a_table_are_found(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = deep_images.table_weights
    monkeypatch.setattr(deep_images, "table_weights", lambda *given: computed(*given)[::-1].copy())
    with pytest.raises(EntryPointError, match="generation is not possible with `Qwen3VLForConditionalGeneration`"):
        generator(sized_model(transformers, "Qwen3VL"))


@pytest.mark.parametrize(
    ("more", "message", "found"),
    [
        ({"image_grid_thw": None}, "the grid of an image must be 1, and two multiples of 2", "nothing"),
        ({"image_grid_thw": torch.tensor([[2, 6, 10]])}, "the grid of an image must be 1", "[2, 6, 10]"),
        ({"image_grid_thw": torch.tensor([[1, 5, 12]])}, "the grid of an image must be 1", "[1, 5, 12]"),
        ({"image_grid_thw": torch.tensor([[1, 0, 12]])}, "the grid of an image must be 1", "[1, 0, 12]"),
        ({"image_grid_thw": torch.ones(1, 2)}, "the grid of an image must be 1", "float32 of shape (1, 2)"),
        ({"pixel_values": None}, "pixels must be float32 of shape (patches of all images", "nothing"),
        ({"pixel_values": torch.zeros(59, PIXELS)}, "pixels must be float32", "float32 of shape (59, 24)"),
        ({"pixel_values": torch.zeros(60, 3, 8)}, "pixels must be float32", "float32 of shape (60, 3, 8)"),
        ({"mm_token_type_ids": torch.zeros(1, 22)}, "the kinds of the tokens are not those", "other numbers"),
        ({"pixel_attention_mask": torch.ones(1, 6, 10)}, "has no argument `pixel_attention_mask`", ""),
        ({"pixel_values_videos": torch.ones(1)}, "has no argument `pixel_values_videos`", ""),
    ],
)
def test_arguments_of_sized_images_are_checked(
    more: Mapping[str, Any], message: str, found: str, transformers: Any
) -> None:
    model = loaded(generator(sized_model(transformers, "Qwen2VL")))
    with pytest.raises(InputError) as error:
        model.generate(**{**processed(PROMPTS["an image between texts"]), **more}, **OPTIONS)
    assert message in str(error.value)
    assert found in error.value.found


def test_tokens_of_an_image_are_side_by_side(transformers: Any) -> None:
    model, given = loaded(generator(sized_model(transformers, "Qwen2VL"))), processed([[3, (3, 5), 4]])
    given["input_ids"][0, 0], given["input_ids"][0, 8] = IMAGE, 5
    del given["mm_token_type_ids"]
    with pytest.raises(InputError) as error:
        model.generate(**given, **OPTIONS)
    assert str(error.value) == (
        "the tokens of an image must be side by side\n"
        "  where: `input_ids`\n"
        "  found: an image of 3 x 5 tokens at token 0 of row 0\n"
        "  to do: give the prompts and the images of one call of the processor"
    )


def test_sized_images_of_another_number_are_refused(transformers: Any) -> None:
    model, given = loaded(generator(sized_model(transformers, "Qwen2VL"))), processed([[3, (3, 5), 4]])
    given["input_ids"][0, 0] = IMAGE
    with pytest.raises(InputError, match="a prompt must have places") as error:
        model.generate(**given, **OPTIONS)
    assert error.value.found == "1 images, and 16 tokens `98` in the prompts"


def test_a_model_with_sized_images_has_no_beams(transformers: Any, tmp_path: Path) -> None:
    module = sized_model(transformers, "Qwen2VL")
    module.config.save_pretrained(tmp_path)
    with pytest.raises(ProgramError, match="cannot become a model of transformers") as error:
        as_pretrained(loaded(generator(module), {"config.json": tmp_path / "config.json"}))
    assert error.value.found == "images of different sizes"


SIZES = {"size": {"shortest_edge": 48, "longest_edge": 160}, "patch_size": 2}
MARK = "<image>"


@pytest.fixture
def folder(transformers: Any, tmp_path: Path) -> Path:
    """Write the configurations of a model, of a small tokenizer and of an image processor."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("PIL")
    words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(2, IMAGE)), MARK]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([MARK])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", padding_side="left")
    fast.save_pretrained(tmp_path)
    images = transformers.Qwen2VLImageProcessorPil(**SIZES).to_dict()
    written = {**images, "processor_class": "Qwen2_5_VLProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(written))
    sized_model(transformers, "Qwen2VL").config.save_pretrained(tmp_path)
    return tmp_path


def files_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir()}


def picture(height: int, width: int) -> Any:
    return numpy.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=numpy.uint8)


def transparent(image: Any) -> Any:
    pillow = pytest.importorskip("PIL.Image")
    found = pillow.fromarray(image)
    found.putalpha(100)
    return found


def test_texts_with_sized_images_are_those_of_the_processor(transformers: Any, folder: Path) -> None:
    # images in the range of sizes, too large, and too small
    pictures = [picture(12, 11), picture(40, 31), transparent(picture(5, 6))]
    module = sized_model(transformers, "Qwen2VL")
    model = loaded(generator(module), files_in(folder))
    texts = [f"w5 {MARK} w6 w7 {MARK}", f"{MARK} w8"]
    given = model.preprocess(texts, images=pictures)
    assert sorted(given) == ["attention_mask", "image_grid_thw", "input_ids", "pixel_values"]
    images = transformers.Qwen2VLImageProcessorPil(**SIZES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # transformers' processor without the part for videos, which needs torchvision
    processor = SimpleNamespace(image_processor=images, image_token=MARK)
    wanted = images(pictures, return_tensors="pt")
    replaced = transformers.Qwen2_5_VLProcessor.replace_image_token
    places = [replaced(processor, wanted, index) for index in range(3)]
    filled = [texts[0].replace(MARK, "{}").format(*places[:2]), texts[1].replace(MARK, places[2])]
    wanted |= tokenizer(filled, return_tensors="pt", padding=True)
    assert len(set(map(len, places))) == 3
    for name, value in given.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6)
    kinds = {"mm_token_type_ids": (given["input_ids"] == IMAGE).int()}
    expected = module.generate(**given, **kinds, **OPTIONS, do_sample=False)
    assert torch.equal(model.generate(**given, **kinds, **OPTIONS), expected)


@pytest.mark.parametrize("options", [{}, {"min_pixels": 48, "max_pixels": 160}, {"do_normalize": False}])
def test_sizes_of_older_configurations_are_read(options: Mapping[str, Any], transformers: Any, folder: Path) -> None:
    path = folder / "preprocessor_config.json"
    written = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 2, **options}
    mean = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "processor_class": "Qwen2VLProcessor"}
    path.write_text(json.dumps({**written, **mean}))
    model = loaded(generator(sized_model(transformers, "Qwen2VL")), files_in(folder))
    given = model.preprocess(MARK, images=picture(40, 31))
    wanted = transformers.Qwen2VLImageProcessorPil.from_pretrained(folder)([picture(40, 31)], return_tensors="pt")
    for name in ("pixel_values", "image_grid_thw"):
        torch.testing.assert_close(given[name], wanted[name], rtol=0, atol=1e-6)


def test_a_steep_image_is_refused(transformers: Any, folder: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    model = loaded(generator(sized_model(transformers, "Qwen2VL")), files_in(folder))
    with pytest.raises(InputError) as error:
        model.preprocess(MARK, images=pillow.fromarray(picture(1, 201)))
    assert str(error.value) == (
        "the sides of an image must not differ by a factor above 200\n"
        "  where: model `net`\n"
        "  found: 1x201\n"
        "  to do: give parts of the image"
    )


@pytest.mark.parametrize("wrong", [{"do_resize": False}, {"patch_size": 0}, {"size": {"longest_edge": "16"}}])
def test_a_wrong_configuration_of_patches_is_refused(wrong: Mapping[str, Any], transformers: Any, folder: Path) -> None:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    model = loaded(generator(sized_model(transformers, "Qwen2VL")), files_in(folder))
    with pytest.raises(ProgramError, match="a packaged configuration cannot be used"):
        model.preprocess(MARK, images=picture(9, 9))
