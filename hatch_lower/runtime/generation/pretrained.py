"""A packaged language model as a model of transformers, for its searches: beams, assisted decoding, constraints."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.prompts import PIXELS
from hatch_lower.runtime.generation.calls import LanguageModel, check_methods
from hatch_lower.runtime.generation.images import (
    EMBED,
    ENCODE,
    PLAIN_ARGUMENTS,
    ImagePrompt,
    image_arguments,
    image_prompt,
)
from hatch_lower.runtime.generation.loop import Cache, Steps, padding_mask
from hatch_lower.runtime.generation.settings import GENERATION
from hatch_lower.runtime.texts import CONFIG

Layers = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer, of shape (batch, heads, keys, dimensions)


class Start(torch.nn.Module):
    """The method `start` as an encoder: its result holds the keys and values of the decoder's layers, side by side."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.start = model.methods["start"]
        self.takes = frozenset(inspect.signature(self.start).parameters)
        self.started: dict[str, Any] = {}  # of the first call: sizes, which are the same in each call

    def forward(self, attention_mask: Tensor | None = None, **inputs: Any) -> BaseModelOutput:
        given = {name: value for name, value in inputs.items() if name in self.takes}
        if "attention_mask" in self.takes:
            given["attention_mask"] = mask_of(attention_mask, given["input_ids"])
        found = self.start(**given)
        self.started = self.started or found
        return BaseModelOutput(torch.cat([each.transpose(1, 2).flatten(2) for each in flat(found["cross"])], 2))

    def first_keys(self, tokens: Tensor) -> Layers:
        """Return the cache before the first token."""
        if not self.started:
            self.started = self.start(input_ids=tokens)
        rows = len(tokens)
        return [
            (key[:1].expand(rows, -1, -1, -1), value[:1].expand(rows, -1, -1, -1))
            for key, value in self.started["cache"]
        ]

    def cross_layers(self, hidden: Tensor) -> Layers:
        """Return the keys and values of layers from a result of `forward`."""
        shapes = [each.shape for each in flat(self.started["cross"])]
        parts = torch.split(hidden, [shape[1] * shape[3] for shape in shapes], 2)
        found = [
            part.reshape(*part.shape[:2], shape[1], shape[3]).transpose(1, 2).contiguous()
            for part, shape in zip(parts, shapes, strict=True)
        ]
        return list(zip(found[::2], found[1::2], strict=True))


class Lowered(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """A model of transformers without parameters, whose `forward` calls the methods of a packaged model."""

    def __init__(self, model: LanguageModel, config: Any) -> None:
        super().__init__(config)
        self.start = Start(model)
        self.methods = model.methods
        self.decode = model.methods["decode"]
        self.takes = frozenset(inspect.signature(self.decode).parameters)
        self.arrays = model.arrays
        sounds = (name for name in ("input_features", "input_values") if name in self.start.takes)
        self.main_input_name = next(sounds, "input_ids")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def can_generate(self) -> bool:  # type: ignore[override]
        return True

    def get_encoder(self, modality: str | None = None) -> Any:
        return self.start if "cross" in self.takes else self

    def forward(  # noqa: PLR0913 (the arguments of transformers)
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_features: Tensor | None = None,
        cache: Any = None,
        encoder_outputs: Any = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        logits_to_keep: int = 0,
        pixel_values: Tensor | None = None,
        use_cache: bool | None = None,
        input_values: Tensor | None = None,
        **ignored: Any,
    ) -> Any:
        """Return logits of the last `logits_to_keep` tokens (0: of all) and the cache, as models of transformers do.

        The images of a prompt are read with the first tokens.
        """
        has_encoder = "cross" in self.takes
        tokens: Any = decoder_input_ids if has_encoder else input_ids
        if cache is None or use_cache is False:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if has_encoder else DynamicCache()
        own = cache.self_attention_cache if has_encoder else cache
        first = self.start.first_keys(tokens)
        held = cache_before(first, own)
        started = self.start.started
        given = decoder_attention_mask if has_encoder else attention_mask
        visible = torch.ones(len(tokens), held.used - 1 + tokens.shape[1]) if given is None else given
        more: dict[str, Any] = {}
        if has_encoder:
            more["cross"] = self.start.cross_layers(encoder_outputs[0])
        if "encoder_mask" in self.takes:
            more["encoder_mask"] = mask_of(attention_mask, encoder_outputs[0][..., 0])
        images = None
        if EMBED in self.methods:
            is_prompt = held.used == 1 and pixel_values is not None
            images = self._image_prompt(tokens, visible.bool(), {PIXELS: pixel_values} if is_prompt else {})
        steps = Steps(self.decode, self.arrays, int(started["window"]), int(started["longest"]), more, images)
        last = logits_to_keep or tokens.shape[1]
        logits, after = steps.logits(tokens.numpy(), visible.bool().numpy(), last, held)
        # layers of one kind: sliding layers of transformers forget keys, and `decode` masks them
        own.layers = [kept_layer(*(each[:, :, 1 : after.used] for each in layer)) for layer in after.layers]
        kept = None if use_cache is False else cache
        return (Seq2SeqLMOutput if has_encoder else CausalLMOutputWithPast)(logits=logits, cache=kept)

    def _image_prompt(self, tokens: Tensor, visible: Tensor, given: dict[str, Any]) -> ImagePrompt | None:
        arrays = {name: value.float().numpy() for name, value in given.items()}
        # a token of images that was generated is a token as others are
        ids = tokens.numpy() if given else np.full(tokens.shape, -1)
        return image_prompt(self.methods, self.arrays, arrays, ids, visible.numpy(), self.start.started)


def cache_before(first: Layers, cache: Any) -> Cache:
    """Return the cache that `decode` takes from its first keys, and the keys that transformers holds."""
    if any(not isinstance(layer, DynamicLayer) for layer in cache.layers):
        raise InputError(
            "the keys of a packaged model need a cache that grows",
            found=f"layers of type `{type(cache.layers[0]).__name__}`",
            hint="leave out `cache_implementation`",
        )
    if not cache.layers or not cache.layers[0].is_initialized:
        return Cache(first)
    pairs = zip(first, cache.layers, strict=True)
    layers = [(torch.cat([key, layer.keys], 2), torch.cat([value, layer.values], 2)) for (key, value), layer in pairs]
    return Cache(layers, layers[0][0].shape[2])


def flat(layers: Layers) -> list[Tensor]:
    return [each for layer in layers for each in layer]


def mask_of(words: Tensor | None, tokens: Tensor) -> Tensor:
    return torch.from_numpy(padding_mask((torch.ones(tokens.shape) if words is None else words).bool().numpy()))


def kept_layer(keys: Tensor, values: Tensor) -> Any:
    layer: Any = DynamicLayer()  # type: ignore[no-untyped-call]
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer


def transformers_model(model: LanguageModel) -> Lowered:
    """Return a packaged language model as a model of transformers.

    Raises:
        InputError: if the model does not generate tokens.
        ProgramError: if the model's assets have no configuration, or its arrays are not torch's on the CPU.
    """
    check_methods(model)
    if CONFIG not in model.assets or model.arrays.name != "torch" or model.arrays.device != "cpu":
        raise ProgramError(
            f"model `{model.name}` cannot become a model of transformers",
            found=f"assets {', '.join(model.assets) or 'none'}; {model.arrays.noun} on `{model.arrays.device}`",
            hint='declare the model with `transformers`, and load it with `arrays="torch"` on the CPU',
        )
    if ENCODE in model.methods and image_arguments(model.methods[ENCODE]) != PLAIN_ARGUMENTS:
        raise ProgramError(
            f"model `{model.name}` cannot become a model of transformers",
            found="images of different sizes",
            hint="generate tokens with `model.generate(…)`",
        )
    made = Lowered(model, AutoConfig.from_pretrained(str(model.assets[CONFIG])))
    if GENERATION in model.assets:
        made.generation_config = GenerationConfig.from_pretrained(str(model.assets[GENERATION].parent))
        # the model has a cache of its own; a configuration may name another, as Gemma 2's names `hybrid`
        made.generation_config.cache_implementation = None
    return made
