"""Exports of ViLT for whole images.

ViLT draws an order of the patches that a mask of pixels leaves, which depends on the contents of the mask. Attention
reads patches in any order: without a mask, an export takes all patches in the order of the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

MODEL = "ViltModel"  # a class of transformers


@contextmanager
def images_whole(module: torch.nn.Module) -> Iterator[None]:
    """Let the ViLT models in a module take all patches of images without a mask."""
    models = [part for part in module.modules() if type(part).__name__ == MODEL]
    hooks = [model.register_forward_pre_hook(with_embeddings, with_kwargs=True) for model in models]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def with_embeddings(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Return arguments with embeddings in place of images, or `None` for arguments that stay as they are."""
    pixels = kwargs.get("pixel_values")
    if pixels is None or kwargs.get("pixel_mask") is not None:
        return None
    found = embedded(model.embeddings, pixels)
    if found is None:
        return None
    mask = torch.ones(found.shape[:2], dtype=torch.int64, device=found.device)
    return args, {**kwargs, "pixel_values": None, "image_embeds": found, "pixel_mask": mask}


def embedded(embeddings: Any, pixels: Tensor) -> Tensor | None:
    """Return the embeddings of all patches with their positions, of shape (batch, 1 + patches, features).

    `None` is returned for images of another size than the configuration's, and for a model that draws a part of the
    patches.
    """
    config = embeddings.config
    side = config.image_size // config.patch_size
    patches = embeddings.patch_embeddings(pixels)
    if patches.shape[2:] != (side, side) or 0 <= config.max_image_length < side * side:
        return None
    first = embeddings.cls_token.expand(patches.shape[0], -1, -1)
    joined = torch.cat([first, patches.flatten(2).transpose(1, 2)], 1)
    found: Tensor = embeddings.dropout(joined + embeddings.position_embeddings)
    return found
