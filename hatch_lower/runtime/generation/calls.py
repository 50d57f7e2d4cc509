"""A call of `generate` or `stream`: from a loaded model and arguments to the tokens of each step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hatch_lower.errors import InputError, nearest
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.generation.images import ENCODE, image_arguments, image_prompt
from hatch_lower.runtime.generation.loop import Cache, Sequences, Steps, generated, padding_mask
from hatch_lower.runtime.generation.settings import (
    GENERATION,
    NOT_HERE,
    SETTINGS,
    GenerationSettings,
    GivenSettings,
    settings_of,
)
from hatch_lower.runtime.generation.speech import (
    ARGUMENTS,
    WHISPER,
    SpeechPrompt,
    positions_of,
    refuse_other_steps,
    speech_prompt,
)
from hatch_lower.runtime.spare import spare_names
from hatch_lower.runtime.texts import CONFIG, TextReader, in_library, in_numpy, read_asset

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_lower.runtime.arrays import Arrays

METHODS = ("start", "decode")
ELSEWHERE = "generate with `hatch_lower.huggingface.as_pretrained(model)`, where transformers is installed"
# arguments of transformers' own `generate`, and their counterparts
INSTEAD: Mapping[str, str] = {
    "do_sample": "set the `temperature`: 0 takes the most likely token, and other numbers draw tokens",
    "max_length": "set `max_new_tokens`, a number of tokens without the prompt",
    "min_length": "set `min_new_tokens`, a number of tokens without the prompt",
    "stop_strings": "set `stop`",
    "streamer": "iterate over `model.stream(…)`",
    "assistant_model": ELSEWHERE,
}
BEFORE = 8  # tokens of the prompt that are decoded with new tokens: the text of a token depends on the token before


class LanguageModel(Frozen):
    """The parts of a loaded model that generation needs."""

    name: str
    methods: Mapping[str, Callable[..., Any]]
    assets: Mapping[str, Path]
    arrays: Arrays
    reader: Callable[[], TextReader]  # returns the packaged tokenizer


def begin(model: LanguageModel, arguments: Mapping[str, Any]) -> tuple[Any, Iterator[Any]]:
    """Return the prompt, and an iterator over the next token of each row; a step calls the model.

    Args:
        model: with the methods `start` and `decode`.
        arguments: settings and the model's inputs by name; `None` for those that are not given.

    Returns:
        Arrays of NumPy, int64: of shape (rows, tokens), and of shape (rows,) in each step.
    """
    check_methods(model)
    takes = {name: frozenset(inspect.signature(model.methods[name]).parameters) for name in METHODS}
    has_encoder = "cross" in takes["decode"]
    chosen = {name: value for name, value in arguments.items() if value is not None}
    file = next((name for name in (GENERATION, CONFIG) if name in model.assets), None)
    packaged = {} if file is None else read_asset(model.name, model.assets, file)
    speech = speech_of(model, packaged, chosen) if "input_features" in takes["start"] else None
    given = {name: in_numpy(chosen.pop(name), model.arrays) for name in sorted(chosen.keys() - SETTINGS)}
    prefix = "decoder_" if has_encoder else ""
    ids, mask = given.pop(prefix + "input_ids", None), given.pop(prefix + "attention_mask", None)
    image_names = given.keys() & image_arguments(model.methods[ENCODE]) if ENCODE in model.methods else ()
    of_images = {name: given.pop(name) for name in sorted(image_names)}
    given = encoder_inputs(model, takes["start"] if has_encoder else frozenset(), given)
    refuse_texts({**given, prefix + "input_ids": ids})
    if ids is not None and speech is None:
        ids, mask = (with_start if has_encoder else with_mask)(model, GivenSettings(chosen, packaged), ids, mask)
    check_prompt = partial(checked_prompt, mask=mask, pads_left=not has_encoder)
    prompt = None if ids is None else check_prompt(ids)
    count = prompt[0].shape[1] if prompt else len(speech.tokens) if speech else 1
    settings = settings_of(model.name, speech.members(packaged, count) if speech else packaged, chosen, count)
    detects = prompt is None and speech is not None and speech.detected is not None
    if prompt is None:
        rows = next((len(each) for each in given.values() if each.ndim), 1)
        prompt = check_prompt(speech.rows(rows) if speech else first_tokens(model.name, settings.begins, rows))
    ids, visible = prompt
    more: dict[str, Any] = {}
    if not has_encoder:
        given = {"input_ids": ids[:, :1]}  # `start` needs the number of rows, and `decode` takes the prompt
    elif "attention_mask" in takes["start"] and "input_ids" in given:
        check_ids(given["input_ids"])
        words = checked_mask(given.get("attention_mask"), given["input_ids"].shape)
        given["attention_mask"] = padding_mask(words)
        more["encoder_mask"] = in_library(given["attention_mask"], model.arrays)
    arrays = {name: in_library(each, model.arrays) for name, each in given.items()}
    started = model.methods["start"](**arrays)
    vocabulary = int(started["vocabulary"])
    check_tokens(ids, vocabulary, "`input_ids`")
    named = [*settings.forced_first, *settings.forced_last, *(speech.languages if detects and speech else ())]
    check_tokens(np.array(named, dtype=np.int64), vocabulary, f"`{GENERATION}`")
    check_length(model.name, ids.shape[1], settings, int(started["longest"]))
    stopped = partial(has_stop, model.reader(), settings.stops, ids[:, -BEFORE:]) if settings.stops else never
    if has_encoder:
        more["cross"] = started["cross"]
    images = image_prompt(model.methods, model.arrays, of_images, ids, visible, started)
    steps = Steps(model.methods["decode"], model.arrays, int(started["window"]), int(started["longest"]), more, images)
    cache = Cache(started["cache"])
    if detects and speech:
        scores, _ = steps.logits(ids[:, :1], visible[:, :1], 1, cache)
        ids = speech.detected_tokens(in_numpy(scores, model.arrays)[:, 0])
    return ids, generated(steps, cache, Sequences(ids, visible, settings), settings, stopped)


def speech_of(model: LanguageModel, packaged: Mapping[str, Any], chosen: dict[str, Any]) -> SpeechPrompt | None:
    """Return the first tokens of Whisper, `None` for another model; `language` and `task` are taken from `chosen`."""
    config = read_asset(model.name, model.assets, CONFIG) if CONFIG in model.assets else {}
    if config.get("model_type") != WHISPER:
        return None
    refuse_other_steps(model.name, packaged)
    named = {name: chosen.pop(name) for name in ARGUMENTS if name in chosen}
    if "decoder_input_ids" not in chosen:
        return speech_prompt(model.name, config, packaged, named)
    if named:
        raise InputError(
            f"`{min(named)}` chooses the first tokens of the decoder",
            where=f"model `{model.name}`",
            found="`decoder_input_ids`, too",
            hint="give only one of them",
        )
    return SpeechPrompt((), positions_of(config))


def check_methods(model: LanguageModel) -> None:
    if missing := [name for name in METHODS if name not in model.methods]:
        raise InputError(
            f"model `{model.name}` does not generate tokens",
            found=f"no method `{missing[0]}`",
            hint='declare the model with `transformers` and `task = "text-generation"`',
        )


def first_tokens(model: str, begins: tuple[int, ...], rows: int) -> Any:
    """Return the first token of each row, int64 of shape (rows, 1): one for all rows, or one for each."""
    if not begins:
        raise InputError(
            f"model `{model}` has no first token",
            found=f"no `decoder_start_token_id` and no `bos_token_id` in `{GENERATION}`",
            hint="give a prompt with at least one token",
        )
    if len(begins) not in (1, rows):
        raise InputError(
            f"model `{model}` has a first token for each row",
            found=f"{len(begins)} tokens `decoder_start_token_id`, and {rows} rows",
            hint=f"give {len(begins)} rows, or `decoder_input_ids` that begin with the first token of each row",
        )
    return np.full((rows, 1), np.array(begins, dtype=np.int64)[:, None])


def with_start(model: LanguageModel, values: GivenSettings, ids: Any, mask: Any) -> tuple[Any, Any]:
    """Return the first tokens of a decoder after its start token, which transformers adds if no row begins with it."""
    check_ids(ids)
    config = read_asset(model.name, model.assets, CONFIG) if CONFIG in model.assets else {}
    encoder = config.get("encoder")
    begins = values.tokens("decoder_start_token_id") or values.tokens("bos_token_id")
    is_donut = isinstance(encoder, Mapping) and "donut" in str(encoder.get("model_type"))
    if not begins or is_donut:
        return ids, mask
    start = first_tokens(model.name, begins, len(ids))
    if (ids[:, :1] == start).any():
        return ids, mask
    more = None if mask is None else np.concatenate([np.ones_like(mask[:, :1]), mask], 1)
    return np.concatenate([start, ids], 1), more


def with_mask(model: LanguageModel, values: GivenSettings, ids: Any, mask: Any) -> tuple[Any, Any]:
    """Return a prompt with its mask; without one, a token of padding that ends no row is hidden, as in transformers."""
    padding, ends = values.tokens("pad_token_id"), values.tokens("eos_token_id")
    if mask is None and padding and padding[0] not in ends:
        mask = (ids != padding[0]).astype(np.int64)
    return ids, mask


def refuse_texts(given: Mapping[str, Any]) -> None:
    """Refuse texts in place of arrays."""
    for name, value in given.items():
        if value is not None and value.dtype.kind not in "biuf":
            raise InputError(
                "texts are no inputs of a model",
                where=f"`{name}`",
                found=f"{value.dtype} of shape {value.shape}",
                hint="make the arguments of texts: `model.generate(**model.preprocess(texts))`",
            )


def check_ids(ids: Any) -> None:
    if ids.ndim != 2 or 0 in ids.shape or ids.dtype.kind not in "iu":
        raise InputError(
            "a prompt must be integers of shape (batch, tokens), with at least one token",
            where="`input_ids`",
            found=f"{ids.dtype} of shape {ids.shape}",
            hint="one prompt is `[[…]]`; without a prompt, generation begins with the model's first token",
        )


def checked_prompt(ids: Any, mask: Any, *, pads_left: bool) -> tuple[Any, Any]:
    """Return the tokens, int64 of shape (rows, tokens), and whether each is no padding, bool of the same shape."""
    check_ids(ids)
    visible = checked_mask(mask, ids.shape)
    if not pads_left and not visible.all():
        raise InputError(
            "the first tokens of a decoder have no padding",
            where="`decoder_attention_mask`",
            found="a row with padding",
            hint="give rows of different lengths in calls of their own",
        )
    if not visible.any(1).all():
        raise InputError(
            "a prompt must have at least one token",
            where="`attention_mask`",
            found="a row of padding alone, as `preprocess` makes of an empty text",
            hint="leave out the row",
        )
    if pads_left and not visible[:, -1].all():
        raise InputError(
            "prompts of different lengths must be padded on the left",
            where="`attention_mask`",
            found="a row that ends with padding",
            hint="make the arguments with `model.preprocess(texts)`",
        )
    return ids.astype(np.int64), visible


def checked_mask(mask: Any, shape: tuple[int, ...]) -> Any:
    """Return a mask as Booleans, true for `None`."""
    found = np.ones(shape, dtype=np.bool_) if mask is None else mask
    if found.shape != shape or not np.isin(found, (0, 1)).all():
        raise InputError(
            "a mask must be 1 at tokens and 0 at padding",
            where="`attention_mask`",
            found=f"{found.dtype} of shape {found.shape}",
            hint=f"give a mask of shape {shape}",
        )
    return found.astype(np.bool_)


def encoder_inputs(model: LanguageModel, parameters: frozenset[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of an encoder, without arguments that change nothing."""
    spare = spare_names(model.name, model.assets, parameters, given)
    if unknown := given.keys() - parameters - spare:
        name, inputs = min(unknown), sorted(parameters) or ["input_ids", "attention_mask"]
        listed = f"give {', '.join(f'`{each}`' for each in inputs)} and the settings that `help(model.generate)` lists"
        raise InputError(
            f"`generate` of model `{model.name}` has no argument `{name}`",
            found=nearest(name, SETTINGS.union(parameters)),
            hint=INSTEAD.get(name, ELSEWHERE if name in NOT_HERE else listed),
        )
    return {name: value for name, value in given.items() if name in parameters}


def check_tokens(ids: Any, vocabulary: int, where: str) -> None:
    if (wrong := ids[(ids < 0) | (ids >= vocabulary)]).size:
        raise InputError(
            "a token is out of range",
            where=where,
            found=str(wrong[0]),
            hint=f"give tokens from 0 to {vocabulary - 1}",
        )


def check_length(model: str, prompt: int, settings: GenerationSettings, longest: int) -> None:
    if prompt + settings.max_new_tokens - 1 > longest:  # the last new token is not passed to the model again
        room = longest + 1 - prompt
        raise InputError(
            f"the sequence is longer than model `{model}` computes",
            found=f"a prompt of {prompt} tokens, and `max_new_tokens` of {settings.max_new_tokens}",
            hint=f"the model has {longest} positions: shorten the prompt"
            + (f", or set `max_new_tokens` to at most {room}" if room > 0 else ""),
        )


def never(row: int, tokens: Any) -> bool:
    return False


def has_stop(reader: TextReader, stops: tuple[str, ...], prompts: Any, row: int, tokens: Any) -> bool:
    before = prompts[row].tolist()
    text = reader.text([*before, *tokens.tolist()])[len(reader.text(before)) :]
    return any(stop in text for stop in stops)
