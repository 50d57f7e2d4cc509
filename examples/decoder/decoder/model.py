"""The decoder, and the entry point that says what of it to export. It needs transformers: only the build imports it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

from hatch_lower import Method, Model

CACHED = 64
"""How many tokens the cache has room for: prompt and answer together."""


class Decoder(TorchExportableModuleWithStaticCache):
    """A causal language model and its cache: the keys and values of all tokens so far, and how many they are."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Append tokens to the cache and return a score for each possible next one: int64 [1, n] to float32 [vocab]."""
        return self.model(tokens, past_key_values=self.static_cache, use_cache=True).logits[0, -1]


def llama() -> LlamaForCausalLM:
    """Return a Llama of two layers with random weights, the same ones each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,  # with the usual 0.02 an untrained model repeats itself
    )
    return LlamaForCausalLM(config).eval()


def export() -> Model:
    """Return the decoder with two methods that share weights and cache: many tokens at once, and one."""
    model = llama()
    model.generation_config = GenerationConfig(use_cache=True, cache_implementation="static")
    shapes = {"tokens": {1: torch.export.Dim("length", min=2, max=CACHED)}}
    prompt, token = torch.tensor([[1, 2, 3]]), torch.tensor([[4]])
    return Model(
        Decoder(model, batch_size=1, max_cache_len=CACHED),
        # `strict`: the cache is no module, and a strict export finds the buffers that are reached through it.
        methods={
            "prefill": Method(args=(prompt,), dynamic_shapes=shapes, attribute="forward", strict=True),
            "decode": Method(args=(token,), attribute="forward", strict=True),
        },
    )
