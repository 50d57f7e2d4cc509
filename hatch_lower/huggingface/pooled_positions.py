"""Relative positions of Funnel for an export with a dynamic number of tokens.

Funnel keeps the positions of tokens as a list of Python's integers, which fixes the number of tokens. Each block halves
the number of positions and doubles their distance, so that the first position and the distance define all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.exporters.utils import patch_attribute

STRUCTURE = "FunnelAttentionStructure"  # a class of transformers
RELATIVE_SHIFT = "relative_shift"  # the type of attention that has lists of positions

Embeddings = list[list[Tensor | None]]


def structures(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if type(part).__name__ == STRUCTURE]


def pools_tokens(module: torch.nn.Module) -> bool:
    return bool(structures(module))


def shortest_pooled_text(module: torch.nn.Module) -> int:
    """Return a number of tokens from which on each block of Funnel pools; 1 for another model."""
    return max((1 + 2 ** (part.config.num_blocks - 1) for part in structures(module)), default=1)


@contextmanager
def positions_computed(module: torch.nn.Module) -> Iterator[None]:
    """Let the parts of Funnel in a module compute positions from the number of tokens."""
    with ExitStack() as stack:
        for kind in {type(part): None for part in structures(module)}:
            stack.enter_context(patch_attribute(kind, "get_position_embeds", computed_embeddings))
        yield


def computed_embeddings(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, seq_len: Any, dtype: torch.dtype, device: torch.device) -> Any:
        if self.config.attention_type != RELATIVE_SHIFT:
            return original(self, seq_len, dtype, device)
        return position_embeddings(self, seq_len, dtype, device)

    return method


def position_embeddings(part: Any, count: Any, dtype: torch.dtype, device: torch.device) -> Embeddings:
    """Return the embeddings of relative positions for each block: among its tokens, and from tokens before the pooling.

    Args:
        part: of transformers, with the configuration and dropouts.
        count: the number of tokens, an integer or a symbol.
        dtype, device: of the embeddings, of shape (relative positions, features).
    """
    config = part.config
    half = config.d_model // 2
    frequencies = 1 / (10000 ** (torch.arange(half, device=device).to(dtype) / half))

    def embeddings(largest: Any, distance: int, number: Any) -> Tensor:
        positions = largest - distance * torch.arange(number, device=device)
        angles = positions.to(dtype)[:, None] * frequencies
        return torch.cat([part.sin_dropout(angles.sin()), part.cos_dropout(angles.cos())], -1)

    found: Embeddings = []
    for block in range(config.num_blocks):
        distance, pooling = 2**block, None
        if block:
            before = distance // 2  # the distance of the positions that are pooled
            dropped = 1 if config.separate_cls and not config.truncate_seq else 0
            pooled = (count + 1 + dropped) // 2
            first = -before if config.separate_cls else 0  # from the first position before the pooling
            largest = first + 2 * pooled * before
            pooling = embeddings(largest, before, 2 * pooled + count)
            count = pooled
        found.append([embeddings(count * distance, distance, 2 * count), pooling])
    return found
