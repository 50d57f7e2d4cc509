"""Packaged configurations of processors: image processors and feature extractors of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatch_lower.errors import ProgramError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.texts import read_asset

PROCESSOR = "preprocessor_config.json"
JOINT = "processor_config.json"  # of a processor of texts and images or sounds
IMAGES, SOUNDS = "image_processor", "feature_extractor"  # parts of a joint processor
KINDS = {IMAGES: ("image_processor_type", "feature_extractor_type"), SOUNDS: ("feature_extractor_type",)}


class ProcessorConfig(Frozen):
    """The configuration of a processor of images or of sounds."""

    kind: str  # the name of a class of transformers, or `no kind`
    config: Mapping[str, Any]
    where: str  # the file


def read_processor(model: str, assets: Mapping[str, Path], part: str) -> ProcessorConfig:
    """Return the configuration of a part: of `processor_config.json` if the part is there, as transformers reads it.

    Else that of `preprocessor_config.json`.

    Raises:
        ProgramError: if the assets have neither file, or a damaged file.
    """
    inner = read_asset(model, assets, JOINT).get(part) if JOINT in assets else None
    file = PROCESSOR if inner is None and (PROCESSOR in assets or JOINT not in assets) else JOINT
    config = read_asset(model, assets, PROCESSOR) if file == PROCESSOR else inner
    if not isinstance(config, Mapping):
        config = {}
    kind = next((str(config[name]) for name in KINDS[part] if config.get(name)), "no kind")
    return ProcessorConfig(kind, config, str(assets[file]))


def has_images(assets: Mapping[str, Path]) -> bool:
    """Return whether a checkpoint has an image processor."""
    try:
        config = read_processor("", assets, IMAGES).config
    except ProgramError:
        return False
    return "image_processor_type" in config or "image_mean" in config


@contextmanager
def checked_numbers(where: str) -> Iterator[None]:
    """Raise `ProgramError` for missing or impossible members of a configuration."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProgramError(
            "a packaged configuration cannot be used",
            where=where,
            found=f"{type(error).__name__}: {error}",
            hint="save the processor with transformers 5, and build the wheel again",
        ) from error


def number_from(value: Any, least: float, most: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{value!r} is no number from {least} to {most}")
    return value


def integer_from(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is no integer")
    return int(number_from(value, least, most))
