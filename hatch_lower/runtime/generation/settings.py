"""Settings of a call of `generate`: arguments, then the packaged `generation_config.json` as transformers reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hatch_lower.errors import InputError
from hatch_lower.frozen import Frozen

GENERATION = "generation_config.json"
# members that ask for another search or other scores, and their values without effect
NOT_HERE: Mapping[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0, 0.0),
    "dola_layers": (),
    "guidance_scale": (1, 1.0),
    "constraints": (),
    "force_words_ids": (),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "encoder_repetition_penalty": (1, 1.0),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "forced_decoder_ids": (),
    "min_p": (0, 0.0),
    "typical_p": (1, 1.0),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "top_h": (),
}
SEARCHES = ("num_beams", "num_beam_groups", "num_return_sequences", "penalty_alpha")
# arguments of `generate` that are no inputs of the model
SETTINGS = frozenset(
    (
        *("max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty"),
        *("no_repeat_ngram_size", "seed", "stop", "eos_token_id", "pad_token_id"),
    )
)
DRAWING = ("top_k", "top_p", "seed")  # arguments for drawn tokens


class GenerationSettings(Frozen):
    """Settings of one call; token ids as in the vocabulary."""

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 0.0  # 0: the most likely token
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    ends: tuple[int, ...] = ()
    padding: int = 0
    begins: tuple[int, ...] = ()  # the first token of a decoder after an encoder, or of an empty prompt
    forced_first: int | None = None
    forced_last: int | None = None
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    seed: int | None = None


def settings_of(
    model: str, packaged: Mapping[str, Any], arguments: Mapping[str, Any], prompt: int
) -> GenerationSettings:
    """Return the settings of a call.

    Args:
        model: the model's name, for errors.
        packaged: the members of `generation_config.json`.
        arguments: the arguments of the call that are not `None`.
        prompt: the number of tokens before the first new token.

    Raises:
        InputError: for a value out of its range, no limit of tokens, or members that need transformers.
    """
    found = {name: value for name, value in packaged.items() if value is not None}
    refuse_other_searches(model, found, chosen="temperature" in arguments)
    ends = token_ids(arguments.get("eos_token_id", found.get("eos_token_id")), "eos_token_id")
    padding = token_ids(arguments.get("pad_token_id", found.get("pad_token_id")), "pad_token_id") or ends or (0,)
    temperature = arguments.get("temperature", default_temperature(model, found, arguments))
    samples = found.get("do_sample") is True
    limits = {name: found[name] for name in ("top_k", "top_p") if samples and name in found}
    longest, least = found.get("max_length"), found.get("min_length", 0)
    begins = found.get("decoder_start_token_id", found.get("bos_token_id"))
    count = arguments.get("max_new_tokens", found.get("max_new_tokens", longest and longest - prompt))
    if count is None:
        raise InputError(
            f"model `{model}` is not told when to stop",
            found="no `max_new_tokens`, and no limit in `generation_config.json`",
            hint="name the limit: `model.generate(…, max_new_tokens=128)`",
        )
    settings = GenerationSettings(
        max_new_tokens=in_range(count, "max_new_tokens", int, least=1),
        min_new_tokens=in_range(
            arguments.get("min_new_tokens", found.get("min_new_tokens", max(0, least - prompt))), "min_new_tokens", int
        ),
        temperature=in_range(temperature, "temperature", float),
        top_k=in_range(arguments.get("top_k", limits.get("top_k", 0)), "top_k", int),
        top_p=in_range(arguments.get("top_p", limits.get("top_p", 1.0)), "top_p", float, most=1.0),
        repetition_penalty=in_range(
            arguments.get("repetition_penalty", found.get("repetition_penalty", 1.0)), "repetition_penalty", float
        ),
        no_repeat_ngram_size=in_range(
            arguments.get("no_repeat_ngram_size", found.get("no_repeat_ngram_size", 0)), "no_repeat_ngram_size", int
        ),
        ends=ends,
        padding=padding[0],
        begins=token_ids(begins, "decoder_start_token_id"),
        forced_first=one_token(found, "forced_bos_token_id"),
        forced_last=one_token(found, "forced_eos_token_id"),
        never=token_ids(found.get("suppress_tokens"), "suppress_tokens"),
        never_first=token_ids(found.get("begin_suppress_tokens"), "begin_suppress_tokens"),
        stops=stop_texts(arguments.get("stop", found.get("stop_strings", ()))),
        seed=None if arguments.get("seed") is None else in_range(arguments["seed"], "seed", int),
    )
    if settings.repetition_penalty == 0:
        raise out_of_range("repetition_penalty", 0, "above 0")
    return settings


def default_temperature(model: str, packaged: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Return the temperature of a call that names none: 0 if the configuration draws no tokens."""
    if packaged.get("do_sample") is True:
        return packaged.get("temperature", 1.0)
    drawing = [name for name in DRAWING if name in arguments]
    if drawing and "temperature" not in arguments:
        raise InputError(
            f"`{drawing[0]}` has no effect on the most likely token",
            where=f"model `{model}`",
            found="no `temperature`, and no `do_sample` in the configuration",
            hint="name a `temperature` to draw tokens: 1.0 as the model has learned, less for likelier tokens",
        )
    return 0.0


def refuse_other_searches(model: str, packaged: Mapping[str, Any], *, chosen: bool) -> None:
    for name, neutral in NOT_HERE.items():
        if name in packaged and packaged[name] not in neutral and not (chosen and name in SEARCHES):
            raise InputError(
                f"`generate` of model `{model}` cannot do what its configuration asks for",
                where=f"`{name}` in `{GENERATION}`",
                found=f"{packaged[name]!r:.80}",
                hint="generate with `hatch_lower.huggingface.as_pretrained(model)`"
                + (", or name a `temperature` (0: the most likely token)" if name in SEARCHES else ""),
            )


def in_range(value: Any, name: str, kind: type[int] | type[float], *, least: int = 0, most: float = math.inf) -> Any:
    is_right = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if not is_right or isinstance(value, bool) or not least <= value <= most or value == math.inf:
        limits = f"from {least}" + ("" if most == math.inf else f" to {most}")
        raise out_of_range(name, value, f"{'an integer' if kind is int else 'a number'} {limits}")
    return kind(value)


def out_of_range(name: str, value: object, wanted: str) -> InputError:
    return InputError(f"`{name}` must be {wanted}", found=f"{value!r:.80}", hint="correct the argument")


def token_ids(value: Any, name: str) -> tuple[int, ...]:
    values = () if value is None else value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return tuple(in_range(each, name, int) for each in values)


def one_token(packaged: Mapping[str, Any], name: str) -> int | None:
    found = token_ids(packaged.get(name), name)
    return found[0] if found else None


def stop_texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise out_of_range("stop", value, "a text, or a list of texts")
    return tuple(texts)
