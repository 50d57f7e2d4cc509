"""Prompts with images: the features of an image take the places of the image's tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hatch_lower.errors import InputError
from hatch_lower.format.grids import token_positions
from hatch_lower.format.prompts import NEAR_NONE, NEAR_PROMPT, PIXELS
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.generation.cropped_images import GROUPS, CroppedImages, cropped_images
from hatch_lower.runtime.generation.sized_images import (
    GRID,
    SIZES,
    CutImages,
    SizedImages,
    cut_images,
    sized_images,
)
from hatch_lower.runtime.texts import in_library, in_numpy

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Arrays

Numbers = Any  # an array of NumPy
PADDING, KINDS = "pixel_attention_mask", "token_type_ids"
MODALITIES = "mm_token_type_ids"  # the kinds of tokens for a model whose images have sizes
PLAIN_ARGUMENTS = frozenset({PIXELS, PADDING, KINDS})  # for images of one size
ENCODE, EMBED = "encode_image", "embed"  # methods


class PlainImages(Frozen):
    """Images of the size of the configuration."""

    inputs: Sequence[Mapping[str, Numbers]]  # of `encode_image`, for each image


class ImagePrompt(Frozen):
    """The arguments of `decode` for tokens of a model that reads images."""

    embed: Callable[..., Any]
    arrays: Arrays
    features: Numbers  # of all images, float32 of shape (places, features)
    places: Numbers  # bool of shape (rows, tokens): tokens of images in the prompt
    near: (
        Numbers  # int64 of shape (rows, tokens): tokens with one number see each other in both directions; -1: no token
    )
    positions: Numbers = None  # of the prompt, float32 of shape (3, rows, tokens); `None`: one position of each token

    def arguments(self, tokens: Numbers, is_prompt: bool) -> dict[str, Any]:
        found = self.embed(input_ids=in_library(tokens, self.arrays))
        if is_prompt and self.places.any():
            numbers = in_numpy(found, self.arrays).copy()
            numbers[self.places] = self.features
            found = in_library(numbers, self.arrays)
        return {"inputs_embeds": found}

    def positions_of(self, total: int, count: int) -> Numbers:
        """Return the positions of the last `count` tokens of `total`; new tokens follow the last one of the prompt."""
        held = self.positions.shape[2]
        new = self.positions[..., -1:] + np.arange(1, total - held + 1, dtype=np.float32)
        return np.concatenate([self.positions, new], 2)[..., -count:]


def image_arguments(encode: Callable[..., Any]) -> frozenset[str]:
    """Return the names of arguments of images, by the method `encode_image`."""
    takes = inspect.signature(encode).parameters
    if "image_positions" in takes:
        return frozenset({PIXELS, GRID, MODALITIES})
    if "patch_positions" in takes:
        return frozenset({PIXELS, SIZES})
    return frozenset({PIXELS, SIZES, GROUPS} if "crop" in takes else PLAIN_ARGUMENTS)


def image_prompt(
    methods: Mapping[str, Callable[..., Any]],
    arrays: Arrays,
    given: Mapping[str, Numbers],
    ids: Numbers,
    visible: Numbers,
    sizes: Mapping[str, Any],
) -> ImagePrompt | None:
    """Return a prompt with the features of its images; `None` for a model that reads no images.

    Args:
        methods: of the model.
        arrays: the library of the methods.
        given: the arguments of images by name.
        ids: the prompt, int64 of shape (rows, tokens).
        visible: bool of the same shape: false for padding.
        sizes: the result of `start`.

    Raises:
        InputError: if the images do not fit the prompt.
    """
    if ENCODE not in methods:
        return None
    token = int(sizes["image_token"])
    places = ids == token
    images, encode = read_images(given, sizes), methods[ENCODE]
    features = [
        in_numpy(encode(**{name: in_library(each, arrays) for name, each in image.items()}), arrays)
        for image in images.inputs
    ]
    if isinstance(images, CroppedImages):
        features = images.joined(features)
    count = sum(map(len, features))
    if count != places.sum():
        raise InputError(
            "a prompt must have places for the features of each image",
            where=f"`{PIXELS}`",
            found=f"{len(features)} images, and {places.sum()} tokens `{token}` in the prompts",
            hint=f"an image needs {int(sizes['image_places'])} tokens: make the arguments with"
            " `model.preprocess(text, images=…)`"
            if isinstance(images, PlainImages)
            else "give the prompts and the images of one call of the processor",
        )
    near = near_tokens(places, int(sizes["near"]))
    for name in given.keys() & {KINDS, MODALITIES}:
        if not np.array_equal(given[name], token_kinds(places, int(sizes["near"]))):
            raise InputError(
                "the kinds of the tokens are not those of the prompt",
                where=f"`{name}`",
                found="other numbers than the processor of the model gives",
                hint=f"leave `{name}` out",
            )
    joined = np.concatenate(features) if features else np.zeros((0, 1), dtype=np.float32)
    positions = token_positions(ids, visible, token, images.sides) if isinstance(images, SizedImages) else None
    return ImagePrompt(methods[EMBED], arrays, joined, places, near, positions)


def read_images(
    given: Mapping[str, Numbers], sizes: Mapping[str, Any]
) -> PlainImages | CroppedImages | CutImages | SizedImages:
    """Return images by the arguments of a processor, in the order of the prompts; `sizes` is the result of `start`."""
    if "crops" in sizes:
        return cropped_images(given, sizes["crops"])
    if "image_patch" in sizes:
        return cut_images(given, sizes)
    return sized_images(given, sizes) if "image_window" in sizes else PlainImages(image_inputs(given))


def image_inputs(given: Mapping[str, Numbers]) -> list[dict[str, Numbers]]:
    """Return the arguments of `encode_image` for each image of one size."""
    pixels = given.get(PIXELS)
    seen = given.get(PADDING)
    if pixels is None:
        return []
    if seen is not None and not np.all(seen):
        raise InputError(
            "an image must have the size of the model's images",
            where=f"`{PADDING}`",
            found="padding",
            hint="resize each image to one size, without padding",
        )
    if pixels.ndim not in (4, 5) or pixels.dtype.kind != "f":
        raise InputError(
            "pixels must be float32 of shape (images, channels, height, width)",
            where=f"`{PIXELS}`",
            found=f"{pixels.dtype} of shape {pixels.shape}",
            hint="make the arguments with `model.preprocess(text, images=…)`",
        )
    images = pixels.reshape(-1, *pixels.shape[-3:]).astype(np.float32)
    return [{PIXELS: image[None]} for image in images]


def near_tokens(places: Numbers, near: int) -> Numbers:
    if near == NEAR_NONE:
        return np.full(places.shape, -1)
    if near == NEAR_PROMPT:
        return np.zeros(places.shape, dtype=np.int64)
    begins = places & ~np.pad(places, ((0, 0), (1, 0)))[:, :-1]
    return np.where(places, begins.cumsum(1), -1)


def token_kinds(places: Numbers, near: int) -> Numbers:
    """Return the kinds of tokens that a processor gives, int64: 1 for an image, but 0 for each token of a prompt."""
    return np.zeros(places.shape, dtype=np.int64) if near == NEAR_PROMPT else places.astype(np.int64)
