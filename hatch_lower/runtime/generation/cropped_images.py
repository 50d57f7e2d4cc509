"""Images as crops in prompts: `encode_image` takes a crop, and the features of an image are those of its crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hatch_lower.errors import InputError
from hatch_lower.format.crops import Crops, Sides
from hatch_lower.format.prompts import PIXELS
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.generation.sized_images import SIZES, checked_sizes

Numbers = Any  # an array of NumPy
GROUPS = "batch_num_images"  # the argument for the number of images of each text


class CroppedImages(Frozen):
    crops: Crops
    sizes: Sequence[Sides]  # of each image, in pixels
    counts: Sequence[int]  # of crops of each image
    inputs: Sequence[Mapping[str, Numbers]]  # of `encode_image`, for each crop

    def joined(self, features: Sequence[Numbers]) -> list[Numbers]:
        """Return the features of each image from those of all crops."""
        remaining = iter(features)
        parts = [np.stack([next(remaining) for _ in range(count)]) for count in self.counts]
        return [self.crops.packed(part, size) for part, size in zip(parts, self.sizes, strict=True)]


def cropped_images(given: Mapping[str, Numbers], numbers: Mapping[str, Any]) -> CroppedImages:
    """Return images by the arguments of a processor.

    Args:
        given: the arguments by name.
        numbers: of crops, from the result of `start`.

    Raises:
        InputError: if the crops are not those of the sizes.
    """
    resolutions = [(int(height), int(width)) for height, width in numbers["resolutions"]]
    crops = Crops(int(numbers["side"]), int(numbers["places"]), resolutions, int(numbers["most"]))
    if not given.keys() & {PIXELS, SIZES}:
        return CroppedImages(crops, (), (), ())
    pixels: Numbers = given.get(PIXELS)
    images = 0 if pixels is None or pixels.ndim != 5 else len(pixels)
    checked = checked_sizes(given.get(SIZES), images)
    is_cut = further_crops(given.get(GROUPS), images, may_group=crops.most > 0)
    counts = [int(np.prod(crops.grid(size))) + 1 if cut else 1 for size, cut in zip(checked, is_cut, strict=True)]
    side = crops.side
    if not images or pixels.dtype.kind != "f" or pixels.shape[3:] != (side, side) or pixels.shape[1] < max(counts):
        raise InputError(
            f"pixels must be float32 of shape (images, crops, channels, {side}, {side})",
            where=f"`{PIXELS}`",
            found="nothing" if pixels is None else f"{pixels.dtype} of shape {pixels.shape}",
            hint=f"give the crops of `{SIZES}`: the output of the model's processor",
        )
    parts = [crop for image, count in zip(pixels, counts, strict=True) for crop in image[:count].astype(np.float32)]
    return CroppedImages(crops, checked, counts, [{"crop": crop[None]} for crop in parts])


def further_crops(groups: Numbers, images: int, *, may_group: bool) -> list[bool]:
    """Return whether each image has further crops: not beside other images of one text.

    Args:
        groups: the number of images of each text; `None`: one.
        images: number of all images.
        may_group: whether the model takes several images of one text without further crops.
    """
    if groups is None:
        return [True] * images
    if not may_group or groups.dtype.kind not in "iu" or groups.ndim != 1 or groups.sum() != images:
        raise InputError(
            f"the numbers of images of each text must be {images} together",
            where=f"`{GROUPS}`",
            found=f"{groups.tolist()!r:.80}" if may_group else "a model that cuts all images",
            hint="give the output of the model's processor",
        )
    return [int(count) == 1 for count in groups for _ in range(int(count))]
