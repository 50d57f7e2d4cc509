"""Heads for classes that read the last end token of a row: numbers and refusals are those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from hatch_lower.events import NullReporter
from hatch_lower.huggingface import model
from hatch_lower.pipeline.capture import capture_model

END = 2
TOKENS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END, "decoder_start_token_id": END}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "Bart": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_position_embeddings": 32,
    },
    "T5": {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_end_token_of_a_row_decides(kind: str) -> None:
    pytest.importorskip("transformers.exporters")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}ForSequenceClassification")
    module = made(made.config_class(**TOKENS, **KINDS[kind])).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(5 if parameter.dim() > 1 else 1)
    (method,) = capture_model("net", model(module), NullReporter()).methods
    assert method.kwargs["input_ids"].eq(END).sum(1).tolist() == [1, 1]
    run = method.program.module()
    ids = torch.randint(3, 99, (3, 9))
    ids[:, 2], ids[1:, 6], ids[0, 4], ids[1, 7:] = END, END, END, 0
    given = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    wanted = module(**given)
    torch.testing.assert_close(run(**given).logits, wanted.logits, rtol=1e-4, atol=1e-5)
    assert run(**given).keys() == wanted.keys()
    for place, token in ((0, END), (slice(None), 5)):  # in the last row: three end tokens, or none
        ids[2, place] = token
        with pytest.raises(ValueError, match="<eos>"):
            module(**given)
        with pytest.raises(RuntimeError):
            run(**given)
