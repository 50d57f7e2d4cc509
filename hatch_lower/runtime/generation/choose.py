"""The next token of each sequence, from the logits and the tokens before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hatch_lower.runtime.generation.settings import GenerationSettings

Ids = Any  # an array of int64
NEVER = -np.inf
SOME = 128  # tokens of a vocabulary that are sorted first


class Chooser:
    """The choice of tokens; each row has random numbers of its own, which do not depend on the other rows."""

    def __init__(self, settings: GenerationSettings, rows: int, prompt: int) -> None:
        self._settings = settings
        self._prompt = prompt  # tokens of each row, with padding
        self._random = [np.random.default_rng(seed) for seed in np.random.SeedSequence(settings.seed).spawn(rows)]

    def choose(self, logits: Any, before: Sequence[Ids], count: int, padded: Sequence[Ids] | None = None) -> Ids:
        """Return a token for each row.

        Args:
            logits: float32 of shape (rows, vocabulary); changed in place.
            before: the tokens of each row so far, without padding.
            count: the number of new tokens in each row.
            padded: the tokens with padding, which runs of tokens include, as in transformers; `None`: without.
        """
        settings = self._settings
        if settings.repetition_penalty != 1.0:
            for row, tokens in zip(logits, before, strict=True):
                seen, penalty = row[tokens], settings.repetition_penalty
                row[tokens] = np.where(seen < 0, seen * penalty, seen / penalty)
        if settings.no_repeat_ngram_size:
            for row, tokens in zip(logits, before if padded is None else padded, strict=True):
                row[repeated(tokens, settings.no_repeat_ngram_size)] = NEVER
        if count < settings.min_new_tokens:
            leave_out(logits, settings.ends)
        # in the order of transformers, where each step sees the scores of those before
        if settings.forced_first and self._prompt + count == 1:
            keep_alone(logits, settings.forced_first)
        if settings.forced_last and count == settings.max_new_tokens - 1:
            keep_alone(logits, settings.forced_last)
        leave_out(logits, settings.never)
        if count == (1 if settings.forced_first and self._prompt == 1 else 0):
            leave_out(logits, settings.never_first)
        if settings.temperature == 0:
            return logits.argmax(1)
        return np.array([self._draw(row, each) for row, each in enumerate(logits)], dtype=np.int64)

    def _draw(self, row: int, logits: Any) -> int:
        settings = self._settings
        with np.errstate(over="ignore"):  # of a temperature close to 0
            scores = (logits.astype(np.float64) - logits.max()) / settings.temperature
        tokens, weights = likely_tokens(np.exp(scores), settings.top_k, settings.top_p)
        sums = weights.cumsum()
        drawn = self._random[row].random() * sums[-1]
        return int(tokens[min(int(np.searchsorted(sums, drawn, side="right")), len(sums) - 1)])


def leave_out(logits: Any, tokens: Sequence[int]) -> None:
    # a configuration may name tokens that the model does not have
    logits[:, [token for token in tokens if token < logits.shape[1]]] = NEVER


def keep_alone(logits: Any, tokens: Sequence[int]) -> None:
    logits[:] = NEVER
    logits[:, list(tokens)] = 0


def likely_tokens(weights: Any, top_k: int, top_p: float) -> tuple[Ids, Any]:
    """Return the tokens to draw from and their weights: the `top_k` most likely ones, and of them as few as have
    together the part `top_p` of the sum.
    """
    if top_k and top_k < len(weights):
        tokens = most_likely(weights, top_k)
        total = weights[tokens].sum()
    else:
        tokens, total = np.arange(len(weights)), weights.sum()
    if top_p == 1.0:
        return tokens, weights[tokens]
    for size in (SOME, SOME**2):  # to sort a whole vocabulary takes longer than to sort its upper part
        some = tokens[most_likely(weights[tokens], size)] if size < len(tokens) else tokens[by_weight(weights[tokens])]
        sums = weights[some].cumsum()
        if sums[-1] >= top_p * total:
            break
    else:
        some = tokens[by_weight(weights[tokens])]
        sums = weights[some].cumsum()
    some = some[: int(np.searchsorted(sums, top_p * total)) + 1]
    return some, weights[some]


def most_likely(weights: Any, count: int) -> Ids:
    found = np.argpartition(-weights, count - 1)[:count]
    return found[by_weight(weights[found])]


def by_weight(weights: Any) -> Ids:
    return np.argsort(-weights, kind="stable")


def repeated(tokens: Sequence[int], size: int) -> list[int]:
    """Return the tokens that would repeat a run of `size` tokens."""
    if len(tokens) + 1 < size:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), size) if len(tokens) >= size else ()
    last = np.asarray(tokens)[len(tokens) - size + 1 :]
    return [int(window[-1]) for window in windows if (window[:-1] == last).all()]
