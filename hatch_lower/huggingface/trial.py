"""Trials of a generator: the logits of `decode` beside the logits of the model without a cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hatch_lower.frozen import Frozen
from hatch_lower.huggingface.examples import made_inputs

if TYPE_CHECKING:
    from hatch_lower.huggingface.attention import Layers
    from hatch_lower.huggingface.generation import Generator


class Trial(Frozen):
    """A sequence for the comparison of `decode` with the model."""

    tokens: Tensor  # as `decode` takes tokens, of shape (batch, tokens, …)
    sees: Tensor  # bool of shape (batch, 1, tokens, 1 + tokens), with a key that belongs to no token
    positions: Tensor  # int64 of shape (batch, tokens), or float32 of shape (positions of a token, batch, tokens)
    inputs: dict[str, Tensor]  # of `start`
    expected: Tensor  # logits of the last two tokens
    near: Tensor  # bool, broadcast to the shape of `sees`: keys that a sliding layer sees at any distance


def largest_error(made: Generator, trials: int) -> float:
    """Return the largest difference of logits in several trials, relative to the largest logit; infinite for NaN.

    The trials draw the same tokens in each process, so that two builds take the same form.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return max(logit_error(made) for _ in range(trials))


def logit_error(made: Generator) -> float:
    """Return the largest difference of logits between two calls of `decode` and a call of the model.

    The last row has padding, if possible in the encoder.
    """
    trial = made.trial()
    started = made.start(**trial.inputs)
    more: dict[str, Any] = {name: started[name] for name in ("cross",) if name in started}
    if made.has_encoder_mask:
        more["encoder_mask"] = trial.inputs["attention_mask"]
    count = trial.sees.shape[2]
    places = torch.arange(count + 1)
    far = (places[1:, None] - places >= made.window) & ~trial.near
    cache = started["cache"]
    for begin, end in ((0, count - 2), (count - 2, count)):
        if made.takes_positions:
            more["position_ids"] = trial.positions[..., begin:end]
        seen = trial.sees[:, :, begin:end, : end + 1]
        if made.window:
            more["sliding_mask"] = seen & ~far[..., begin:end, : end + 1]
        kept = torch.eye(end - begin)[-2:]
        logits, found = made.decode(trial.tokens[:, begin:end], seen, kept, cache, **more)
        cache = written(cache, found) if made.form.is_apart else found
    error = float((logits - trial.expected).abs().max() / trial.expected.abs().max())
    return error if math.isfinite(error) else math.inf


def expected_logits(made: Generator, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the model's logits of the last two tokens without a cache, and the inputs of `start` for the same rows."""
    model, main = made.model, made.main
    if not made.has_encoder:
        logits = model(input_ids=ids, use_cache=False).logits[:, -2:]
        logits[-1] = model(input_ids=ids[-1:, 1:], use_cache=False).logits[0, -2:]
        return logits, {main: ids}
    inputs = {main: made_inputs(model)[main].value}
    more = {}
    if made.has_encoder_mask:
        more["attention_mask"] = torch.ones_like(inputs[main])
        more["attention_mask"][-1, -2:] = 0
        inputs["attention_mask"] = more["attention_mask"][:, None, None].bool()
    given = {main: inputs[main], **more, "decoder_input_ids": ids}
    return model(**given, use_cache=False).logits[:, -2:], inputs


def written(cache: Layers, new: Layers) -> Layers:
    """Return a cache with new keys and values behind its own."""
    pairs = zip(cache, new, strict=True)
    return [(torch.cat([key, more[0]], 2), torch.cat([value, more[1]], 2)) for (key, value), more in pairs]
