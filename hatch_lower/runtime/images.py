"""Inputs of a packaged model of transformers from images, by the packaged configuration of its image processor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.image_defaults import with_defaults
from hatch_lower.runtime.processors import IMAGES, checked_numbers, number_from, read_processor

# image processors of transformers that resize, crop, rescale and normalize, in this order, and do nothing else
PLAIN = (
    "BEiT",
    "Beit",
    "Bit",
    "Blip",
    "CLIP",
    "ChineseCLIP",
    "ConvNext",
    "DeiT",
    "Gemma3",
    "Llava",
    "MobileNetV1",
    "MobileNetV2",
    "Pvt",
    "Segformer",
    "Siglip",
    "ViT",
)
WITHOUT_CROP = ("Gemma3", "Segformer")
SUFFIXES = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
CHANNELS = 3
ARRAY_CHANNELS = (1, 3, 4)
OTHER_COLOURS = ("HSV", "LAB", "YCbCr")  # modes of three channels
LARGEST = 1 << 14  # a side of an image
WHOLE = 384  # ConvNeXt crops images below this size

Numbers = Any  # an array of NumPy
Sides = tuple[int, int]  # height and width


class ImageReader(Frozen):
    """The steps of an image processor."""

    model: str
    size: Mapping[str, int] | None  # `None`: images keep their sizes
    resample: int
    crop: Sides | None
    scale: float | None
    mean: Numbers | None
    deviation: Numbers | None
    crop_part: float | None  # of ConvNeXt: the part of the sides that a crop keeps
    converts: bool = True  # whether images of Pillow of any mode become red, green and blue

    def read(self, images: Sequence[Any]) -> Numbers:
        """Return the pixels of images, float32 of shape (images, channels, height, width)."""
        refuse_no_image(self.model, images)
        found = [self.pixels(image) for image in images]
        if len({each.shape for each in found}) > 1:
            raise InputError(
                "images of one call must have the same size",
                where=f"model `{self.model}`",
                found=", ".join(sorted({"x".join(map(str, each.shape[1:])) for each in found})),
                hint="give each image in a call of its own: the image processor does not resize to a fixed size",
            )
        return np.stack(found)

    def pixels(self, given: Any) -> Numbers:
        """Return the pixels of an image, float32 of shape (channels, height, width)."""
        image = in_colours(given, converts=self.converts)
        if self.size is not None:
            sides = (image.height, image.width)
            if self.crop_part is None:
                image = resized(image, target_sides(sides, self.size), self.resample)
            else:
                image = self._resize_convnext(image, self.size["shortest_edge"], self.crop_part)
        pixels = np.moveaxis(np.array(image), -1, 0)
        if self.crop is not None:
            pixels = center_crop(pixels, self.crop)
        found = pixels.astype(np.float64)
        if self.scale is not None:
            found = found * self.scale
        found = found.astype(np.float32)
        if self.mean is not None:
            found = (found - self.mean) / self.deviation
        return np.ascontiguousarray(found, dtype=np.float32)

    def _resize_convnext(self, image: Any, edge: int, part: float) -> Any:
        if edge >= WHOLE:
            return resized(image, (edge, edge), self.resample)
        sides = shortest_sides((image.height, image.width), int(edge / part))
        whole = np.moveaxis(np.array(resized(image, sides, self.resample)), -1, 0)
        return image_of(np.moveaxis(center_crop(whole, (edge, edge)), 0, -1))


def image_reader(model: str, assets: Mapping[str, Path]) -> ImageReader:
    """Return the reader of images for the packaged `preprocessor_config.json`.

    Raises:
        ProgramError: if the assets have no such file, or an image processor with other steps or impossible numbers.
    """
    found = read_processor(model, assets, IMAGES)
    kind, config = found.kind, found.config
    name = next((kind.removesuffix(suffix) for suffix in SUFFIXES if kind.endswith(suffix)), kind)
    if name not in PLAIN or config.get("do_pad") or config.get("do_pan_and_scan"):
        raise ProgramError(
            f"the image processor of model `{model}` has steps that need transformers",
            where=found.where,
            found=f"`{kind}`",
            hint=f"call the model with `pixel_values` of transformers' own processor; known: {', '.join(PLAIN)}",
        )
    config = with_defaults(name, config)
    with checked_numbers(found.where):
        size = resized_sides(config["size"], name, square=config["default_to_square"]) if config["do_resize"] else None
        return ImageReader(
            model,
            size,
            number_from(config["resample"], 0, 5),
            crop_sides(config["crop_size"]) if config.get("do_center_crop") and name not in WITHOUT_CROP else None,
            *scaling(config),
            kept_part(config.get("crop_pct", 224 / 256), size) if name == "ConvNext" and size else None,
            bool(config.get("do_convert_rgb")),
        )


def scaling(config: Mapping[str, Any]) -> tuple[float | None, Numbers, Numbers]:
    """Return the factor of pixels, their mean and their deviation, each `None` without this step."""
    scale = float(config["rescale_factor"]) if config["do_rescale"] else None
    if not config["do_normalize"]:
        return scale, None, None
    return scale, channels(config["image_mean"]), channels(config["image_std"])


def refuse_no_image(model: str, images: Sequence[Any]) -> None:
    if not images:
        raise InputError("there is no image", where=f"model `{model}`", found="an empty list", hint="give images")


def to_image(value: Any, *, as_transformers: bool = False) -> Any:
    """Return a file, an image of Pillow, or an array of uint8 with channels last as an image of Pillow.

    Args:
        value: the image.
        as_transformers: whether a file is turned as its EXIF data say, and loses its transparency.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ProgramError(
            "images need the library Pillow",
            found=f"{type(error).__name__}: {error}",
            hint="install it: pip install pillow",
        ) from error
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, (str, Path)):
        try:
            with Image.open(value) as image:
                return ImageOps.exif_transpose(image).convert("RGB") if as_transformers else image.copy()
        except Exception as error:  # the library raises many kinds for damaged files
            found = f"{type(error).__name__}: {error}"
            raise InputError(
                "a file cannot be read as an image", where=str(value), found=found, hint="name another file"
            ) from error
    return image_of(checked_array(value))


def checked_array(value: Any) -> Numbers:
    array = np.asarray(value)
    if array.dtype != np.uint8 or (array.ndim != 2 and (array.ndim != 3 or array.shape[2] not in ARRAY_CHANNELS)):
        raise InputError(
            "an image must be a file, an image of Pillow, or an array of uint8 of shape (height, width, channels)",
            found=f"{array.dtype} of shape {array.shape}",
            hint="convert the image",
        )
    if array.ndim == CHANNELS and array.shape[0] in ARRAY_CHANNELS:
        raise InputError(
            "the first and the last dimension of an image could both be its channels",
            found=f"shape {array.shape}",
            hint="give an image of Pillow: `Image.fromarray(array)`",
        )
    return array


def image_of(array: Numbers) -> Any:
    from PIL import Image

    return Image.fromarray(array[:, :, 0] if array.ndim == CHANNELS and array.shape[2] == 1 else array)


def in_colours(value: Any, *, converts: bool) -> Any:
    """Return an image of Pillow in red, green and blue, as a processor of transformers sees the pixels.

    Args:
        value: a file, an image of Pillow, or an array.
        converts: whether the processor converts images of Pillow; others take the three channels as they are.
    """
    image = to_image(value, as_transformers=True)
    is_array = image is not value and not isinstance(value, (str, Path))
    if is_array and image.mode == "RGBA":
        return image_of(on_white(np.asarray(value)))
    if not converts and image.mode == "RGB":
        return image
    if not converts and image.mode in OTHER_COLOURS:
        raise InputError(
            "an image must be in red, green and blue",
            found=f"mode `{image.mode}`",
            hint='convert the image: `image.convert("RGB")`',
        )
    return without_transparency(image)


def on_white(pixels: Numbers) -> Numbers:
    """Return an array without its channel of transparency, with the roundings of transformers' own."""
    opaque = pixels[..., 3:] / 255
    return np.round(opaque * pixels[..., :3] + (1 - opaque) * 255).astype(np.uint8)


def without_transparency(image: Any) -> Any:
    """Return an image of Pillow in red, green and blue, on white as transformers puts transparent images."""
    from PIL import Image

    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def named_sides(value: Any, *, square: bool) -> Mapping[str, int]:
    if isinstance(value, int):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, list):
        value = dict(zip(("height", "width"), value, strict=True))
    return {name: int(number_from(side, 1, LARGEST)) for name, side in value.items() if side is not None}


def resized_sides(value: Any, kind: str, *, square: bool) -> Mapping[str, int]:
    sides = named_sides(value, square=square)
    known = [{"shortest_edge"}] if kind == "ConvNext" else [{"shortest_edge"}, {"height", "width"}]
    if set(sides) not in known:
        raise ValueError(f"a size of {', '.join(sorted(sides)) or 'nothing'}")
    return sides


def kept_part(value: Any, size: Mapping[str, int]) -> float:
    """Return the part of the sides that a crop of ConvNeXt keeps; `None` stands for no crop of a large image."""
    if value is None and size["shortest_edge"] >= WHOLE:
        return 1.0
    return float(number_from(value, 0.01, 1))


def crop_sides(value: Any) -> Sides:
    size = named_sides(value, square=True)
    return size["height"], size["width"]


def channels(value: Any) -> Numbers:
    values = [value] * CHANNELS if isinstance(value, (int, float)) else value
    found = np.array([float(each) for each in values], dtype=np.float32).reshape(-1, 1, 1)
    if len(found) != CHANNELS or not np.isfinite(found).all():
        raise ValueError(f"{value!r} is no number for each of {CHANNELS} channels")
    return found


def target_sides(sides: Sides, size: Mapping[str, int]) -> Sides:
    if "height" in size:
        return size["height"], size["width"]
    return shortest_sides(sides, size["shortest_edge"])


def shortest_sides(sides: Sides, edge: int) -> Sides:
    """Return the sides of an image of the same proportions, whose shorter side is `edge`."""
    height, width = sides
    long = int(edge * max(sides) / min(sides))
    return (edge, long) if height <= width else (long, edge)


def resized(image: Any, sides: Sides, resample: int) -> Any:
    height, width = sides
    return image.resize((width, height), resample=resample)


def center_crop(pixels: Numbers, sides: Sides) -> Numbers:
    """Return the middle of an image of shape (channels, height, width), with zeros around it if it is smaller."""
    for axis, side in zip((1, 2), sides, strict=True):
        have = pixels.shape[axis]
        missing = max(side - have, 0)
        before = math.ceil(missing / 2)
        widths = [(before, missing - before) if each == axis else (0, 0) for each in range(3)]
        pixels = np.pad(pixels, widths)
        first = max((have - side) // 2, 0)
        pixels = pixels.take(range(first, first + side), axis)
    return pixels
