"""Inputs of a language model whose images have sizes of their own, as the image processor of Qwen2-VL makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hatch_lower.errors import InputError
from hatch_lower.format.grids import image_patches
from hatch_lower.format.prompts import PIXELS
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.image_defaults import with_defaults
from hatch_lower.runtime.images import (
    ImageReader,
    Sides,
    in_colours,
    refuse_no_image,
    resized,
    scaling,
)
from hatch_lower.runtime.processors import (
    IMAGES,
    JOINT,
    PROCESSOR,
    checked_numbers,
    integer_from,
    number_from,
    read_processor,
)
from hatch_lower.runtime.timm_images import any_image_reader

KINDS = frozenset(f"Qwen2VLImageProcessor{suffix}" for suffix in ("", "Fast", "Pil"))
STEEPEST = 200  # the longest side, as a multiple of the other
LARGEST = 1 << 28  # pixels of an image

Numbers = Any  # an array of NumPy


class PatchReader(Frozen):
    """The steps of the image processor of Qwen2-VL."""

    steps: ImageReader  # after resizing
    least: int  # pixels of a resized image
    most: int
    patch: int  # side in pixels
    merge: int  # side of a place in patches
    times: int  # number of copies of an image, which stand for the moments of a video

    def read(self, images: Sequence[Any]) -> dict[str, Numbers]:
        """Return the patches of images and their numbers.

        Returns:
            `pixel_values`: float32 of shape (patches of all images, pixels of a patch).
            `image_grid_thw`: int64 of shape (images, 3): moments, rows and columns of patches.
        """
        refuse_no_image(self.steps.model, images)
        found = [self._patches(image) for image in images]
        grids = np.array([[1, *sides] for _, sides in found], dtype=np.int64)
        return {PIXELS: np.concatenate([patches for patches, _ in found]), "image_grid_thw": grids}

    def _patches(self, given: Any) -> tuple[Numbers, Sides]:
        image = in_colours(given, converts=self.steps.converts)
        sides = self._sides((image.height, image.width))
        pixels = self.steps.pixels(resized(image, sides, self.steps.resample))
        height, width = sides[0] // self.patch, sides[1] // self.patch
        patches = image_patches(pixels, self.patch, self.merge)
        copies = patches.reshape(height * width, len(pixels), 1, self.patch**2).repeat(self.times, 2)
        return copies.reshape(height * width, -1), (height, width)

    def _sides(self, sides: Sides) -> Sides:
        """Return the sides of the resized image: multiples of a place, of the same proportions."""
        if max(sides) > STEEPEST * min(sides):
            raise InputError(
                f"the sides of an image must not differ by a factor above {STEEPEST}",
                where=f"model `{self.steps.model}`",
                found="x".join(map(str, sides)),
                hint="give parts of the image",
            )
        factor = self.patch * self.merge
        height, width = (round(side / factor) * factor for side in sides)
        if height * width > self.most:
            scale = math.sqrt(sides[0] * sides[1] / self.most)
            height, width = (max(factor, math.floor(side / scale / factor) * factor) for side in sides)
        elif height * width < self.least:
            scale = math.sqrt(self.least / (sides[0] * sides[1]))
            height, width = (math.ceil(side * scale / factor) * factor for side in sides)
        return height, width


def patch_reader(model: str, assets: Mapping[str, Path]) -> PatchReader | None:
    """Return the reader of images for the packaged image processor, `None` for one of another kind.

    Raises:
        ProgramError: if the assets have no such file, or a configuration with impossible numbers.
    """
    found = read_processor(model, assets, IMAGES)
    if found.kind not in KINDS:
        return None
    config = with_defaults("Qwen2VL", found.config)
    with checked_numbers(found.where):
        if not config["do_resize"]:
            raise ValueError("`do_resize` is false")
        size = config["size"]
        least, most = (
            integer_from(size.get(name) if config.get(older) is None else config[older], 1, LARGEST)
            for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
        )
        resample, converts = number_from(config["resample"], 0, 5), bool(config["do_convert_rgb"])
        steps = ImageReader(model, None, resample, None, *scaling(config), None, converts)
        patch, merge, times = (
            integer_from(config.get(name, usual), 1, 1 << 10)
            for name, usual in (("patch_size", 14), ("merge_size", 2), ("temporal_patch_size", 2))
        )
        return PatchReader(steps, least, most, patch, merge, times)


def inputs_of_images(model: str, assets: Mapping[str, Path], images: Sequence[Any]) -> dict[str, Numbers]:
    """Return arguments of images by name, by the packaged configuration of images.

    Raises:
        InputError: for other values than images.
        ProgramError: if the assets have no such file, or a configuration with unknown steps or impossible numbers.
    """
    patches = patch_reader(model, assets) if {PROCESSOR, JOINT} & assets.keys() else None
    return {PIXELS: any_image_reader(model, assets).read(images)} if patches is None else patches.read(images)
