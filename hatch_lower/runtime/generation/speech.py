"""The first tokens of Whisper's decoder: language, task and timestamps, as transformers chooses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hatch_lower.errors import InputError, nearest
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.generation.settings import GENERATION, GivenSettings

WHISPER = "whisper"  # `model_type` in the configuration
ARGUMENTS = ("language", "task")
TASKS = ("transcribe", "translate")
# members that ask for steps that are not here, and their values without effect
NOT_HERE: Mapping[str, tuple[object, ...]] = {"return_timestamps": (False,), "no_speech_threshold": ()}
# members that this module reads, or that transformers does not read for this model
DONE = ("forced_decoder_ids", "do_sample")


class SpeechPrompt(Frozen):
    """The first tokens of each row."""

    tokens: tuple[int, ...]
    positions: int | None = None  # of the decoder
    languages: tuple[int, ...] = ()
    detected: int | None = None  # the index of a token that the model chooses among `languages`

    def rows(self, count: int) -> Any:
        """Return the tokens for a number of rows, int64 of shape (rows, tokens)."""
        return np.tile(np.array(self.tokens, dtype=np.int64), (count, 1))

    def members(self, packaged: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Return the members of a configuration for `settings_of`, after `count` tokens."""
        found = {name: value for name, value in packaged.items() if name not in DONE}
        if found.get("max_length") is not None:
            # `max_length` counts no first tokens here
            limit = packaged_number("max_length", found["max_length"]) + count
            found["max_length"] = limit if self.positions is None else min(limit, self.positions)
        return found

    def detected_tokens(self, scores: Any) -> Any:
        """Return the first tokens of each row, int64 of shape (rows, tokens), by the scores after the first token."""
        ids = self.rows(len(scores))
        languages = np.array(sorted(self.languages))
        ids[:, self.detected] = languages[scores[:, languages].argmax(1)]
        return ids


def speech_prompt(
    model: str, config: Mapping[str, Any], packaged: Mapping[str, Any], arguments: Mapping[str, Any]
) -> SpeechPrompt:
    """Return the first tokens of a call.

    Args:
        model: the model's name, for errors.
        config: the members of `config.json`.
        packaged: the members of `generation_config.json`.
        arguments: of the call, with `language` and `task`.

    Raises:
        InputError: for an unknown language or task, or members that need transformers.
    """
    found = {name: value for name, value in packaged.items() if value is not None}
    languages, tasks = (token_table(found, name) for name in ("lang_to_id", "task_to_id"))
    language, task = (arguments.get(name, found.get(name)) for name in ARGUMENTS)
    if found.get("is_multilingual") is False and (given := [name for name in ARGUMENTS if name in arguments]):
        raise GivenSettings(arguments, {}).refused(
            given[0], arguments[given[0]], f"left out: model `{model}` has one language"
        )
    starts = GivenSettings({}, found).tokens("decoder_start_token_id")
    if not starts:
        raise InputError(
            f"model `{model}` has no first token",
            found=f"no `decoder_start_token_id` in `{GENERATION}`",
            hint="give `decoder_input_ids`",
        )
    tokens: list[int | None] = [starts[0]]
    if language is None and task is None:
        tokens += forced_tokens(found.get("forced_decoder_ids", config.get("forced_decoder_ids")))
    known = len(tokens) > 1 and tokens[1] is not None
    if language is not None:
        tokens[1:2] = [language_token(model, language, languages)]
    elif languages and not known:
        tokens[1:2] = [None]
    if task is not None:
        tokens.append(task_token(model, task, tasks))
    elif language is not None and tasks and not set(tokens) & set(tasks.values()):
        tokens.append(task_token(model, TASKS[0], tasks))
    silent = GivenSettings({}, found).tokens("no_timestamps_token_id")
    if silent and tokens[-1] != silent[0]:
        tokens.append(silent[0])
    positions = positions_of(config)
    if languages and len(tokens) > 1 and tokens[1] is None:
        tokens[1] = min(languages.values())  # stands for the token to choose
        return SpeechPrompt(known_tokens(tokens), positions, tuple(languages.values()), 1)
    return SpeechPrompt(known_tokens(tokens), positions)


def positions_of(config: Mapping[str, Any]) -> int | None:
    found = config.get("max_target_positions")
    if found is None or (type(found) is int and found > 0):
        return found
    raise InputError(
        "the packaged configuration has no number of positions",
        where="`max_target_positions` in `config.json`",
        found=f"{found!r:.80}",
        hint="correct the checkpoint, and build the wheel again",
    )


def packaged_number(name: str, value: Any) -> int:
    """Return an integer from 0 on, of a member of a packaged configuration."""
    return int(GivenSettings({}, {name: value}).number(name, int, None))


def known_tokens(tokens: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(token for token in tokens if token is not None)


def refuse_other_steps(model: str, packaged: Mapping[str, Any]) -> None:
    for name, neutral in NOT_HERE.items():
        if packaged.get(name) is not None and packaged[name] not in neutral:
            raise InputError(
                f"`generate` of model `{model}` cannot do what its configuration asks for",
                where=f"`{name}` in `{GENERATION}`",
                found=f"{packaged[name]!r:.80}",
                hint="remove the member from the checkpoint, and build the wheel again",
            )


def token_table(packaged: Mapping[str, Any], name: str) -> dict[str, int]:
    table = packaged.get(name, {})
    if not isinstance(table, Mapping):
        raise GivenSettings({}, {}).refused(name, table, "a table of tokens")
    return {str(key): packaged_number(name, value) for key, value in table.items()}


def forced_tokens(given: Any) -> list[int | None]:
    """Return the tokens at the positions from 1 on, of pairs of position and token; `None` for a token to detect."""
    pairs = [] if given is None else given
    try:
        places = [place for place, _ in pairs]
        tokens = [None if token is None else packaged_number("forced_decoder_ids", token) for _, token in pairs]
    except (TypeError, ValueError):
        places, tokens = [None], []
    if places != list(range(1, len(places) + 1)):
        raise GivenSettings({}, {}).refused(
            "forced_decoder_ids", given, "pairs of position and token, at positions from 1 on"
        )
    return tokens


def language_token(model: str, language: Any, languages: Mapping[str, int]) -> int:
    """Return the token of a language by its code: `en` or `<|en|>`."""
    code = language.lower() if isinstance(language, str) else ""
    found = languages.get(code, languages.get(f"<|{code}|>"))
    if found is None:
        codes = [name.strip("<|>") for name in languages]
        raise InputError(
            f"model `{model}` has no such language",
            found=f"{language!r:.80}; {nearest(code, codes)}" if codes else "no `lang_to_id` in its configuration",
            hint='name the language by its code: `language="en"`',
        )
    return found


def task_token(model: str, task: Any, tasks: Mapping[str, int]) -> int:
    if not isinstance(task, str) or task not in TASKS or task not in tasks:
        known = ", ".join(f"`{name}`" for name in TASKS if name in tasks)
        raise InputError(
            f"model `{model}` has no such task",
            found=f"{task!r:.80}; {f'the tasks are {known}' if known else 'no `task_to_id` in its configuration'}",
            hint="correct the task, or leave it out",
        )
    return tasks[task]
