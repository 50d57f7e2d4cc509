"""Settings of a call of `generate`: arguments, then the packaged `generation_config.json` as transformers reads it."""

from __future__ import annotations

import math
import numbers
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
    "max_time": (),
    "token_healing": (False,),
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
# members without effect unless `do_sample` is true
OF_SAMPLES = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
TOP_K = 50  # of transformers, where `do_sample` is true and no `top_k` is named


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
    forced_first: tuple[int, ...] = ()
    forced_last: tuple[int, ...] = ()
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
    members = {name: value for name, value in packaged.items() if value is not None}
    samples = members.get("do_sample") is True
    if samples:
        members.setdefault("top_k", TOP_K)
    else:
        refuse_drawing(model, arguments)
        members = {name: value for name, value in members.items() if name not in OF_SAMPLES}
    refuse_other_searches(model, members, chosen="temperature" in arguments)
    values = GivenSettings(arguments, members)
    ends = values.tokens("eos_token_id")
    longest, least = values.number("max_length", int, -1), values.number("min_length", int, 0)
    if "max_new_tokens" not in {**arguments, **members}:
        refuse_no_limit(model, longest, prompt)
    settings = GenerationSettings(
        max_new_tokens=values.number("max_new_tokens", int, longest - prompt, least=1),
        min_new_tokens=values.number("min_new_tokens", int, max(0, least - prompt)),
        temperature=values.number("temperature", float, 1.0 if samples else 0.0),
        top_k=values.number("top_k", int, 0),
        top_p=values.number("top_p", float, 1.0, most=1.0),
        repetition_penalty=values.number("repetition_penalty", float, 1.0),
        no_repeat_ngram_size=values.number("no_repeat_ngram_size", int, 0),
        ends=ends,
        padding=(values.tokens("pad_token_id") or ends or (0,))[0],
        begins=values.tokens("decoder_start_token_id") or values.tokens("bos_token_id"),
        forced_first=values.tokens("forced_bos_token_id"),
        forced_last=values.tokens("forced_eos_token_id"),
        never=values.tokens("suppress_tokens"),
        never_first=values.tokens("begin_suppress_tokens"),
        stops=stop_texts(arguments.get("stop", members.get("stop_strings", ()))),
        seed=values.number("seed", int, None) if "seed" in arguments else None,
    )
    for name, forced in (("forced_bos_token_id", settings.forced_first), ("forced_eos_token_id", settings.forced_last)):
        if forced and set(forced) <= set(settings.never):
            raise values.refused(name, forced, "a token that `suppress_tokens` does not have")
    if settings.repetition_penalty == 0:
        raise values.refused("repetition_penalty", 0, "above 0")
    if "min_new_tokens" in arguments and settings.min_new_tokens > settings.max_new_tokens:
        wanted = f"at most `max_new_tokens`, {settings.max_new_tokens}"
        raise values.refused("min_new_tokens", settings.min_new_tokens, wanted)
    return settings


class GivenSettings(Frozen):
    """The values of settings by name: arguments, then members of the packaged configuration."""

    arguments: Mapping[str, Any]
    packaged: Mapping[str, Any]

    def number(
        self, name: str, kind: type[int] | type[float], default: Any, *, least: int = 0, most: float = math.inf
    ) -> Any:
        """Return a number of a range; `default` without a value."""
        value = self.arguments.get(name, self.packaged.get(name))
        return default if value is None else self._in_range(name, value, kind, least, most)

    def tokens(self, name: str) -> tuple[int, ...]:
        value = self.arguments.get(name, self.packaged.get(name))
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        values = () if value is None else value if is_list else (value,)
        return tuple(self._in_range(name, each, int, 0, math.inf) for each in values)

    def _in_range(self, name: str, value: Any, kind: type[int] | type[float], least: int, most: float) -> Any:
        is_right = isinstance(value, numbers.Integral if kind is int else numbers.Real) and not isinstance(value, bool)
        if not is_right or not least <= value <= most or value == math.inf:
            limits = f"from {least}" + ("" if most == math.inf else f" to {most}")
            raise self.refused(name, value, f"{'an integer' if kind is int else 'a number'} {limits}")
        return kind(value)

    def refused(self, name: str, value: object, wanted: str) -> InputError:
        is_argument = name in self.arguments
        return InputError(
            f"`{name}` must be {wanted}",
            where="" if is_argument else f"`{GENERATION}`",
            found=f"{value!r:.80}",
            hint="correct the argument"
            if is_argument
            else "correct the file in the checkpoint, and build the wheel again",
        )


def refuse_no_limit(model: str, longest: int, prompt: int) -> None:
    if longest < 0:
        raise InputError(
            f"model `{model}` is not told when to stop",
            found=f"no `max_new_tokens`, and no limit in `{GENERATION}`",
            hint="name the limit: `model.generate(…, max_new_tokens=128)`",
        )
    if longest <= prompt:
        raise InputError(
            "the prompt leaves no room for a new token",
            where=f"`max_length` in `{GENERATION}`",
            found=f"a prompt of {prompt} tokens, and `max_length` of {longest}",
            hint="name the number of new tokens: `model.generate(…, max_new_tokens=128)`",
        )


def refuse_drawing(model: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments for drawn tokens in a call that takes the most likely token."""
    drawing = [name for name in DRAWING if name in arguments]
    if drawing and "temperature" not in arguments:
        raise InputError(
            f"`{drawing[0]}` has no effect on the most likely token",
            where=f"model `{model}`",
            found="no `temperature`, and no `do_sample` in the configuration",
            hint="name a `temperature` to draw tokens: 1.0 as the model has learned, less for likelier tokens",
        )


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


def stop_texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise InputError(
            "`stop` must be a text, or a list of texts", found=f"{value!r:.80}", hint="give texts of at least a letter"
        )
    return tuple(texts)
