"""Inputs of a packaged model of timm from images, as timm's transform for evaluation makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hatch_lower.errors import ProgramError
from hatch_lower.format.timm_config import ImageSteps, Sides, image_steps, is_timm
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.images import (
    ImageReader,
    image_reader,
    refuse_no_image,
    resized,
    shortest_sides,
    to_image,
)
from hatch_lower.runtime.processors import JOINT, PROCESSOR
from hatch_lower.runtime.texts import CONFIG, read_asset

MODES = {1: "L", 3: "RGB"}  # channels to Pillow's modes

Numbers = Any  # an array of NumPy


class TimmImageReader(Frozen):
    model: str
    steps: ImageSteps

    def read(self, images: Sequence[Any]) -> Numbers:
        """Return the pixels of images, float32 of shape (images, channels, height, width)."""
        refuse_no_image(self.model, images)
        return np.stack([self._pixels(image) for image in images])

    def _pixels(self, given: Any) -> Numbers:
        steps = self.steps
        image = to_image(given).convert(MODES[steps.channels])
        image = resized(image, whole_sides((image.height, image.width), steps), steps.resample)
        pixels = np.array(image).reshape(image.height, image.width, steps.channels)
        border = [round(255 * mean) if steps.crop == "border" else 0 for mean in steps.mean]
        # float32 throughout: torchvision's numbers have these roundings
        found = np.moveaxis(cropped(pixels, steps.sides, border), -1, 0).astype(np.float32) / np.float32(255)
        mean, deviation = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (steps.mean, steps.deviation))
        return np.ascontiguousarray((found - mean) / deviation)


def any_image_reader(model: str, assets: Mapping[str, Path]) -> ImageReader | TimmImageReader:
    """Return the reader of images for the packaged configuration of transformers' image processor, or of timm.

    Raises:
        ProgramError: if the assets have no such file, or a configuration with unknown steps or impossible numbers.
    """
    if not {PROCESSOR, JOINT} & assets.keys() and CONFIG in assets:
        config = read_asset(model, assets, CONFIG)
        if is_timm(config):
            return timm_image_reader(model, config, assets[CONFIG])
    return image_reader(model, assets)


def timm_image_reader(model: str, config: Mapping[str, Any], path: Path) -> TimmImageReader:
    try:
        steps = image_steps(config)
        if steps.channels not in MODES:
            raise ValueError(f"{steps.channels} channels")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProgramError(
            f"the images of model `{model}` have steps that need timm",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            hint="call the model with `pixel_values` of timm's own transform; images of 1 or 3 channels are known",
        ) from error
    return TimmImageReader(model, steps)


def whole_sides(sides: Sides, steps: ImageSteps) -> Sides:
    """Return the sides of an image before the crop."""
    height, width = steps.resized
    if steps.crop == "squash":
        return height, width
    if steps.crop == "center" and height == width:
        return shortest_sides(sides, height)
    ratios = sides[0] / height, sides[1] / width
    ratio = max(ratios) if steps.crop == "border" else min(ratios)
    return max(round(sides[0] / ratio), 1), max(round(sides[1] / ratio), 1)


def cropped(pixels: Numbers, sides: Sides, border: Sequence[int]) -> Numbers:
    """Return the middle of an image of shape (height, width, channels), with a border around it if it is smaller."""
    missing = [max(side - have, 0) for side, have in zip(sides, pixels.shape, strict=False)]
    widths = [(each // 2, (each + 1) // 2) for each in missing]
    channels = [np.pad(pixels[:, :, channel], widths, constant_values=value) for channel, value in enumerate(border)]
    # the rounding of halves is Python's, as in torchvision
    top, left = (round((have - side) / 2) for side, have in zip(sides, channels[0].shape, strict=True))
    return np.stack(channels, -1)[top : top + sides[0], left : left + sides[1]]
