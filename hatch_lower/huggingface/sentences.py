"""Encoders of sentence-transformers to export: the method `forward` from tokens to the embedding of each sentence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

from hatch_lower.errors import EntryPointError
from hatch_lower.huggingface.patches import exporting, turn_off_caches
from hatch_lower.model import Method, Model

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

EMBEDDING = "sentence_embedding"


class SentenceEncoder(torch.nn.Module):
    """An encoder whose `forward` takes tokens as keyword arguments, and returns the embeddings alone."""

    def __init__(self, encoder: SentenceTransformer) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **tokens: torch.Tensor) -> torch.Tensor:
        features: Mapping[str, torch.Tensor] = self.encoder(dict(tokens))
        return features[EMBEDDING][:, : self.encoder.truncate_dim]  # `None`: all dimensions, as in `encode`


def sentence_model(encoder: SentenceTransformer, where: str = "its first argument") -> Model:
    """Return a model to export, with the method `forward`: tokens of shape (batch, sequence) to (batch, dimensions).

    Args:
        encoder: with a text model of transformers as its first module; pooling, layers and normalization follow.
        where: the setting, for errors.

    Raises:
        EntryPointError: if the first module is no text model of transformers, or if the pooling leaves out a prompt.
    """
    from hatch_lower.huggingface.examples import LENGTHS, made_inputs
    from hatch_lower.huggingface.pooled_positions import pools_tokens

    inner = inner_model(encoder, where)
    refuse_hidden_prompt(encoder, where)
    turn_off_caches(inner)
    inputs = made_inputs(inner)
    forward = Method(
        kwargs={name: each.value for name, each in inputs.items()},
        dynamic_shapes={name: dict(each.dimensions) for name, each in inputs.items()},
        defer_guards=pools_tokens(inner),
        any_size=True,
        narrow=LENGTHS,
    )
    return Model(SentenceEncoder(encoder).eval(), {"forward": forward}, exporting=partial(exporting, inner))


def inner_model(encoder: SentenceTransformer, where: str) -> PreTrainedModel:
    """Return the model of transformers in an encoder's first module."""
    from transformers import PreTrainedModel

    inner = getattr(encoder[0], "model", None) if len(encoder) else None
    if not isinstance(inner, PreTrainedModel) or inner.main_input_name != "input_ids":
        kinds = ", ".join(f"`{type(part).__name__}`" for part in encoder)
        raise EntryPointError(
            "an encoder of sentences must begin with a text model of transformers",
            where=where,
            found=f"the modules {kinds or 'of an empty encoder'}",
            hint="write an entry point that returns a `hatch_lower.Model`",
        )
    return inner


def refuse_hidden_prompt(encoder: SentenceTransformer, where: str) -> None:
    """Refuse a pooling without the tokens of the default prompt, whose number the method does not take."""
    prompt = encoder.prompts.get(encoder.default_prompt_name or "")
    if prompt and not all(getattr(part, "include_prompt", True) for part in encoder):
        raise EntryPointError(
            "the pooling of the encoder leaves out the tokens of its prompt",
            where=where,
            found=f"`include_prompt` is false, and the default prompt is {prompt!r:.80}",
            hint="save the encoder without `default_prompt_name`: its method then takes texts without a prompt",
        )
