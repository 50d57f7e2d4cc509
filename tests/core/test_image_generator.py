"""Language models that read images: tokens and texts are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support.generators import loaded

from hatch_lower.errors import EntryPointError, InputError, ProgramError
from hatch_lower.events import NullReporter
from hatch_lower.huggingface import as_pretrained, generator
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.runtime.loaded import LoadedModel

IMAGE, BEGIN, END = 98, 97, 96  # tokens
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 99, **WIDTH}
TEXT |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}
VISION = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
VISION |= {"image_size": 16, "patch_size": 4}
SIGLIP, LLAMA = {"model_type": "siglip_vision_model", **VISION}, {"model_type": "llama", **TEXT}
NETS: Mapping[str, Mapping[str, Any]] = {
    "Llava": {"vision_config": SIGLIP, "text_config": LLAMA, "vision_feature_select_strategy": "full"},
    "Gemma3": {
        "vision_config": VISION,
        "text_config": {**TEXT, "sliding_window": 6},
        "mm_tokens_per_image": 4,
        "boi_token_id": BEGIN,
        "eoi_token_id": END,
    },
    "PaliGemma": {
        "vision_config": {**SIGLIP, "projection_dim": 32, "vision_use_head": False},
        "text_config": {**TEXT, "model_type": "gemma"},
        "projection_dim": 32,
        "hidden_size": 32,
    },
    "SmolVLM": {"vision_config": VISION, "text_config": LLAMA, "scale_factor": 2},
    "InternVL": {
        "vision_config": {**VISION, "image_size": [16, 16], "patch_size": [4, 4]},
        "text_config": {**TEXT, "model_type": "qwen2"},
        "image_seq_length": 4,
    },
    "Blip2": {
        "vision_config": VISION,
        "qformer_config": {**WIDTH, "vocab_size": 99},
        "text_config": {**WIDTH, "model_type": "opt", "vocab_size": 99, "ffn_dim": 64, "word_embed_proj_dim": 32},
        "num_query_tokens": 4,
    },
}
PLACES = {"Llava": 16, "PaliGemma": 16}  # of an image; default: 4
OPTIONS = {"max_new_tokens": 12, "eos_token_id": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("transformers.exporters")
    return pytest.importorskip("transformers")


def image_model(transformers: Any, kind: str) -> Any:
    """Return a model with large random weights, whose tokens depend on the images."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**NETS[kind], image_token_id=IMAGE)
    module = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
        if kind == "Blip2":
            module.query_tokens.normal_()  # zeros in a new model
    return module


def prompts(kind: str) -> dict[str, torch.Tensor]:
    """Return three prompts with an image each, of different lengths, padded on the left."""
    places = PLACES.get(kind, 4)
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 90, (3, places + 7)), torch.ones(3, places + 7, dtype=torch.int64)
    for row in range(3):
        ids[row, :row], mask[row, :row] = 0, 0
        ids[row, row + 1 : row + 1 + places] = IMAGE
    pixels = torch.randn(3, 3, 16, 16)
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels[:, None] if kind == "SmolVLM" else pixels}


def kinds_of(kind: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the argument that only the processor of some models gives."""
    if kind == "Gemma3":
        return {"token_type_ids": (ids == IMAGE).long()}
    return {"token_type_ids": torch.zeros_like(ids)} if kind == "PaliGemma" else {}


@pytest.mark.parametrize("kind", NETS)
def test_tokens_after_images_are_those_of_transformers(kind: str, transformers: Any) -> None:
    module, given = image_model(transformers, kind), prompts(kind)
    more = kinds_of(kind, given["input_ids"])
    wanted = module.generate(**given, **more, **OPTIONS, do_sample=False)
    model = loaded(generator(module))
    assert torch.equal(model.generate(**given, **more, **OPTIONS), wanted)
    assert torch.equal(model.generate(**given, **OPTIONS), wanted)
    row = {name: each[2:3] for name, each in given.items()}
    (alone,) = model.generate(row["input_ids"][:, 2:], pixel_values=row["pixel_values"], **OPTIONS)
    assert wanted[2, 2:].tolist()[: len(alone)] == alone.tolist()


def test_a_prompt_of_an_image_model_may_have_no_image(transformers: Any) -> None:
    module, ids = image_model(transformers, "Llava"), torch.randint(3, 90, (2, 6))
    wanted = module.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **OPTIONS, do_sample=False)
    assert torch.equal(loaded(generator(module)).generate(ids, **OPTIONS), wanted)


@pytest.mark.parametrize("kind", ["Gemma3", "Blip2"])
def test_the_methods_of_an_image_model_are_exported(kind: str, transformers: Any) -> None:
    module = image_model(transformers, kind)
    methods = capture_model("net", generator(module), NullReporter()).methods
    assert sorted(each.name for each in methods) == ["decode", "embed", "encode_image", "start"]
    weights = {each for method in methods for each in method.program.state_dict.values()}
    assert sum(each.numel() for each in weights) == sum(each.numel() for each in module.parameters()), "weights once"


def test_a_wrong_mask_between_the_tokens_of_an_image_is_found(
    transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.huggingface import vision

    monkeypatch.setattr(vision, "NEAR", {"gemma3": vision.NEAR_PROMPT})
    with pytest.raises(EntryPointError, match="generation is not possible with `Gemma3ForConditionalGeneration`"):
        generator(image_model(transformers, "Gemma3"))


def test_images_of_another_number_are_refused(transformers: Any) -> None:
    model, given = loaded(generator(image_model(transformers, "Llava"))), prompts("Llava")
    with pytest.raises(InputError) as error:
        model.generate(**{**given, "pixel_values": given["pixel_values"][:2]}, **OPTIONS)
    assert str(error.value) == (
        "a prompt must have places for the features of each image\n"
        "  where: `pixel_values`\n"
        "  found: 2 images, and 48 tokens `98` in the prompts\n"
        "  to do: an image needs 16 tokens: make the arguments with `model.preprocess(text, images=…)`"
    )
    with pytest.raises(InputError, match="a prompt must have places"):
        model.generate(given["input_ids"], given["attention_mask"], **OPTIONS)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"pixel_values": torch.zeros(3, 16, 16)}, "pixels must be float32 of shape"),
        ({"pixel_attention_mask": torch.zeros(3, 1, 16, 16)}, "an image must have the size of the model's images"),
        ({"token_type_ids": torch.ones(3, 23, dtype=torch.int64)}, "the kinds of the tokens are not those"),
        ({"pixel_mask": torch.zeros(3)}, "`pixel_mask`"),
    ],
)
def test_arguments_of_images_are_checked(more: Mapping[str, Any], message: str, transformers: Any) -> None:
    model = loaded(generator(image_model(transformers, "Llava")))
    with pytest.raises(InputError, match=message):
        model.generate(**{**prompts("Llava"), **more}, **OPTIONS)


def test_a_model_with_other_images_is_refused(transformers: Any) -> None:
    config = transformers.GitConfig(vision_config=VISION, **{**TEXT, "head_dim": None})
    with pytest.raises(EntryPointError, match="the images of `GitForCausalLM` cannot be exported for generation"):
        generator(transformers.GitForCausalLM(config).eval())


def test_an_encoder_that_reads_images_is_refused(transformers: Any) -> None:
    text = {"model_type": "t5", "vocab_size": 99, "d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 4, "d_kv": 8}
    config = transformers.Blip2Config(**{**NETS["Blip2"], "text_config": text}, image_token_id=IMAGE)
    with pytest.raises(EntryPointError, match="the images of `Blip2ForConditionalGeneration` cannot") as error:
        generator(transformers.Blip2ForConditionalGeneration(config).eval())
    assert error.value.found == "an encoder reads the prompt with the images, and a decoder generates"


def test_images_that_depend_on_the_text_are_refused(transformers: Any) -> None:
    config = transformers.InstructBlipConfig(**NETS["Blip2"], image_token_index=IMAGE)
    with pytest.raises(EntryPointError, match="the images of `InstructBlipForConditionalGeneration` cannot") as error:
        generator(transformers.InstructBlipForConditionalGeneration(config).eval())
    assert error.value.found == "features of images that depend on the text, `qformer_input_ids`"


def test_a_model_whose_images_have_sizes_is_refused(transformers: Any) -> None:
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 32}
    vision |= {"patch_size": 4, "image_size": 16}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "rope_parameters": rope}
    config = transformers.Glm4vConfig(vision_config=vision, text_config=text, image_token_id=IMAGE)
    with pytest.raises(EntryPointError, match="the images of `Glm4vForConditionalGeneration` cannot") as error:
        generator(transformers.AutoModelForImageTextToText.from_config(config).eval())
    assert error.value.found == "images with sizes of their own, `image_grid_thw`"


@pytest.fixture
def folder(transformers: Any, tmp_path: Path) -> Path:
    """Write the configurations of a small tokenizer and image processor."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("PIL")
    words = ["[PAD]", "[UNK]", "[END]", *(f"w{number}" for number in range(3, END)), "<end>", "<begin>", "<image>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>", "<begin>", "<image>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def with_assets(module: Any, folder: Path, processor: Any) -> LoadedModel:
    processor.save_pretrained(folder)
    module.config.save_pretrained(folder)
    return loaded(generator(module), {path.name: path for path in folder.iterdir()})


def tokenizer_of(transformers: Any, folder: Path) -> Any:
    named = {"image_token": "<image>", "boi_token": "<begin>", "eoi_token": "<end>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="[PAD]",
        padding_side="left",
        extra_special_tokens=named,
    )


def pictures() -> list[Any]:
    values = numpy.random.default_rng(0)
    return [values.integers(0, 256, (height, 24, 3), dtype=numpy.uint8) for height in (20, 31)]


SIZES = {"do_resize": True, "size": {"height": 16, "width": 16}, "do_center_crop": False}


@pytest.mark.parametrize(("kind", "mark"), [("Llava", "<image>"), ("Gemma3", "<begin>")])
def test_texts_with_images_are_those_of_the_processor(kind: str, mark: str, transformers: Any, folder: Path) -> None:
    tokenizer, module = tokenizer_of(transformers, folder), image_model(transformers, kind)
    if kind == "Llava":
        images = transformers.SiglipImageProcessorPil(**SIZES)
        # without a token of a class, which its own default strategy leaves out
        processor = transformers.LlavaProcessor(images, tokenizer, 4, "full")
    else:
        images = transformers.Gemma3ImageProcessorPil(**SIZES)
        processor = transformers.Gemma3Processor(images, tokenizer, image_seq_length=4)
    texts = [f"w5 {mark} w6 w7", f"{mark} w8"]
    wanted = processor(images=[[each] for each in pictures()], text=texts, return_tensors="pt", padding=True)
    model = with_assets(module, folder, processor)
    given = model.preprocess(texts, images=pictures())
    assert sorted(given) == ["attention_mask", "input_ids", "pixel_values"]
    for name, value in given.items():
        torch.testing.assert_close(value, wanted[name].to(value.dtype), rtol=0, atol=1e-6)
    found = model.generate(**given, **OPTIONS)
    # the whole output of the processor
    assert torch.equal(model.generate(**wanted, **OPTIONS), found)


def test_a_text_needs_a_mark_for_each_image(transformers: Any, folder: Path) -> None:
    images = transformers.SiglipImageProcessorPil(**SIZES)
    processor = transformers.LlavaProcessor(images, tokenizer_of(transformers, folder), 4, "full")
    model = with_assets(image_model(transformers, "Llava"), folder, processor)
    with pytest.raises(InputError, match="each image needs a mark in a text") as error:
        model.preprocess("w5", images=pictures()[0])
    assert error.value.found == "1 images, and 0 marks `<image>` in the texts"
    assert model.preprocess("w5 w6").keys() == {"input_ids", "attention_mask"}


def test_texts_of_an_unknown_processor_are_refused(transformers: Any, folder: Path) -> None:
    images = transformers.SiglipImageProcessorPil(**SIZES)
    processor = transformers.LlavaProcessor(images, tokenizer_of(transformers, folder), 4, "full")
    model = with_assets(image_model(transformers, "Llava"), folder, processor)
    for name in ("processor_config.json", "tokenizer_config.json"):
        written = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**written, "processor_class": "OtherProcessor"}))
    with pytest.raises(ProgramError, match="need its own processor"):
        model.preprocess("w5 <image>", images=pictures()[0])


def test_beams_of_transformers_read_images(transformers: Any, tmp_path: Path) -> None:
    module, given = image_model(transformers, "Llava"), prompts("Llava")
    module.config.save_pretrained(tmp_path)
    model = as_pretrained(loaded(generator(module), {"config.json": tmp_path / "config.json"}))
    options = {**OPTIONS, "num_beams": 3, "do_sample": False}
    assert torch.equal(model.generate(**given, **options), module.generate(**given, **options))
