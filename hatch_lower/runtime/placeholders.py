"""Texts with places for images, as the processors of transformers make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.texts import CONFIG, TOKENIZER_CONFIG, TextReader, read_asset

PROCESSORS = ("processor_config.json", "preprocessor_config.json", TOKENIZER_CONFIG)  # files that name a processor
LLAVA, GEMMA = "LlavaProcessor", "Gemma3Processor"


class ImagePlace(Frozen):
    mark: str  # stands for an image in a text
    tokens: str  # the text that the tokenizer gets in place of the mark


def with_places(texts: Sequence[str], images: int, place: ImagePlace) -> list[str]:
    """Return texts with tokens in place of the marks of images.

    Raises:
        InputError: if the texts have another number of marks than there are images.
    """
    if (marks := sum(text.count(place.mark) for text in texts)) != images:
        raise InputError(
            "each image needs a mark in a text",
            where="`images`",
            found=f"{images} images, and {marks} marks `{place.mark}` in the texts",
            hint=f"write `{place.mark}` into the texts, once for each image",
        )
    return [text.replace(place.mark, place.tokens) for text in texts]


def image_place(model: str, assets: Mapping[str, Path], count: int, reader: TextReader) -> ImagePlace:
    """Return the place of an image in a text.

    Args:
        model: the model's name, for errors.
        assets: with the configurations of the model and of its processor.
        count: the number of tokens of an image.
        reader: the packaged tokenizer.

    Raises:
        ProgramError: if the processor is of an unknown kind, or a token is missing.
    """
    config = read_asset(model, assets, CONFIG)
    kinds = [read_asset(model, assets, name).get("processor_class") for name in PROCESSORS if name in assets]
    kind = next((each for each in kinds if isinstance(each, str)), "no processor")
    if kind == LLAVA:
        mark = token_text(model, config, "image", reader)
        return ImagePlace(mark, mark * count)
    if kind == GEMMA:
        begin, end = (token_text(model, config, name, reader) for name in ("boi", "eoi"))
        return ImagePlace(begin, f"\n\n{begin}{token_text(model, config, 'image', reader) * count}{end}\n\n")
    raise ProgramError(
        f"texts with images for model `{model}` need its own processor",
        where="its assets",
        found=f"`{kind}`; `{LLAVA}` and `{GEMMA}` are known",
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
