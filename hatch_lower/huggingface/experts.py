"""Mixtures of experts without a choice of weights: each expert reads each token.

The forms of transformers call an operator of its own, or copy the weights of each token's experts: a prompt of 128
tokens would copy the weights of 128 times as many experts as a token has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

ALL_TOKENS = "hatch_lower_all_tokens"  # the name among the forms of transformers


def experts_of_all_tokens(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return the weighted sum of the chosen experts' results, of shape (tokens, features).

    Args:
        module: experts of transformers, with stacked weights.
        hidden_states: of shape (tokens, features).
        top_k_index: the chosen experts, int64 of shape (tokens, chosen).
        top_k_weights: the experts' weights in the sum, of shape (tokens, chosen).
    """
    name = "gate_up_proj" if module.has_gate else "up_proj"
    widened = each_expert(module, name, hidden_states.expand(module.num_experts, *hidden_states.shape))
    inner = module._apply_gate(widened) if module.has_gate else module.act_fn(widened)
    found = each_expert(module, "down_proj", inner)
    if module.has_post_expert_norm:
        found = module.post_expert_norm(found)
    chosen = top_k_index[..., None] == torch.arange(module.num_experts)
    share = torch.where(chosen, top_k_weights[..., None].to(found.dtype), 0.0).sum(1).T[..., None]
    # a number that is not finite, of an expert that was not chosen, is not in the sum
    return torch.where(share != 0, found * share, 0.0).sum(0).to(hidden_states.dtype)


def each_expert(module: Any, name: str, inputs: Tensor) -> Tensor:
    """Return the results of a linear layer of each expert, of shape (experts, tokens, features)."""
    weight = getattr(module, name)
    found = torch.bmm(inputs, weight if module.is_transposed else weight.transpose(1, 2))
    return found + getattr(module, f"{name}_bias")[:, None] if module.has_bias else found


@contextmanager
def experts_for_export(module: Any) -> Iterator[None]:
    """Let the experts of a model of transformers call `experts_of_all_tokens`."""
    if not module._can_set_experts_implementation():
        yield
        return
    ALL_EXPERTS_FUNCTIONS.register(ALL_TOKENS, experts_of_all_tokens)
    before = module.get_experts_implementation()
    module.set_experts_implementation(ALL_TOKENS)
    try:
        yield
    finally:
        module.set_experts_implementation(before)
