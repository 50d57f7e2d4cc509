"""Images of different sizes in prompts: the arguments of `encode_image` by the grid of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hatch_lower.errors import InputError
from hatch_lower.format.grids import Sides, image_patches, patch_positions, same_window, table_weights
from hatch_lower.format.prompts import PIXELS
from hatch_lower.frozen import Frozen

Numbers = Any  # an array of NumPy
GRID = "image_grid_thw"  # the argument for times, rows and columns of patches of each image
SIZES = "image_sizes"  # the argument for height and width of each image in pixels


class CutImages(Frozen):
    """Images whose patches are cut here."""

    inputs: Sequence[Mapping[str, Numbers]]  # of `encode_image`, for each image


class SizedImages(Frozen):
    """Images whose patches the processor has cut, and whose tokens have positions in rows and columns."""

    inputs: Sequence[Mapping[str, Numbers]]  # of `encode_image`, for each image
    sides: Sequence[Sides]  # of each image, in places


def sized_images(given: Mapping[str, Numbers], sizes: Mapping[str, Any]) -> SizedImages:
    """Return images by the arguments of a processor.

    Args:
        given: the arguments by name.
        sizes: the result of `start`.

    Raises:
        InputError: if the patches are not those of the grids.
    """
    pixels, grids = given.get(PIXELS), given.get(GRID)
    if pixels is None and grids is None:
        return SizedImages((), ())
    merge, window = int(sizes["image_merge"]), int(sizes["image_window"])
    grids = checked_grids(grids, merge)
    counts = grids.prod(1)
    if pixels is None or pixels.ndim != 2 or pixels.dtype.kind != "f" or len(pixels) != counts.sum():
        raise InputError(
            "pixels must be float32 of shape (patches of all images, pixels of a patch)",
            where=f"`{PIXELS}`",
            found="nothing" if pixels is None else f"{pixels.dtype} of shape {pixels.shape}",
            hint=f"give the {counts.sum()} patches of `{GRID}`: the output of the model's processor",
        )
    sides = [(int(height) // merge, int(width) // merge) for _, height, width in grids]
    inputs = []
    for each, patches in zip(sides, np.split(pixels.astype(np.float32), counts.cumsum()[:-1]), strict=True):
        image = {
            PIXELS: patches.reshape(-1, merge**2, pixels.shape[1]),
            "image_positions": patch_positions(each, merge),
        }
        if window:
            image["same_window"] = same_window(each, window)
        if table := int(sizes.get("image_table", 0)):
            image["table_weights"] = table_weights(each, merge, table)
        inputs.append(image)
    return SizedImages(inputs, sides)


def checked_grids(grids: Numbers, merge: int) -> Numbers:
    """Refuse grids of videos, and grids without whole places."""
    if grids is None or grids.ndim != 2 or grids.shape[1] != 3 or grids.dtype.kind not in "iu":
        found = "nothing" if grids is None else f"{grids.dtype} of shape {grids.shape}"
    elif (wrong := (grids < (1, merge, merge)) | (grids % (1, merge, merge) != 0) | (grids[:, :1] > 1)).any():
        found = str(grids[wrong.any(1)][0].tolist())
    else:
        return grids
    raise InputError(
        f"the grid of an image must be 1, and two multiples of {merge}: numbers of patches",
        where=f"`{GRID}`",
        found=found,
        hint="give the output of the model's processor; videos are not read",
    )


def cut_images(given: Mapping[str, Numbers], sizes: Mapping[str, Any]) -> CutImages:
    """Return images of whole places by their pixels and sizes, as the processor of Pixtral returns them.

    Args:
        given: the arguments by name.
        sizes: the result of `start`.

    Raises:
        InputError: if the sizes are not those of whole places, or exceed the pixels.
    """
    if not given.keys() & {PIXELS, SIZES}:
        return CutImages(())
    merge, patch = int(sizes["image_merge"]), int(sizes["image_patch"])
    side = merge * patch
    pixels: Numbers = given.get(PIXELS)
    has_pixels = pixels is not None and pixels.ndim == 4 and pixels.dtype.kind == "f"
    images = checked_sizes(given.get(SIZES), len(pixels) if has_pixels else 0)
    if not has_pixels or any(h % side or w % side or h > pixels.shape[2] or w > pixels.shape[3] for h, w in images):
        raise InputError(
            f"images must be float32 of shape (images, channels, height, width), with sizes of multiples of {side}",
            where=f"`{PIXELS}`",
            found=("nothing" if pixels is None else f"{pixels.dtype} of shape {pixels.shape}") + f"; sizes {images}",
            hint="give the output of the model's processor",
        )
    inputs = []
    for picture, (height, width) in zip(pixels.astype(np.float32), images, strict=True):
        patches = image_patches(picture[:, :height, :width], patch, merge)
        positions = patch_positions((height // side, width // side), merge)
        inputs.append({PIXELS: patches, "patch_positions": positions})
    return CutImages(inputs)


def checked_sizes(sizes: Numbers, images: int) -> list[Sides]:
    if sizes is None or sizes.dtype.kind not in "iu" or sizes.shape != (images, 2) or (sizes < 1).any():
        raise InputError(
            "the sizes of images must be positive integers of shape (images, 2)",
            where=f"`{SIZES}`",
            found="nothing" if sizes is None else f"{sizes.dtype} of shape {sizes.shape}",
            hint=f"give height and width of each image in `{PIXELS}`: the output of the model's processor",
        )
    return [(int(height), int(width)) for height, width in sizes]
