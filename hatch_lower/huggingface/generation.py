"""Language models to export for generation: the methods `start` and `decode`, and a cache of keys and values between.

Masks are inputs, true where a token sees a key: a graph without arithmetic on integers is a single partition for every
engine. The first key of each cache is always hidden: engines take no tensors without elements.

`decode` returns the new keys and values, and the caller writes them into the cache, which no call copies. For models
whose attention cannot be replaced, `decode` returns the whole cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.export import Dim
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hatch_lower.frozen import Frozen
from hatch_lower.huggingface.attention import ApartCache, Layers, attention_apart
from hatch_lower.huggingface.examples import BATCH, LARGEST_BATCH, LONGEST_SAMPLES, longest_text, made_inputs
from hatch_lower.huggingface.patches import exporting
from hatch_lower.huggingface.refusals import OTHER_METHOD, refused
from hatch_lower.huggingface.trial import Trial, expected_logits, largest_error
from hatch_lower.model import Method, Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hatch_lower.errors import EntryPointError

TOKENS, PAST = 3, 5  # sizes of examples
CALL_FAILED = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)  # of a call that a model does not take
# kinds of layers, in configurations
SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"


class Example(Frozen):
    value: Any
    shape: Any  # as in `dynamic_shapes`


class CacheForm(Frozen):
    is_apart: bool  # whether attention takes keys of the cache and new keys apart
    unseen: int = 1  # 0 for a model with relative positions, which compare the places of keys
    adds_masks: bool = False  # whether attention adds the mask to its scores


FORMS = (CacheForm(True), CacheForm(False), CacheForm(False, 1, True), CacheForm(False, 0), CacheForm(False, 0, True))
TRIALS = 4  # for a form
# of logits, relative to the largest: of the right form in float32, and of a form that may be taken
ROUNDING, LARGEST_ERROR = 1e-5, 1e-4


class OwnCache(DynamicCache):
    """A cache of a decoder's own tokens, whose first `unseen` keys do not count as positions."""

    def __init__(self, layers: Layers, unseen: int) -> None:
        super().__init__(layers)
        self.unseen = unseen

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        return super().get_seq_length(layer_idx) - self.unseen


class EncoderResult(BaseModelOutput):
    attention_mask = None  # Moonshine's decoder reads the attribute


class Generator(torch.nn.Module):
    """A language model with the methods that generation calls.

    Args:
        model: a causal model, or an encoder with a decoder.
        form: the arguments of the model that give the same logits as a call without a cache.
    """

    vocabulary: int
    position_rows = 0  # positions of a token; 0 for one position without a dimension of its own

    def __init__(self, model: Any, form: CacheForm) -> None:
        super().__init__()
        self.model, self.form = model, form
        self.text_config = model.config.get_text_config(decoder=True)
        self.parameter_names = frozenset(inspect.signature(model.forward).parameters)
        self.vocabulary = number_of_tokens(model)
        self.has_encoder = bool(model.config.is_encoder_decoder)
        self.main = model.main_input_name if self.has_encoder else "input_ids"
        longest = longest_text(model.get_decoder() if self.has_encoder else model)
        self.longest = min(cache_limits(self.text_config, longest))
        self.takes_positions = form.is_apart or "position_ids" in self.parameter_names
        self.window = sliding_window(self.text_config)
        self.has_encoder_mask = self.has_encoder and self.main == "input_ids"
        self.has_any_sound = self.has_encoder and self.main == "input_values"  # of any length
        self.shapes = self._cache_shapes()

    def start(self, **inputs: Tensor) -> dict[str, Any]:
        """Return the cache before the first token, and the model's sizes; the window is 0 without sliding layers."""
        batch = inputs[self.main].shape[0]
        cache = [(torch.zeros(batch, *key), torch.zeros(batch, *value)) for key, value in self.shapes]
        found: dict[str, Any] = {"cache": cache, "longest": self.longest, "window": self.window}
        found["vocabulary"] = self.vocabulary
        if self.has_encoder:
            if "attention_mask" in inputs:
                inputs["attention_mask"] = self._mask(inputs["attention_mask"])
            encoded = EncoderResult(self.model.get_encoder()(**inputs).last_hidden_state)
            both = EncoderDecoderCache(DynamicCache(), DynamicCache())
            token = torch.zeros(batch, 1, dtype=torch.int64)
            self.model(decoder_input_ids=token, encoder_outputs=encoded, cache=both, use_cache=True)
            found["cross"] = keys_and_values(both.cross_attention_cache)
        return found

    def decode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        kept: Tensor,
        cache: Layers,
        position_ids: Tensor | None = None,
        sliding_mask: Tensor | None = None,
        cross: Layers | None = None,
        encoder_mask: Tensor | None = None,
    ) -> tuple[Tensor, Layers]:
        """Return logits of shape (batch, kept, vocabulary), and the new keys and values, or the whole cache.

        Args:
            kept: a matrix of shape (kept, tokens), which has a 1 in each row at the token whose logits are needed.
        """
        own, mask = self._own_cache(cache, position_ids), self._masks(attention_mask, sliding_mask)
        given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": mask, "cache": own}
        if cross is not None:
            both = EncoderDecoderCache(own, DynamicCache(cross))
            both.is_updated = dict.fromkeys(range(len(cross)), True)
            # the layers read the keys of the cache, and no numbers of the encoder's result
            result = EncoderResult(cross[0][0][:, 0])
            words = None if encoder_mask is None else self._mask(encoder_mask)
            given = {"decoder_input_ids": input_ids, "decoder_attention_mask": mask, "cache": both}
            given |= {"encoder_outputs": result, "attention_mask": words}
        return self._logits(given, kept, position_ids), keys_and_values(own)

    def _logits(self, given: dict[str, Any], kept: Tensor, position_ids: Tensor | None) -> Tensor:
        if "position_ids" in self.parameter_names:
            given["position_ids"] = position_ids
        # a product, because indices into a dynamic size are no operation of every engine
        head: Any = self.model.get_output_embeddings()
        selecting = head.register_forward_pre_hook(lambda _, args: (kept @ args[0],))
        # the text configuration of an encoder with a decoder is a copy, which no layer reads
        config = self.model.config if self.has_encoder else self.text_config
        with selecting, attention_apart(config) if self.form.is_apart else nullcontext():
            logits: Tensor = self.model(**given, use_cache=True).logits
            return logits

    def _masks(self, sees: Tensor, sliding: Tensor | None) -> Any:
        mask = self._mask(sees)
        if sliding is None:
            return mask
        is_mixed = FULL in (getattr(self.text_config, "layer_types", None) or ())
        return {FULL: mask, SLIDING: self._mask(sliding)} if is_mixed else self._mask(sliding)

    def trial(self) -> Trial:
        ids = torch.randint(0, self.vocabulary, (BATCH, TOKENS + 2))
        expected, inputs = expected_logits(self, ids)
        mask, positions = example_mask(BATCH, TOKENS + 2, 1), torch.arange(TOKENS + 2).repeat(BATCH, 1)
        if not self.has_encoder:
            mask[-1, :, 1:, 1] = False
            positions[-1] = (positions[-1] - 1).clamp(min=0)
        return Trial(ids, mask, positions, inputs, expected, torch.tensor(False))

    def token_argument(self, ids: Tensor) -> tuple[str, Tensor]:
        """Return the name and the value of the argument of `decode` for tokens."""
        return "input_ids", ids

    def further_examples(self, batch: Any) -> dict[str, dict[str, Example]]:
        """Return example inputs of the methods beside `start` and `decode`."""
        return {}

    def _mask(self, sees: Tensor) -> Tensor:
        return torch.where(sees, 0.0, torch.finfo(torch.float32).min) if self.form.adds_masks else sees

    def _own_cache(self, cache: Layers, position_ids: Any) -> DynamicCache:
        if self.form.is_apart:
            return ApartCache(cache, position_ids[(0,) * position_ids.dim()])
        return OwnCache(cache, self.form.unseen)

    def _cache_shapes(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Return the shapes of each layer's keys and values in a new cache, without the batch."""
        cache = DynamicCache()
        given: dict[str, Any] = {"input_ids": torch.zeros(1, 1, dtype=torch.int64), "cache": cache}
        if self.has_encoder:
            example = made_inputs(self.model)[self.main].value[:1]
            given = {self.main: example, "decoder_input_ids": given["input_ids"]}
            given["cache"] = EncoderDecoderCache(cache, DynamicCache())
        with torch.no_grad():
            try:
                self.model(**given, use_cache=True)
            except CALL_FAILED as error:
                raise refused_call(self.model, given, error) from error
        layers: Any = cache.layers
        if not layers or any(type(layer) is not DynamicLayer or layer.keys is None for layer in layers):
            raise refused(self.model, "its cache has other members than keys and values of each layer")
        return [(layer.keys.shape[1:], layer.values.shape[1:]) for layer in layers]


def generation_model(module: PreTrainedModel, kind: type[Generator]) -> Model:
    module.config.return_dict = True
    made = checked_generator(module, kind)
    batch = Dim("batch", min=1, max=LARGEST_BATCH)
    longest = longest_text(module.get_encoder()) if made.has_encoder else made.longest
    source = Dim("source", min=1, max=longest)
    start = start_examples(made, batch, source)
    with torch.no_grad():
        started = made.start(**{name: example.value for name, example in start.items()})
    decode = decode_examples(made, started, batch, source)
    examples = {"start": start, "decode": decode, **made.further_examples(batch)}
    # torch.export proves nothing about quotients of samples
    deferred = {"start"} if made.has_any_sound else set()
    methods = {name: as_method(each, defer_guards=name in deferred) for name, each in examples.items()}
    return Model(made, methods, exporting=partial(exporting, module), advice=OTHER_METHOD)


def as_method(examples: dict[str, Example], *, defer_guards: bool) -> Method:
    return Method(
        defer_guards=defer_guards,
        kwargs={name: example.value for name, example in examples.items()},
        dynamic_shapes={name: example.shape for name, example in examples.items()},
    )


def start_examples(made: Generator, batch: Any, source: Any) -> dict[str, Example]:
    main = made.model.main_input_name
    given = made_inputs(made.model)[main]
    if main != "input_ids":
        return {main: Example(given.value, dict(given.dimensions))}
    found = {main: Example(given.value, {0: batch, 1: source})}
    if made.has_encoder_mask:
        mask = torch.ones(BATCH, 1, 1, given.value.shape[1], dtype=torch.bool)
        mask[-1, ..., -2:] = False
        found["attention_mask"] = Example(mask, {0: batch, 3: source})
    return found


def decode_examples(made: Generator, started: dict[str, Any], batch: Any, source: Any) -> dict[str, Example]:
    """Return example inputs of `decode` after `PAST` keys."""
    tokens, past = (Dim(name, min=1, max=made.longest + 1) for name in ("tokens", "past"))
    ids = torch.randint(0, made.vocabulary, (BATCH, TOKENS))
    mask = example_mask(BATCH, TOKENS, PAST)
    shape = {0: batch, 2: tokens, 3: Dim.AUTO}  # the number of keys is the sum of `past` and `tokens`
    cache = [tuple(torch.randn(BATCH, heads, PAST, size) for heads, _, size in pair) for pair in made.shapes]
    name, given = made.token_argument(ids)
    found = {
        name: Example(given, {0: batch, 1: tokens}),
        "attention_mask": Example(mask, shape),
        "kept": Example(torch.eye(TOKENS)[1:], {0: Dim("kept", min=1, max=made.longest), 1: tokens}),
        "cache": Example(cache, [({0: batch, 2: past}, {0: batch, 2: past}) for _ in cache]),
    }
    if made.takes_positions:
        positions, own = torch.arange(PAST - 1, PAST - 1 + TOKENS).repeat(BATCH, 1), {0: batch, 1: tokens}
        if made.position_rows:
            positions, own = positions.repeat(made.position_rows, 1, 1).float(), {1: batch, 2: tokens}
        found["position_ids"] = Example(positions, own)
    if made.window:
        found["sliding_mask"] = Example(mask.clone(), dict(shape))
    if made.has_encoder:
        cross = started["cross"]
        sizes = {0: batch, 2: source} if made.has_encoder_mask else {0: batch}
        if made.has_any_sound:
            sizes[2] = Dim("frames", min=1, max=LONGEST_SAMPLES)
        found["cross"] = Example(cross, [(dict(sizes), dict(sizes)) for _ in cross])
    if made.has_encoder_mask:
        found["encoder_mask"] = Example(
            torch.ones(BATCH, 1, 1, cross[0][0].shape[2], dtype=torch.bool), {0: batch, 3: source}
        )
    return found


def example_mask(batch: int, tokens: int, past: int) -> Tensor:
    sees = torch.ones(batch, 1, tokens, past + tokens, dtype=torch.bool).tril(past)
    sees[..., 0] = False
    return sees


def checked_generator(model: PreTrainedModel, kind: type[Generator]) -> Generator:
    """Return the generator whose logits are those of the model without a cache.

    If no form is within rounding, the form with the smallest error is taken: a wrong form may have small errors for
    some tokens, for instance of a model whose relative positions change little.
    """
    reason = ""
    nearest: tuple[float, Generator] | None = None
    for form in FORMS:
        try:
            made = kind(model, form)
            error = largest_error(made, TRIALS)
        except CALL_FAILED as failed:
            reason = f"a call with a mask of tokens and keys failed: {type(failed).__name__}: {failed}"
            continue
        if nearest is None or error < nearest[0]:
            nearest = error, made
        if error <= ROUNDING:
            break
    if nearest is None:
        raise refused(model, reason)
    error, made = nearest
    if error > LARGEST_ERROR:
        raise refused(model, f"its logits differ from the logits without a cache by {error:.1g} of the largest logit")
    return made.eval()


def number_of_tokens(model: Any) -> int:
    """Return the size of the vocabulary, of a model with an embedding of tokens and a layer of logits."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not hasattr(embedding, "num_embeddings"):
        raise refused(model, f"not an embedding, but `{type(embedding).__name__}`", "its `get_input_embeddings`")
    if head is None:
        raise refused(model, "no layer of logits", "its `get_output_embeddings`")
    return int(embedding.num_embeddings)


def refused_call(model: PreTrainedModel, given: dict[str, Any], error: Exception) -> EntryPointError:
    """Return the error of a call with a new cache, which says whether the model takes the inputs without a cache."""
    inputs = {name: value for name, value in given.items() if name != "cache"}
    try:
        model(**inputs, use_cache=False)
    except CALL_FAILED as own:
        names = ", ".join(f"`{name}`" for name in inputs)
        return refused(
            model, f"a call with {names} and without a cache failed: {type(own).__name__}: {own}", "its inputs"
        )
    return refused(model, f"a call with a cache of keys and values failed: {type(error).__name__}: {error}")


def sliding_window(config: Any) -> int:
    """Return the number of keys that a sliding layer sees; 0 without sliding layers."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and SLIDING not in kinds:
        return 0
    return getattr(config, "sliding_window", None) or 0


def cache_limits(config: Any, longest: int) -> Iterator[int]:
    """Yield the lengths beyond which earlier keys would have to change, or layers would see other keys."""
    if CHUNKED in (getattr(config, "layer_types", None) or ()):
        yield config.attention_chunk_size
    if (places := getattr(config, "max_seq_len", None)) is not None:
        yield places - 1  # the key that belongs to no token has a place, too (MPT)
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *rope.values()):  # of all layers, or by the kind of layers
        if isinstance(each, dict) and each.get("rope_type") == "longrope":
            yield each.get("original_max_position_embeddings") or longest
    yield longest


def keys_and_values(cache: Any) -> Layers:
    return [(layer.keys, layer.values) for layer in cache.layers]
