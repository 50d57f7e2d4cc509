"""The loop of generation: a call of `decode` for the prompt, then one for each new token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hatch_lower.frozen import Frozen
from hatch_lower.runtime.generation.choose import Chooser
from hatch_lower.runtime.generation.settings import GenerationSettings
from hatch_lower.runtime.texts import in_library, in_numpy

if TYPE_CHECKING:
    from hatch_lower.runtime.arrays import Arrays

Numbers = Any  # an array of NumPy
MASKED = np.finfo(np.float32).min


class Steps(Frozen):
    """The calls of `decode` for a batch of sequences."""

    decode: Callable[..., Any]
    arrays: Arrays
    window: int  # of sliding layers
    more: Mapping[str, Any]  # further arguments of each call: keys and values of an encoder, and their mask

    def logits(self, tokens: Numbers, visible: Numbers, last: int, cache: Any) -> tuple[Any, Any]:
        """Return the logits of the `last` tokens, of shape (rows, `last`, vocabulary), and the next cache.

        Args:
            tokens: int64 of shape (rows, tokens), the tokens that are not in the cache.
            visible: bool of shape (rows, all tokens so far): false for padding.
            last: a number of tokens.
            cache: the result of `start`, or of the call before.
        """
        count = tokens.shape[1]
        mask = causal_mask(visible, count)
        given = {"input_ids": tokens, "attention_mask": mask, "kept": np.eye(count, dtype=np.float32)[-last:]}
        parameters = inspect.signature(self.decode).parameters
        if "sliding_mask" in parameters:
            given["sliding_mask"] = sliding_mask(mask, self.window)
        if "position_ids" in parameters:
            given["position_ids"] = np.maximum(visible.cumsum(1) - 1, 0)[:, -count:]
        arrays = {name: in_library(each, self.arrays) for name, each in given.items()}
        found: tuple[Any, Any] = self.decode(**arrays, cache=cache, **self.more)
        return found


def causal_mask(visible: Numbers, count: int) -> Numbers:
    """Return the mask of the last `count` tokens: float32 of shape (rows, 1, count, 1 + all tokens)."""
    rows, total = visible.shape
    mask = np.zeros((rows, 1, count, 1 + total), dtype=np.float32)
    mask[:, :, :, 0] = MASKED  # the first key of each cache
    mask[:, :, :, 1:][np.broadcast_to(~visible[:, None, None, :], (rows, 1, count, total))] = MASKED
    if count > 1:
        mask[..., 1 + total - count :][..., np.triu(np.ones((count, count), dtype=bool), 1)] = MASKED
        own = np.arange(count)
        mask[..., own, 1 + total - count + own] = 0  # padding sees itself, because a softmax of nothing is no number
    return mask


def sliding_mask(mask: Numbers, window: int) -> Numbers:
    """Return a mask that also hides keys at a distance of `window` and more."""
    count, keys = mask.shape[2:]
    if keys <= window:
        return mask.copy()
    distance = np.arange(keys - count, keys)[:, None] - np.arange(keys)[None, :]
    found = mask.copy()
    found[..., distance >= window] = MASKED
    return found


def padding_mask(words: Any) -> Any:
    """Return the mask of an encoder, float32 of shape (rows, 1, 1, tokens)."""
    return np.where(words[:, None, None, :], 0, MASKED).astype(np.float32)


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
        """Append a token to each row, padding to rows that have ended, and return these tokens."""
        added = np.where(self.ended, self._settings.padding, chosen)
        self._tokens[:, self._count] = added
        self._count += 1
        self.ended |= np.isin(added, self._settings.ends)
        return added


def generated(
    steps: Steps,
    cache: Any,
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
    """
    chooser = Chooser(settings, len(sequences.ended))
    tokens = sequences.tokens
    while sequences.new < settings.max_new_tokens and not sequences.ended.all():
        logits, cache = steps.logits(tokens, sequences.visible, 1, cache)
        scores = in_numpy(logits, steps.arrays)[:, 0].astype(np.float32)  # a copy, which the choice changes
        added = sequences.add(chooser.choose(scores, sequences.rows, sequences.new))
        if settings.stops:
            for row in np.flatnonzero(~sequences.ended):
                sequences.ended[row] = stopped(int(row), sequences.tokens[row, -sequences.new :])
        tokens = added[:, None]
        yield added
