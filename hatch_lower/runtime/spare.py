"""Arguments from a tokenizer or processor of transformers that a method does not take, and that change no result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hatch_lower.errors import InputError
from hatch_lower.runtime.texts import CONFIG, read_asset

# values with which a model of transformers computes the same as without the argument
NEUTRAL: Mapping[str, int] = {"attention_mask": 1, "pixel_mask": 1, "token_type_ids": 0}
# facts about the text or the sound, which a method without the argument does not read
FACTS = frozenset(
    (
        *("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "overflowing_tokens"),
        *("num_truncated_tokens", "length", "is_longer"),
    )
)
TYPES = "type_vocab_size"


def spare_names(
    model: str, assets: Mapping[str, Path], parameters: Collection[str], given: Mapping[str, Any]
) -> frozenset[str]:
    """Return the names of arguments that a method of a model of transformers may do without.

    Args:
        model: the model's name, for errors.
        assets: of a model of transformers, with its `config.json`; the result is empty for other models.
        parameters: of the method.
        given: the arguments by name.

    Raises:
        InputError: if the method does not take an argument of a processor, and its values matter.
    """
    unknown = given.keys() - parameters
    if CONFIG not in assets or not unknown & (NEUTRAL.keys() | FACTS):
        return frozenset()
    config = read_asset(model, assets, CONFIG)
    if not isinstance(config.get("model_type"), str):
        return frozenset()
    for name in sorted(unknown & NEUTRAL.keys()):
        if not holds(given[name], NEUTRAL[name]):
            raise InputError(
                f"model `{model}` does not take `{name}`",
                found=f"values other than {NEUTRAL[name]}, which would change the result",
                hint="give rows without padding, each length in a call of its own"
                if NEUTRAL[name]
                else "leave the argument out if the model was trained without it",
            )
    # without types of its own, a model may take those of `token_type_ids` for tokens, as GPT-2 does
    has_types = isinstance(config.get(TYPES), int)
    return frozenset(name for name in unknown & (NEUTRAL.keys() | FACTS) if name != "token_type_ids" or has_types)


def holds(value: Any, number: int) -> bool:
    """Return whether all elements of an array or a list are equal to a number."""
    if isinstance(value, (list, tuple)):
        return all(holds(each, number) for each in value)
    is_same = value == number
    return bool(is_same.all()) if hasattr(is_same, "all") else is_same is True
