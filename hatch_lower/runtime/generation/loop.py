"""The loop of generation: a call of `decode` for the prompt, then one for each new token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hatch_lower.errors import CallError
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.generation.choose import Chooser
from hatch_lower.runtime.generation.settings import GenerationSettings
from hatch_lower.runtime.texts import in_library, in_numpy

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Arrays
    from hatch_lower.runtime.generation.images import ImagePrompt

Numbers = Any  # an array of NumPy
ROOM = 64  # keys: a cache grows by multiples, because engines prepare a call for each new size


class Steps(Frozen):
    """The calls of `decode` for a batch of sequences."""

    decode: Callable[..., Any]
    arrays: Arrays
    window: int  # of sliding layers
    longest: int  # number of positions
    more: Mapping[str, Any]  # further arguments of each call: keys and values of an encoder, and their mask
    images: ImagePrompt | None = None  # of a model that reads images

    def logits(self, tokens: Numbers, visible: Numbers, last: int, cache: Cache) -> tuple[Any, Cache]:
        """Return the logits of the `last` tokens, of shape (rows, `last`, vocabulary), and the next cache.

        Args:
            tokens: int64 of shape (rows, tokens), the tokens that are not in the cache.
            visible: bool of shape (rows, all tokens so far): false for padding.
            last: a number of tokens.
            cache: of the tokens before; the call may write into it.
        """
        count = tokens.shape[1]
        places = key_places(cache, visible.shape[1], count)
        mask = causal_mask(visible, count, places)
        is_prompt = cache.used == 1
        near = None
        if self.images is not None and is_prompt:
            near = near_mask(visible, self.images.near)
            mask |= near
        given = {"attention_mask": mask, "kept": np.eye(count, dtype=np.float32)[-last:]}
        parameters = inspect.signature(self.decode).parameters
        if "sliding_mask" in parameters:
            given["sliding_mask"] = sliding_mask(mask, places, self.window)
            if near is not None:
                given["sliding_mask"] |= near
        if "position_ids" in parameters:
            given["position_ids"] = self._positions(visible, count)
        if self.images is None:
            given["input_ids"] = tokens
        arrays = {name: in_library(each, self.arrays) for name, each in given.items()}
        if self.images is not None:
            arrays |= self.images.arguments(tokens, is_prompt)
        logits, layers = self.decode(**arrays, cache=cache.layers, **self.more)
        return logits, extended(cache, layers, count, self.longest)

    def _positions(self, visible: Numbers, count: int) -> Numbers:
        if self.images is not None and self.images.positions is not None:
            return self.images.positions_of(visible.shape[1], count)
        return np.maximum(visible.cumsum(1) - 1, 0)[:, -count:]


class Cache(Frozen):
    """The keys and values of a call of `generate`, as `decode` takes them."""

    layers: Any  # keys and values of each layer, of shape (rows, heads, keys, dimensions)
    used: int = 1  # keys in use; the first belongs to no token, and the others are in the order of tokens


def extended(cache: Cache, layers: Any, count: int, longest: int) -> Cache:
    """Return the cache after a call.

    Args:
        cache: before the call; is written to if it has room.
        layers: the result of `decode`: the keys and values of `count` tokens, or of all tokens.
        count: the number of tokens in the call.
        longest: number of positions.
    """
    if layers[0][0].shape[2] != count:
        return Cache(layers, cache.used + count)
    used = cache.used + count
    held = cache.layers
    if used > held[0][0].shape[2]:
        capacity = max(used, min(-(-used // ROOM) * ROOM, longest + 1))
        held = [tuple(with_room(each, cache.used, capacity) for each in layer) for layer in held]
    for layer, new in zip(held, layers, strict=True):
        for each, more in zip(layer, new, strict=True):
            each[:, :, cache.used : used] = more
    return Cache(held, used)


def with_room(array: Any, used: int, capacity: int) -> Any:
    # zeros: an attention's weight of 0 times a number that is not finite would be NaN
    shape = (*array.shape[:2], capacity, array.shape[3])
    found = array.new_zeros(shape) if hasattr(array, "new_zeros") else np.zeros(shape, dtype=array.dtype)
    found[:, :, :used] = array[:, :, :used]
    return found


def key_places(cache: Cache, total: int, count: int) -> Numbers:
    """Return the token of each key in a call of `decode`, int64: an index from 0 to `total` - 1, or -1 for no token."""
    places = np.full(cache.layers[0][0].shape[2] + count, -1)
    places[1 : cache.used] = np.arange(cache.used - 1)
    places[-count:] = np.arange(total - count, total)
    return places


def causal_mask(visible: Numbers, count: int, places: Numbers) -> Numbers:
    """Return the keys that the last `count` tokens see: bool of shape (rows, 1, count, keys)."""
    total = visible.shape[1]
    own = np.arange(total - count, total)[:, None]
    # padding sees itself: a softmax of nothing is no number
    return ((visible[:, places] & (places >= 0))[:, None, None] & (places <= own)) | (places == own)


def sliding_mask(mask: Numbers, places: Numbers, window: int) -> Numbers:
    """Return a mask that also hides keys at a distance of `window` tokens and more."""
    return mask & (places > places[-mask.shape[2] :, None] - window)


def near_mask(visible: Numbers, near: Numbers) -> Numbers:
    """Return the keys that the tokens of a prompt see in both directions: bool of shape (rows, 1, tokens, 1 + tokens).

    Args:
        visible: bool of shape (rows, tokens): false for padding.
        near: int64 of shape (rows, tokens): tokens with one number see each other; -1 for no token.
    """
    near = np.where(visible, near, -1)
    both = (near[:, :, None] == near[:, None]) & (near >= 0)[:, :, None]
    return np.pad(both, ((0, 0), (0, 0), (1, 0)))[:, None]


def padding_mask(words: Numbers) -> Numbers:
    """Return the mask of an encoder, bool of shape (rows, 1, 1, tokens)."""
    return words[:, None, None, :]


class Sequences:
    """The rows of a batch: the tokens so far, and whether a row has ended."""

    def __init__(self, prompt: Numbers, visible: Numbers, settings: GenerationSettings) -> None:
        rows, count = prompt.shape
        size = (rows, count + settings.max_new_tokens)
        self._tokens, self._visible = np.zeros(size, dtype=np.int64), np.ones(size, dtype=bool)
        self._tokens[:, :count], self._visible[:, :count] = prompt, visible
        self._count, self._prompt = count, count
        self._settings = settings
        self.ended = np.zeros(rows, dtype=bool)

    @property
    def tokens(self) -> Numbers:
        return self._tokens[:, : self._count]

    @property
    def rows(self) -> list[Numbers]:
        """The tokens of each row without padding on the left."""
        return [row[seen] for row, seen in zip(self.tokens, self.visible, strict=True)]

    @property
    def visible(self) -> Numbers:
        return self._visible[:, : self._count]

    @property
    def new(self) -> int:
        return int(self._count - self._prompt)

    def add(self, chosen: Numbers) -> Numbers:
        """Append a token to each row, and return these tokens, with padding for rows that have ended."""
        added = np.where(self.ended, self._settings.padding, chosen)
        # the model may have no token for padding
        self._tokens[:, self._count] = np.where(self.ended, 0, chosen)
        self._count += 1
        self.ended |= np.isin(chosen, self._settings.ends)
        return added


def refuse_no_numbers(best: Numbers) -> None:
    """Refuse logits that determine no token, by the largest of each row: NaN if one of them is NaN."""
    if not np.isfinite(best).all():
        raise CallError(
            "the model's logits are no numbers",
            where="method `decode`",
            found=f"{best[~np.isfinite(best)][0]} as the largest logit of a row",
            hint="call another recipe with the same prompt; in half precision, large numbers become infinite",
        )


def generated(
    steps: Steps,
    cache: Cache,
    sequences: Sequences,
    settings: GenerationSettings,
    stopped: Callable[[int, Numbers], bool],
) -> Iterator[Numbers]:
    """Yield the next token of each row, int64 of shape (rows,), until all rows have ended.

    Args:
        steps: of the same batch.
        cache: the result of `start`.
        sequences: with the prompt.
        settings: of the call.
        stopped: whether a row, by its index and its new tokens, has a text that ends generation.

    Raises:
        CallError: for logits that are no numbers.
    """
    tokens = sequences.tokens
    chooser = Chooser(settings, *tokens.shape)
    while sequences.new < settings.max_new_tokens and not sequences.ended.all():
        logits, cache = steps.logits(tokens, sequences.visible, 1, cache)
        scores = in_numpy(logits, steps.arrays)[:, 0].astype(np.float32)  # a copy, which the choice changes
        refuse_no_numbers(scores.max(1)[~sequences.ended])
        added = sequences.add(chooser.choose(scores, sequences.rows, sequences.new, sequences.tokens))
        if settings.stops:
            for row in np.flatnonzero(~sequences.ended):
                sequences.ended[row] = stopped(int(row), sequences.tokens[row, -sequences.new :])
        tokens = sequences.tokens[:, -1:]
        yield added
