"""Mixtures of experts of transformers as they are exported: the numbers are eager's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 24}
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gates": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "many experts": (
        "Qwen3Moe",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "head_dim": 8},
    ),
    "bias and transposed weights": (
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_experts_are_those_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("transformers.exporters")
    from hatch_lower.huggingface.experts import experts_for_export

    name, config = KINDS[kind]
    torch.manual_seed(0)
    module = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**SIZES, **config))
    module.eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        ids = torch.randint(0, 99, (2, 7))
        before = module.get_experts_implementation()
        wanted = module(input_ids=ids).logits
        with experts_for_export(module):
            found = module(input_ids=ids).logits
            program = torch.export.export(module.model.layers[0].mlp, (torch.randn(1, 5, 32),), strict=False)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert module.get_experts_implementation() == before
    # no weights of single tokens: their number would grow with the prompt
    sizes = [node.meta["val"].numel() for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert max(sizes) <= max(parameter.numel() for parameter in module.model.layers[0].mlp.parameters())
