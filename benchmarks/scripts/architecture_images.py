"""Processors of small models that read images, and prompts for them, for `architectures.py`.

The processors need torchvision, which transformers asks for even where Pillow resizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["has_processor", "made_processor", "prompts"]

WORDS = 88  # tokens of words; those of images follow
TOKENS = ("<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "[IMG_BREAK]", "[IMG_END]", "<end>", "<video>")
TOKENS += ("[IMG]", "<begin>", "<|image_pad|>", "<image>")  # up to 98
SIDES = {"height": 16, "width": 16}
GRIDS = [[16, 32], [32, 16], [32, 32], [16, 48]]  # resolutions of images in crops
QWEN = {"size": {"shortest_edge": 64, "longest_edge": 1024}, "merge_size": 2}
# by the name of an architecture: class of the processor and its arguments, class of the images' and its arguments
PROCESSORS: Mapping[str, tuple[str, Mapping[str, Any], str, Mapping[str, Any]]] = {
    "LlavaForConditionalGeneration": (
        "LlavaProcessor",
        {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 16}, "crop_size": SIDES},
    ),
    "LlavaNextForConditionalGeneration": (
        "LlavaNextProcessor",
        {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 16}, "crop_size": SIDES, "image_grid_pinpoints": GRIDS},
    ),
    "LlavaOnevisionForConditionalGeneration": (
        "LlavaOnevisionProcessor",
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        "LlavaOnevisionImageProcessorPil",
        {"size": SIDES, "image_grid_pinpoints": GRIDS},
    ),
    "LlavaForConditionalGeneration with Pixtral": (
        "PixtralProcessor",
        {"patch_size": 4},
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 40}, "patch_size": 4},
    ),
    "Mistral3ForConditionalGeneration": (
        "PixtralProcessor",
        {"patch_size": 4, "spatial_merge_size": 2},
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 40}, "patch_size": 4},
    ),
    "Gemma3ForConditionalGeneration": (
        "Gemma3Processor",
        {"image_seq_length": 4},
        "Gemma3ImageProcessorPil",
        {"size": SIDES},
    ),
    "PaliGemmaForConditionalGeneration": (
        "PaliGemmaProcessor",
        {},
        "SiglipImageProcessorPil",
        {"size": SIDES, "image_seq_length": 16},
    ),
    "Qwen2VLForConditionalGeneration": (
        "Qwen2VLProcessor",
        {},
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, **QWEN},
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        "Qwen2_5_VLProcessor",
        {},
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, **QWEN},
    ),
    "Qwen3VLForConditionalGeneration": (
        "Qwen3VLProcessor",
        {},
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, **QWEN},
    ),
}
# by the class of a processor; default: `<image>`
MARKS = {"Gemma3Processor": "<begin>", "PixtralProcessor": "[IMG]"}
MARKS |= dict.fromkeys(("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"), "<|image_pad|>")
PLACED = ("LlavaProcessor", "Gemma3Processor", "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
VIDEOS = {"LlavaOnevisionProcessor": "LlavaOnevisionVideoProcessor", "Qwen3VLProcessor": "Qwen3VLVideoProcessor"}
VIDEOS |= dict.fromkeys(("Qwen2VLProcessor", "Qwen2_5_VLProcessor"), "Qwen2VLVideoProcessor")
# texts with `@` for an image, and the numbers of images of each text
CASES = {
    "an image": (["w11 w12 @ w13 w14"], [1]),
    "rows with padding": (["w21 @ w22 w23 w24 w25", "w31 w32 @ w33"], [1, 1]),
    "two images": (["w41 @ w42 @ w43 w44 w45"], [2]),
    "no image": (["w51 w52 w53", "w54"], [0, 0]),
}


def has_processor(name: str) -> bool:
    return name in PROCESSORS


def made_processor(name: str) -> Any:
    """Return the processor of an architecture, with a tokenizer of 99 tokens, the last of which are those of images."""
    import tokenizers
    import transformers

    words = ["[PAD]", "<s>", "</s>", "[UNK]", *(f"w{number}" for number in range(4, WORDS)), *TOKENS]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(TOKENS))
    kind, options, images, given = PROCESSORS[name]
    image = "<image>" if kind == "Gemma3Processor" else MARKS.get(kind, "<image>")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="[UNK]",
        padding_side="left",
        extra_special_tokens={"image_token": image, "boi_token": "<begin>", "eoi_token": "<end>"},
        model_input_names=["input_ids", "attention_mask"],
    )
    more = {}
    if video := VIDEOS.get(kind):
        more["video_processor"] = getattr(transformers, video)()
    return getattr(transformers, kind)(getattr(transformers, images)(**given), fast, **more, **options)


def prompts(name: str, model: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the title, the arguments of transformers' processor, and those of `model.preprocess`, for each prompt.

    The last are empty for a processor whose texts `preprocess` does not make.
    """
    import numpy

    processor, kind = made_processor(name), PROCESSORS[name][0]
    values = numpy.random.default_rng(0)
    for title, (texts, counts) in CASES.items():
        sizes = values.integers(14, 44, (sum(counts), 2))
        pictures = [values.integers(0, 256, (*size, 3), dtype=numpy.uint8) for size in sizes]
        written = [text.replace("@", MARKS.get(kind, "<image>")) for text in texts]
        remaining = iter(pictures)
        nested = [[next(remaining) for _ in range(count)] for count in counts]
        options = {"text": written, "return_tensors": "pt", "padding": True}
        # some processors take no texts without images
        given = dict(processor(images=nested, **options) if pictures else processor.tokenizer(**options))
        given.pop("labels", None)
        yield title, given, model.preprocess(written, images=pictures or None) if kind in PLACED else {}
