"""Refusals of models, and of images, for generation, with the entry point that exports `forward` instead."""

from __future__ import annotations

import inspect
from typing import Any

from hatch_lower.errors import EntryPointError

OWN_INPUTS = (
    "in an entry point, return `hatch_lower.huggingface.model(module, inputs={…}, dynamic_shapes={…})`, without"
    " `dynamic_shapes` for fixed sizes"
)

OTHER_METHOD = f"export its method `forward`: {OWN_INPUTS}"
SOUNDS = ("input_features", "input_values")  # arguments


def refuse_sounds(model: Any) -> None:
    """Refuse a language model whose prompts have sounds: its methods for generation would take texts alone."""
    if not model.config.is_encoder_decoder:
        for name in inspect.signature(model.forward).parameters:
            if name in SOUNDS:
                raise refused(model, f"an encoder of sounds, `{name}`", "its prompts")


def refused(model: Any, reason: str, where: str = "its cache") -> EntryPointError:
    return EntryPointError(
        f"generation is not possible with `{type(model).__name__}`",
        where=where,
        found=reason,
        hint=OTHER_METHOD,
    )


def refused_images(model: Any, reason: str) -> EntryPointError:
    return EntryPointError(
        f"the images of `{type(model).__name__}` cannot be exported for generation",
        where="its images",
        found=reason,
        hint=OTHER_METHOD,
    )
