"""Heads for classes behind an encoder with a decoder (BART, T5), which read the state of a row's last end token.

transformers selects the states of all end tokens: their number depends on the tokens. For an export, a product with a
matrix of zeros and ones selects the last. As in transformers, all rows must have the same number of end tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.exporters.utils import patch_attribute
from transformers.modeling_outputs import Seq2SeqSequenceClassifierOutput
from transformers.utils.import_utils import torch_compilable_check

HEAD = "ForSequenceClassification"  # the end of a class


def reads_end_tokens(part: Any) -> bool:
    return type(part).__name__.endswith(HEAD) and bool(part.config.is_encoder_decoder)


@contextmanager
def last_ends_selected(module: torch.nn.Module) -> Iterator[None]:
    """Let the heads in a module select states by a product."""
    with ExitStack() as stack:
        for kind in {type(part): None for part in module.modules() if reads_end_tokens(part)}:
            stack.enter_context(patch_attribute(kind, "forward", selecting_last_ends))
        yield


def selecting_last_ends(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(part: Any, input_ids: Tensor, **inputs: Any) -> Any:
        if hasattr(part, "_shift_right") and inputs.get("decoder_input_ids") is None:
            inputs["decoder_input_ids"] = part._shift_right(input_ids)
        found = getattr(part, part.base_model_prefix)(input_ids, **inputs)
        state = last_end(found.last_hidden_state, input_ids == part.config.eos_token_id)
        logits = part.classification_head(state)
        encoded = found.encoder_last_hidden_state
        return Seq2SeqSequenceClassifierOutput(logits=logits, encoder_last_hidden_state=encoded)

    return forward


def last_end(states: Tensor, is_end: Tensor) -> Tensor:
    """Return the state of the last end token of each row, of shape (batch, features)."""
    counts = is_end.to(states.dtype).cumsum(1)
    total = counts[:, -1:]
    is_equal = ((total == total[:1]) & (total > 0)).all().item()  # a number: engines without torch check it, too
    torch_compilable_check(is_equal, "all rows must have the same number of end tokens, and at least one")
    chosen = torch.where(is_end & (counts == total), 1.0, 0.0).to(states.dtype)
    return torch.bmm(chosen[:, None], states)[:, 0]
