"""Members that the configuration of an image processor may lack, and their values in the classes of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # mean and deviation of each channel
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
BILINEAR, BICUBIC = 2, 3  # of Pillow


def members(
    size: Mapping[str, int], numbers: Any = HALF, resample: int = BICUBIC, crop: int | None = None, **more: Any
) -> Mapping[str, Any]:
    mean, deviation = numbers
    always = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True)
    found = {**always, "size": size, "resample": resample, "rescale_factor": 1 / 255}
    found |= {"image_mean": mean, "image_std": deviation, "default_to_square": "shortest_edge" not in size}
    if crop is not None:
        found |= {"do_center_crop": True, "crop_size": crop}
    return MappingProxyType({**found, **more})


def square(side: int) -> Mapping[str, int]:
    return {"height": side, "width": side}


SHORTEST = {"shortest_edge": 224}
COLOURS = {"do_convert_rgb": True}  # images of any mode become red, green and blue
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Beit": members(square(224), do_center_crop=False, crop_size=224),
        "Bit": members(SHORTEST, CLIP, crop=224, **COLOURS),
        "Blip": members(square(384), CLIP, **COLOURS),
        "CLIP": members(SHORTEST, CLIP, crop=224, **COLOURS),
        "ChineseCLIP": members(SHORTEST, CLIP, crop=224, **COLOURS),
        "ConvNext": members({"shortest_edge": 384}),
        "DeiT": members(square(256), crop=224),
        "Gemma3": members(square(224), resample=BILINEAR, **COLOURS),
        "Llava": members(SHORTEST, CLIP, crop=224, **COLOURS),
        "MobileNetV1": members({"shortest_edge": 256}, resample=BILINEAR, crop=224),
        "MobileNetV2": members({"shortest_edge": 256}, resample=BILINEAR, crop=224),
        "Pvt": members(square(224), IMAGENET),
        "Qwen2VL": members({"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, CLIP, **COLOURS),
        "Segformer": members(square(512), IMAGENET, BILINEAR),
        "Siglip": members(square(224), default_to_square=False, **COLOURS),
        "ViT": members(square(224), resample=BILINEAR),
    }
)
SYNONYMS = {"BEiT": "Beit"}


def with_defaults(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration in which each missing member has the value of a class, by its name without suffix.

    `null` is a value, which leaves a step out.
    """
    found = {**DEFAULTS[SYNONYMS.get(kind, kind)], **config}
    if kind == "CLIP" and found.get("use_square_size"):
        found["size"] = square(SHORTEST["shortest_edge"])  # of Kosmos-2
    return found
