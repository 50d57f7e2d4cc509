"""The `config.json` of a checkpoint of timm: the size of images, the steps from an image to the input, and labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hatch_lower.frozen import Frozen

ARCHITECTURE = "architecture"
# timm's names of filters, and the numbers of Pillow
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
CROPS = ("center", "border", "squash")
# timm's own defaults
SIZE = (3, 224, 224)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KEPT = 0.875
LARGEST = 1 << 14  # a side of an image
MOST_CHANNELS = 1 << 10

Sides = tuple[int, int]  # height and width


class ImageSteps(Frozen):
    """The steps of timm's transform for evaluation: resize, crop, rescale and normalize."""

    channels: int
    sides: Sides  # after the crop
    resized: Sides  # before the crop; the image's proportions may ask for others
    crop: str
    resample: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def is_timm(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get(ARCHITECTURE), str)


def image_size(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return channels, height and width of the input.

    Raises:
        TypeError, ValueError: for numbers that no image has.
    """
    pretrained, arguments = tables_of(config)
    channels, height, width = pretrained.get("input_size") or SIZE
    channels = arguments.get("in_chans") or channels
    any_size = (
        arguments.get("dynamic_img_size") or arguments.get("strict_img_size") is False or arguments.get("use_naflex")
    )
    # the arguments describe the saved weights; the configuration may still be the source's of a fine-tuned model
    if (size := arguments.get("img_size")) and pretrained.get("fixed_input_size") and not any_size:
        height, width = (size, size) if isinstance(size, int) else size
    refuse_outside(channels, 1, MOST_CHANNELS)
    return channels, *checked_sides(height, width)


def image_steps(config: Mapping[str, Any]) -> ImageSteps:
    """Return the steps from an image to the input, as timm's `resolve_data_config` and `create_transform` do.

    Raises:
        KeyError, TypeError, ValueError: for numbers that no image has, and for unknown steps.
    """
    pretrained, _ = tables_of(config)
    channels, height, width = image_size(config)
    kept = pretrained.get("crop_pct") or KEPT
    refuse_outside(kept, 0.01, 10)
    crop = pretrained.get("crop_mode") or CROPS[0]
    if crop not in CROPS:
        raise ValueError(f"{crop!r} is no crop of {', '.join(CROPS)}")
    return ImageSteps(
        channels,
        (height, width),
        checked_sides(math.floor(height / kept), math.floor(width / kept)),
        crop,
        FILTERS[pretrained.get("interpolation") or "bicubic"],
        channel_values(pretrained.get("mean") or MEAN, channels),
        channel_values(pretrained.get("std") or DEVIATION, channels, least=1e-6),
    )


def label_names(config: Mapping[str, Any]) -> object:
    """Return the names of classes, a mapping by the index of the output; another value if there are none."""
    inner = config.get("pretrained_cfg")
    found = config.get("label_names") or config.get("labels")
    if not found and isinstance(inner, Mapping):
        found = inner.get("label_names")
    return {str(index): name for index, name in enumerate(found)} if isinstance(found, list) else found


def tables_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return `pretrained_cfg`, which is the whole configuration in old checkpoints, and `model_args`."""
    found = config.get("pretrained_cfg", config), config.get("model_args") or {}
    if not all(isinstance(each, Mapping) for each in found):
        raise TypeError("`pretrained_cfg` and `model_args` must be objects")
    return found


def checked_sides(height: Any, width: Any) -> Sides:
    for side in (height, width):
        refuse_outside(side, 1, LARGEST)
    return height, width


def channel_values(values: Any, channels: int, least: float = -LARGEST) -> tuple[float, ...]:
    found = (values,) if isinstance(values, (int, float)) else tuple(values)
    if len(found) not in (1, channels):
        raise ValueError(f"{values!r} is no number for each of {channels} channels")
    for each in found:
        refuse_outside(each, float(least), float(LARGEST))
    return found * (channels if len(found) == 1 else 1)


def refuse_outside(value: Any, least: float, most: float) -> None:
    whole = isinstance(least, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not least <= value <= most:
        raise ValueError(f"{value!r} is no {'whole ' if whole else ''}number from {least} to {most}")
