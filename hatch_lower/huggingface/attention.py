"""Attention over keys in two parts: a buffer with the keys of earlier tokens, and the keys of the call's own tokens.

The parts are never joined, so that a call copies no buffer: the caller writes the new keys into the buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

APART = "hatch_lower_apart"  # the name of the attention among those of transformers
EARLIER = "hatch_lower_earlier"  # an attribute of new keys: keys and values of the buffer

Layers = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer, of shape (batch, heads, keys, dimensions)


class ApartLayer(DynamicLayer):
    """The new keys and values of a layer, beside the buffer's."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys, values)
        self.earlier = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states.contiguous(), value_states.contiguous()
        setattr(self.keys, EARLIER, self.earlier)
        return self.keys, self.values


class ApartCache(DynamicCache):
    """A cache of buffers; `position` is the position of the first new token, an integer tensor without dimensions."""

    def __init__(self, layers: Layers, position: Tensor) -> None:
        super().__init__()
        self.layers = [ApartLayer(keys, values) for keys, values in layers]
        self.position = position

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        return self.position


def apart_attention(  # noqa: PLR0913 (the arguments of transformers)
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the result of attention, of shape (batch, tokens, heads, dimensions), as transformers calls attention.

    Args:
        query: of shape (batch, heads, tokens, dimensions).
        key, value: of the call's tokens, with as many heads as the buffer.
        attention_mask: bool of shape (batch, 1, tokens, keys of the buffer and of the tokens).
        scaling: factor of the scores; default: the root of 1 / dimensions.
        softcap: limit of the scores' size.
        position_bias, s_aux: further scores.

    Raises:
        NotImplementedError: for further scores.
    """
    earlier = getattr(key, EARLIER, None)
    if position_bias is not None or s_aux is not None or (earlier is None and softcap is not None):
        raise NotImplementedError("attention with further scores")
    if earlier is None:  # of an encoder, or between a decoder and its encoder
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    batch, heads, tokens, size = query.shape
    kept = key.shape[1]
    parts = [(each.flatten(0, 1), more.flatten(0, 1)) for each, more in (earlier, (key, value))]
    # `bmm`, because a product of more dimensions expands its arguments, and an engine copies the buffer for that
    query = query * (1 / math.sqrt(size) if scaling is None else scaling)
    packed = torch.unflatten(query.contiguous(), 1, (kept, heads // kept)).flatten(2, 3).flatten(0, 1)
    scores = torch.cat([torch.bmm(packed, each.transpose(1, 2)) for each, _ in parts], 2)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = torch.unflatten(torch.unflatten(scores, 1, (heads // kept, tokens)), 0, (batch, kept))
    scores = torch.where(attention_mask[:, :, None], scores, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).flatten(2, 3).flatten(0, 1)
    before = earlier[0].shape[2]
    result = torch.bmm(weights[:, :, :before], parts[0][1]) + torch.bmm(weights[:, :, before:], parts[1][1])
    result = torch.unflatten(torch.unflatten(result, 1, (heads // kept, tokens)), 0, (batch, kept))
    return result.permute(0, 3, 1, 2, 4).flatten(2, 3), None


@contextmanager
def attention_apart(config: Any) -> Iterator[None]:
    """Let a model's layers call `apart_attention`."""
    ALL_ATTENTION_FUNCTIONS.register(APART, apart_attention)
    before = config._attn_implementation
    config._attn_implementation = APART
    try:
        yield
    finally:
        config._attn_implementation = before
