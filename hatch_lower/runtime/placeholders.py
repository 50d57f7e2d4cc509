"""Texts with places for images, as the processors of transformers make them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.texts import CONFIG, TOKENIZER_CONFIG, TextReader, read_asset

PROCESSORS = ("processor_config.json", "preprocessor_config.json", TOKENIZER_CONFIG)  # files that name a processor
GEMMA = "Gemma3Processor"
PLAIN = ("LlavaProcessor", "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")  # repeat the mark


class ImagePlace(Frozen):
    mark: str  # stands for an image in a text
    token: str
    begin: str = ""  # before the tokens of an image
    end: str = ""


def numbers_of_places(images: Mapping[str, Any], sizes: Mapping[str, Any]) -> list[int]:
    """Return the number of tokens of each image.

    Args:
        images: the arguments of images by name.
        sizes: the result of `start`.
    """
    if "image_merge" in sizes and "image_grid_thw" in images:
        return [int(grid.prod()) // int(sizes["image_merge"]) ** 2 for grid in images["image_grid_thw"]]
    return [int(sizes["image_places"])] * len(images["pixel_values"])


def with_places(texts: Sequence[str], numbers: Sequence[int], place: ImagePlace) -> list[str]:
    """Return texts with tokens in place of the marks of images.

    Args:
        texts: with marks.
        numbers: of tokens of each image, in the order of the marks.
        place: of an image.

    Raises:
        InputError: if the texts have another number of marks than there are images.
    """
    if (marks := sum(text.count(place.mark) for text in texts)) != len(numbers):
        raise InputError(
            "each image needs a mark in a text",
            where="`images`",
            found=f"{len(numbers)} images, and {marks} marks `{place.mark}` in the texts",
            hint=f"write `{place.mark}` into the texts, once for each image",
        )
    remaining = iter(numbers)
    return [
        re.sub(re.escape(place.mark), lambda _: place.begin + place.token * next(remaining) + place.end, text)
        for text in texts
    ]


def image_place(model: str, assets: Mapping[str, Path], reader: TextReader) -> ImagePlace:
    """Return the place of an image in a text.

    Args:
        model: the model's name, for errors.
        assets: with the configurations of the model and of its processor.
        reader: the packaged tokenizer.

    Raises:
        ProgramError: if the processor is of an unknown kind, or a token is missing.
    """
    config = read_asset(model, assets, CONFIG)
    kinds = [read_asset(model, assets, name).get("processor_class") for name in PROCESSORS if name in assets]
    kind = next((each for each in kinds if isinstance(each, str)), "no processor")
    if kind in PLAIN:
        mark = token_text(model, config, "image", reader)
        return ImagePlace(mark, mark)
    if kind == GEMMA:
        begin, image, end = (token_text(model, config, name, reader) for name in ("boi", "image", "eoi"))
        return ImagePlace(begin, image, f"\n\n{begin}", f"{end}\n\n")
    raise ProgramError(
        f"texts with images for model `{model}` need its own processor",
        where="its assets",
        found=f"`{kind}`; known: {', '.join((*PLAIN, GEMMA))}",
        hint="give `generate` the output of transformers' processor",
    )


def token_text(model: str, config: Mapping[str, Any], name: str, reader: TextReader) -> str:
    # older configurations call the number of a token its index
    number = config.get(f"{name}_token_id", config.get(f"{name}_token_index"))
    text = reader.token(number) if isinstance(number, int) else None
    if text is None:
        raise ProgramError(
            f"a token of images of model `{model}` is not known",
            where=f"`{CONFIG}`",
            found=f"`{name}_token_id` is {number!r:.80}, which is no token of the tokenizer",
            hint="save the configuration and the tokenizer of one model, and build the wheel again",
        )
    return text
