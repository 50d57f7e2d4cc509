"""The loop of generation on a model of NumPy, whose next token is the sum of all visible tokens."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hatch_lower.errors import CallError, InputError
from hatch_lower.runtime.generation.calls import LanguageModel, begin
from hatch_lower.runtime.generation.choose import Chooser, likely_tokens, repeated
from hatch_lower.runtime.generation.loop import causal_mask, sliding_mask
from hatch_lower.runtime.generation.settings import GenerationSettings, settings_of
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.numpy_arrays import NumpyArrays

WORDS = 50
LONGEST = 40


class Adder:
    """The methods `start` and `decode` of a model whose cache holds the tokens, and the calls of `decode`."""

    def __init__(self, window: int = 0) -> None:
        self.window = window
        self.calls: list[int] = []

    def start(self, input_ids: Any) -> dict[str, Any]:
        cache = [(np.zeros((len(input_ids), 1, 1, 1)),) * 2]
        return {"cache": cache, "longest": LONGEST, "window": self.window, "vocabulary": WORDS}

    def decode(self, input_ids: Any, attention_mask: Any, kept: Any, cache: Any, position_ids: Any) -> Any:
        self.calls.append(input_ids.shape[1])
        ((keys, _),) = cache
        keys = np.concatenate([keys, input_ids[:, None, :, None]], 2)
        assert attention_mask.shape == (len(input_ids), 1, input_ids.shape[1], keys.shape[2])
        sums = (attention_mask[:, 0] * keys[:, 0, :, 0][:, None, :]).sum(2)
        scores = -np.abs(np.arange(WORDS) - (sums % WORDS)[:, :, None]).astype(np.float32)
        # a model with positions: the token after the one at position 20 is 49
        scores[position_ids == 20] = -np.abs(np.arange(WORDS) - 49)
        return kept @ scores, [(keys, keys)]


class SlidingAdder(Adder):
    def decode(self, input_ids: Any, attention_mask: Any, kept: Any, cache: Any, sliding_mask: Any) -> Any:  # type: ignore[override]
        return super().decode(input_ids, sliding_mask, kept, cache, np.zeros_like(input_ids))


class ApartAdder(Adder):
    """A model that returns its new keys alone, and finds them in the cache again."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.sizes: list[int] = []

    def start(self, input_ids: Any) -> dict[str, Any]:
        return {**super().start(input_ids), "longest": self.longest}

    def decode(self, input_ids: Any, attention_mask: Any, kept: Any, cache: Any, position_ids: Any) -> Any:
        ((keys, _),) = cache
        self.sizes.append(keys.shape[2])
        logits, _ = super().decode(input_ids, attention_mask, kept, cache, position_ids)
        new = input_ids[:, None, :, None].astype(float)
        return logits, [(new, new)]


def language_model(adder: Adder | None = None, folder: Path | None = None, **packaged: Any) -> LanguageModel:
    adder = adder or Adder()
    assets: dict[str, Path] = {}
    if folder is not None:
        assets["generation_config.json"] = folder / "generation_config.json"
        assets["generation_config.json"].write_text(json.dumps(packaged))
    methods: dict[str, Callable[..., Any]] = {"start": adder.start, "decode": adder.decode}
    return LanguageModel("adder", methods, assets, NumpyArrays(), lambda: pytest.fail("no text is read"))


def tokens_of(model: LanguageModel, **arguments: Any) -> list[list[int]]:
    prompt, steps = begin(model, arguments)
    return [[int(each) for each in row] for row in zip(*steps, strict=True)] if prompt.size else []


def sums(row: list[int], count: int) -> list[int]:
    """Return the tokens that the model appends to a row."""
    found = list(row)
    for _ in range(count):
        found.append(49 if len(found) == 21 else sum(found) % WORDS)
    return found[len(row) :]


def test_a_token_follows_all_tokens_before() -> None:
    adder = Adder()
    assert tokens_of(language_model(adder), input_ids=[[1, 2, 4]], max_new_tokens=6) == [sums([1, 2, 4], 6)]
    assert adder.calls == [3, 1, 1, 1, 1, 1]


def test_padding_on_the_left_changes_no_token() -> None:
    rows = [[1, 2, 4], [5, 3]]
    found = tokens_of(
        language_model(),
        input_ids=np.array([rows[0], [9, *rows[1]]]),
        attention_mask=np.array([[1, 1, 1], [0, 1, 1]]),
        max_new_tokens=25,
    )
    assert found == [sums(row, 25) for row in rows]


@pytest.mark.parametrize("longest", [200, 155])
def test_a_cache_of_new_keys_grows_in_steps(longest: int) -> None:
    adder = ApartAdder(longest)
    rows = [[1, 2, 4], [5, 3]]
    found = tokens_of(
        language_model(adder),
        input_ids=np.array([rows[0], [9, *rows[1]]]),
        attention_mask=np.array([[1, 1, 1], [0, 1, 1]]),
        max_new_tokens=150,
    )
    assert found == [sums(row, 150) for row in rows]
    assert sorted(set(adder.sizes)) == [1, 64, 128, min(192, longest + 1)]


def test_a_row_that_has_ended_gets_padding() -> None:
    found = tokens_of(
        language_model(), input_ids=[[1, 2, 4], [0, 1, 2]], max_new_tokens=4, eos_token_id=[7, 30], pad_token_id=8
    )
    assert found == [[7, 8, 8, 8], sums([0, 1, 2], 4)]


@pytest.mark.parametrize("padding", [8, WORDS, 10**6])
def test_padding_that_the_model_does_not_have_is_not_passed_to_the_model(padding: int) -> None:
    found = tokens_of(
        language_model(),
        input_ids=[[1, 2, 4], [0, 1, 2]],
        max_new_tokens=4,
        eos_token_id=[14, 10**6],
        pad_token_id=padding,
        repetition_penalty=1.00001,
        min_new_tokens=1,
    )
    assert found[0][2:] == [padding, padding]


def test_generation_ends_when_all_rows_have_ended() -> None:
    adder = Adder()
    assert tokens_of(language_model(adder), input_ids=[[1, 2, 4]], max_new_tokens=9, eos_token_id=14) == [[7, 14]]
    assert len(adder.calls) == 2


def test_the_end_waits_for_the_least_number_of_tokens() -> None:
    found = tokens_of(language_model(), input_ids=[[1, 2, 4]], max_new_tokens=5, min_new_tokens=2, eos_token_id=7)
    assert 7 not in found[0][:2]
    assert len(found[0]) == 5


def test_sliding_layers_see_the_last_tokens_only() -> None:
    found = tokens_of(language_model(SlidingAdder(window=2)), input_ids=[[1, 2, 4, 8]], max_new_tokens=3)
    assert found == [[12, 20, 32]]


def test_masks_hide_later_tokens_and_padding() -> None:
    mask = causal_mask(np.array([[False, True, True]]), 2, np.array([-1, 0, 1, 2]))
    assert mask[0, 0].tolist() == [[False, False, True, False], [False, False, True, True]]
    room = causal_mask(np.array([[True, True, True]]), 1, np.array([-1, 0, 1, -1, -1, 2]))
    assert room[0, 0].tolist() == [[False, True, True, False, False, True]]
    prompt = causal_mask(np.array([[False, True]]), 2, np.array([-1, 0, 1]))
    assert prompt[0, 0].tolist() == [[False, True, False], [False, False, True]], "padding sees itself"
    places = np.array([-1, 0, 1, 2, 3])
    near = sliding_mask(causal_mask(np.ones((1, 4), bool), 1, places), places, 2)
    assert near[0, 0].tolist() == [[False, False, False, True, True]]


def test_a_stream_computes_a_token_when_it_is_asked() -> None:
    adder = Adder()
    _, steps = begin(language_model(adder), {"input_ids": [[1, 2]], "max_new_tokens": 30})
    assert adder.calls == []
    assert [int(next(steps)[0]) for _ in range(2)] == [3, 6]
    assert adder.calls == [2, 1]


def test_two_streams_of_a_model_do_not_meet() -> None:
    model = language_model()
    one, other = (begin(model, {"input_ids": [row], "max_new_tokens": 5})[1] for row in ([1, 2], [3, 4]))
    found = [(int(a[0]), int(b[0])) for a, b in zip(one, other, strict=True)]
    assert found == list(zip(sums([1, 2], 5), sums([3, 4], 5), strict=True))


def test_a_closed_stream_lets_go_of_its_cache() -> None:
    caches = []

    class Noted(Adder):
        def decode(self, input_ids: Any, attention_mask: Any, kept: Any, cache: Any, position_ids: Any) -> Any:
            logits, cache = super().decode(input_ids, attention_mask, kept, cache, position_ids)
            caches.append(weakref.ref(cache[0][0]))
            return logits, cache

    adder = Noted()
    runnable: Any = SimpleNamespace(methods={"start": adder.start, "decode": adder.decode}, arrays=NumpyArrays())
    provenance: Any = SimpleNamespace(name="net", assets={})
    stream = LoadedModel(runnable, provenance).stream([[1, 2]], max_new_tokens=30)
    assert [int(next(stream)[0]) for _ in range(2)] == [3, 6]
    assert caches[-1]() is not None
    stream.close()
    assert [each() for each in caches] == [None, None]
    assert list(stream) == []


# Text that ends a row


class Letters:
    """A tokenizer of letters, whose first letter of a text has no space before it."""

    def text(self, tokens: list[int]) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)


@pytest.mark.parametrize(("stop", "count"), [("h", 1), (["zz", "ho"], 2), ("eh", 5), ("no", 5)])
def test_a_text_ends_a_row_across_tokens_of_new_text_alone(stop: Any, count: int) -> None:
    model = language_model()
    reader: Any = Letters()
    model = LanguageModel(model.name, model.methods, model.assets, model.arrays, lambda: reader)
    found = tokens_of(model, input_ids=[[1, 2, 4]], max_new_tokens=5, stop=stop)
    assert found == [sums([1, 2, 4], count)]


# Settings


def test_settings_follow_arguments_then_the_packaged_configuration(tmp_path: Path) -> None:
    packaged = {"max_new_tokens": 3, "eos_token_id": 14, "pad_token_id": 0}
    model = language_model(None, tmp_path, **packaged)
    assert tokens_of(model, input_ids=[[1, 2, 4]]) == [[7, 14]]
    assert tokens_of(model, input_ids=[[1, 2, 4]], eos_token_id=7) == [[7]]
    assert tokens_of(model, input_ids=[[1, 2, 8]], max_new_tokens=1) == [[11]]


def test_a_sampling_configuration_samples_unless_the_temperature_is_0() -> None:
    packaged = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_length": 10}
    found = settings_of("m", packaged, {}, 4)
    assert (found.temperature, found.top_p, found.top_k, found.max_new_tokens) == (0.6, 0.9, 20, 6)
    assert settings_of("m", packaged, {"temperature": 0}, 4).temperature == 0
    assert settings_of("m", {**packaged, "do_sample": False}, {}, 4).temperature == 0


def test_a_sampling_configuration_without_a_number_draws_from_50_tokens() -> None:
    sampling = {"do_sample": True, "max_new_tokens": 3}
    assert settings_of("m", sampling, {}, 4).top_k == 50
    assert settings_of("m", {**sampling, "top_k": 0}, {}, 4).top_k == 0
    assert settings_of("m", sampling, {"top_k": 7}, 4).top_k == 7
    assert settings_of("m", {"max_new_tokens": 3}, {"temperature": 0.5}, 4).top_k == 0


@pytest.mark.parametrize("name", ["min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"])
def test_members_for_drawn_tokens_are_refused_only_if_tokens_are_drawn(name: str) -> None:
    packaged = {name: 0.5, "max_new_tokens": 3}
    assert settings_of("m", packaged, {}, 4).temperature == 0
    with pytest.raises(InputError, match="cannot do what its configuration asks for") as error:
        settings_of("m", {**packaged, "do_sample": True}, {}, 4)
    assert error.value.where == f"`{name}` in `generation_config.json`"


def test_a_forced_token_is_one_that_is_not_suppressed() -> None:
    packaged = {"forced_eos_token_id": [9, 7], "suppress_tokens": [7], "max_new_tokens": 3}
    assert settings_of("m", packaged, {}, 4).forced_last == (9, 7)
    with pytest.raises(InputError, match="`forced_eos_token_id` must be a token that `suppress_tokens` does not have"):
        settings_of("m", {**packaged, "suppress_tokens": [9, 7]}, {}, 4)


def test_a_first_token_is_forced_behind_a_prompt_of_one_place_alone(tmp_path: Path) -> None:
    model = language_model(None, tmp_path, forced_bos_token_id=6)
    prompt = np.array([[9, 5], [1, 2]])
    assert tokens_of(model, input_ids=prompt[:, :1], max_new_tokens=1) == [[6], [6]]
    padded = {"input_ids": prompt, "attention_mask": np.array([[0, 1], [1, 1]])}
    assert tokens_of(model, **padded, max_new_tokens=1) == [[5], [3]]


def test_padding_is_found_in_a_prompt_without_a_mask(tmp_path: Path) -> None:
    prompt = [[9, 5], [1, 2]]
    found = tokens_of(language_model(None, tmp_path, pad_token_id=9), input_ids=prompt, max_new_tokens=2)
    assert found == [sums([5], 2), sums([1, 2], 2)]
    model = language_model(None, tmp_path, pad_token_id=9, eos_token_id=[9, 30])
    assert tokens_of(model, input_ids=prompt, max_new_tokens=1) == [[14], [3]], "a token that ends rows is no padding"


def test_a_generation_begins_with_the_first_token_without_a_prompt(tmp_path: Path) -> None:
    assert tokens_of(language_model(None, tmp_path, bos_token_id=5), max_new_tokens=2) == [[5, 10]]
    with pytest.raises(InputError, match="has no first token"):
        tokens_of(language_model(), max_new_tokens=2)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({}, "is not told when to stop"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be an integer from 1"),
        ({"max_new_tokens": True}, "`max_new_tokens` must be an integer from 1"),
        ({"max_new_tokens": 3, "temperature": -1}, "`temperature` must be a number from 0"),
        ({"max_new_tokens": 3, "temperature": float("nan")}, "`temperature` must be a number from 0"),
        ({"max_new_tokens": 3, "temperature": 1, "top_p": 1.5}, "`top_p` must be a number from 0 to 1"),
        ({"max_new_tokens": 3, "repetition_penalty": 0}, "`repetition_penalty` must be above 0"),
        ({"max_new_tokens": 3, "temperature": 1, "seed": "x"}, "`seed` must be an integer from 0"),
        ({"max_new_tokens": 3, "top_p": 0.9}, "`top_p` has no effect on the most likely token"),
        ({"max_new_tokens": 3, "seed": 1}, "`seed` has no effect on the most likely token"),
        ({"max_new_tokens": 3, "input_ids": [[1, 2], [3]]}, "rows must have the same length"),
        ({"max_new_tokens": 3, "stop": [""]}, "`stop` must be a text, or a list of texts"),
        ({"max_new_tokens": 3, "max_tokens": 3}, "has no argument `max_tokens`"),
        ({"max_new_tokens": 3, "max_tokens": 3, "input_ids": None}, "has no argument `max_tokens`"),
        ({"max_new_tokens": LONGEST}, "the sequence is longer than model `adder` computes"),
        ({"max_new_tokens": 3, "input_ids": [[1, WORDS]]}, "a token is out of range"),
        ({"max_new_tokens": 3, "min_new_tokens": 4}, "`min_new_tokens` must be at most `max_new_tokens`, 3"),
        ({"max_new_tokens": 3, "input_ids": [[1, -1]]}, "a token is out of range"),
        ({"max_new_tokens": 3, "input_ids": [1, 2]}, "a prompt must be integers of shape"),
        ({"max_new_tokens": 3, "input_ids": [[]]}, "a prompt must be integers of shape"),
        ({"max_new_tokens": 3, "input_ids": [[1.0]]}, "a prompt must be integers of shape"),
        ({"max_new_tokens": 3, "input_ids": "once"}, "texts are no inputs of a model"),
        ({"max_new_tokens": 3, "input_ids": [1] * (LONGEST + 9)}, "a prompt must be integers of shape"),
        (
            {"max_new_tokens": 3, "input_ids": [[1] * (LONGEST + 9)]},
            "the sequence is longer than model `adder` computes",
        ),
        ({"max_new_tokens": 3, "temperature": "1"}, "`temperature` must be a number from 0"),
        ({"max_new_tokens": 3, "temperature": float("inf")}, "`temperature` must be a number from 0"),
        ({"max_new_tokens": 3.0}, "`max_new_tokens` must be an integer from 1"),
        ({"max_new_tokens": 3, "eos_token_id": "2"}, "`eos_token_id` must be an integer from 0"),
        ({"max_new_tokens": 3, "attention_mask": [[1, 0]]}, "must be padded on the left"),
        ({"max_new_tokens": 3, "attention_mask": [[0, 0]]}, "a prompt must have at least one token"),
        ({"max_new_tokens": 3, "attention_mask": [[1]]}, "a mask must be 1 at tokens"),
        ({"max_new_tokens": 3, "attention_mask": [[2, 1]]}, "a mask must be 1 at tokens"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Mapping[str, Any], what: str) -> None:
    with pytest.raises(InputError) as error:
        tokens_of(language_model(), **{"input_ids": [[1, 2]], **arguments})
    assert what in error.value.what
    assert error.value.hint


def test_texts_in_place_of_tokens_name_preprocess() -> None:
    with pytest.raises(InputError) as error:
        tokens_of(language_model(), input_ids=["once upon a time"], max_new_tokens=1)
    assert "model.preprocess" in error.value.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_beams", "as_pretrained"),
        ("assistant_model", "as_pretrained"),
        ("do_sample", "`temperature`"),
        ("max_length", "`max_new_tokens`"),
        ("max_tokens", "help(model.generate)"),
    ],
)
def test_arguments_of_transformers_name_their_counterparts(name: str, words: str) -> None:
    with pytest.raises(InputError, match=f"has no argument `{name}`") as error:
        tokens_of(language_model(), input_ids=[[1]], **{name: 4})
    assert words in error.value.hint


def test_a_prompt_longer_than_the_model_is_refused_before_it_is_passed_on() -> None:
    class Strict(Adder):
        def start(self, input_ids: Any) -> dict[str, Any]:
            assert input_ids.shape == (2, 1)
            return super().start(input_ids)

    assert tokens_of(language_model(Strict()), input_ids=[[1, 2], [5, 3]], max_new_tokens=1) == [[3], [8]]


def test_numbers_of_numpy_are_settings() -> None:
    options = {"max_new_tokens": np.int64(2), "temperature": np.float32(0.5), "eos_token_id": [np.int32(7)]}
    found = settings_of("m", {}, options, 4)
    assert (found.max_new_tokens, found.temperature, found.ends) == (2, 0.5, (7,))


@pytest.mark.parametrize(
    ("packaged", "what"),
    [
        ({"max_new_tokens": "3"}, "`max_new_tokens` must be an integer from 1"),
        ({"max_length": "30"}, "`max_length` must be an integer from 0"),
        ({"min_length": "30", "max_new_tokens": 3}, "`min_length` must be an integer from 0"),
        ({"do_sample": True, "top_p": "0.9", "max_new_tokens": 3}, "`top_p` must be a number from 0 to 1"),
        ({"eos_token_id": [2, "3"], "max_new_tokens": 3}, "`eos_token_id` must be an integer from 0"),
        ({"forced_bos_token_id": -1, "max_new_tokens": 3}, "`forced_bos_token_id` must be an integer from 0"),
    ],
)
def test_a_wrong_value_of_the_configuration_names_the_file(packaged: Mapping[str, Any], what: str) -> None:
    with pytest.raises(InputError) as error:
        settings_of("m", packaged, {}, 4)
    assert error.value.what.startswith(what)
    assert error.value.where == "`generation_config.json`"
    assert "build the wheel again" in error.value.hint


def test_a_prompt_as_long_as_the_configuration_s_limit_is_refused_by_this_limit() -> None:
    with pytest.raises(InputError, match="the prompt leaves no room for a new token") as error:
        settings_of("m", {"max_length": 20}, {}, 20)
    assert error.value.found == "a prompt of 20 tokens, and `max_length` of 20"
    assert settings_of("m", {"max_length": 20}, {}, 19).max_new_tokens == 1
    assert settings_of("m", {"max_length": 20}, {"max_new_tokens": 5}, 20).max_new_tokens == 5


class Overflowing(Adder):
    """A model whose logits of the row `wrong` are no numbers from the second call on."""

    def __init__(self, number: float, wrong: int) -> None:
        super().__init__()
        self.number, self.wrong = number, wrong

    def decode(self, input_ids: Any, attention_mask: Any, kept: Any, cache: Any, position_ids: Any) -> Any:
        logits, cache = super().decode(input_ids, attention_mask, kept, cache, position_ids)
        if len(self.calls) > 1:
            logits[self.wrong, -1, 3] = self.number
        return logits, cache


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers_give_no_token(number: float, temperature: float) -> None:
    _, steps = begin(
        language_model(Overflowing(number, 1)),
        {"input_ids": [[1, 2], [5, 3]], "max_new_tokens": 5, "temperature": temperature},
    )
    assert next(steps).shape == (2,)
    with pytest.raises(CallError, match="the model's logits are no numbers") as error:
        next(steps)
    assert error.value.found == f"{number} as the largest logit of a row"


def test_logits_of_a_row_that_has_ended_do_not_matter() -> None:
    model = language_model(Overflowing(float("nan"), 0))
    options = {"max_new_tokens": 4, "eos_token_id": 7, "pad_token_id": 30}
    found = tokens_of(model, input_ids=[[1, 2, 4], [5, 3, 1]], **options)
    assert found == [[7, 30, 30, 30], sums([5, 3, 1], 4)]


def test_the_longest_sequence_is_computed() -> None:
    assert len(tokens_of(language_model(), input_ids=[[1, 2]], max_new_tokens=LONGEST - 1)[0]) == LONGEST - 1


def test_tokens_of_a_configuration_that_the_model_does_not_have(tmp_path: Path) -> None:
    suppressed = language_model(None, tmp_path, suppress_tokens=[7, WORDS], begin_suppress_tokens=[WORDS + 1])
    assert tokens_of(suppressed, input_ids=[[1, 2, 4]], max_new_tokens=1) != [[7]]
    with pytest.raises(InputError, match="a token is out of range") as error:
        tokens_of(language_model(None, tmp_path, forced_bos_token_id=WORDS), input_ids=[[1]], max_new_tokens=1)
    assert error.value.where == "`generation_config.json`"


@pytest.mark.parametrize(
    "packaged", [{"num_beams": 4}, {"penalty_alpha": 0.6}, {"bad_words_ids": [[3]]}, {"max_time": 2.0}]
)
def test_a_configuration_that_needs_transformers_is_refused(packaged: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot do what its configuration asks for") as error:
        tokens_of(language_model(None, tmp_path, **packaged), input_ids=[[1]], max_new_tokens=1)
    assert "as_pretrained" in error.value.hint
    if not {"bad_words_ids", "max_time"} & packaged.keys():
        model = language_model(None, tmp_path, **packaged)
        assert tokens_of(model, input_ids=[[1]], max_new_tokens=1, temperature=0) == [[1]]


def test_a_model_without_the_methods_does_not_generate() -> None:
    runnable: Any = SimpleNamespace(methods={"forward": lambda x: x}, arrays=NumpyArrays())
    provenance: Any = SimpleNamespace(name="net", assets={})
    with pytest.raises(InputError, match="does not generate tokens"):
        LoadedModel(runnable, provenance).generate([[1]], max_new_tokens=1)


def test_a_call_of_a_language_model_names_generate() -> None:
    adder = Adder()
    runnable: Any = SimpleNamespace(methods={"start": adder.start, "decode": adder.decode}, arrays=NumpyArrays())
    provenance: Any = SimpleNamespace(name="net", assets={})
    with pytest.raises(InputError, match="has no method `forward`") as error:
        LoadedModel(runnable, provenance)([[1]])
    assert error.value.hint == "generate tokens with `model.generate(…)`"


class Translator(Adder):
    """A model with an encoder of tokens."""

    def start(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**super().start(input_ids), "cross": []}

    def decode(  # type: ignore[override]
        self, input_ids: Any, attention_mask: Any, kept: Any, cache: Any, cross: Any, encoder_mask: Any
    ) -> Any:
        return super().decode(input_ids, attention_mask, kept, cache, np.zeros_like(input_ids))


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ([3, 4], "a prompt must be integers of shape"),
        (np.zeros((1, 0), dtype=np.int64), "a prompt must be integers of shape"),
        ([[3.0]], "a prompt must be integers of shape"),
        ("once", "texts are no inputs of a model"),
        ([[3], [3, 4]], "rows must have the same length"),
    ],
)
def test_wrong_inputs_of_an_encoder_are_refused(inputs: Any, what: str, tmp_path: Path) -> None:
    model = language_model(Translator(), tmp_path, decoder_start_token_id=1)
    assert tokens_of(model, input_ids=[[3, 4]], max_new_tokens=1) == [[1]]
    with pytest.raises(InputError) as error:
        tokens_of(model, input_ids=inputs, max_new_tokens=1)
    assert what in error.value.what


def test_an_encoder_takes_its_own_inputs_alone(tmp_path: Path) -> None:
    model = language_model(Translator(), tmp_path, decoder_start_token_id=1)
    with pytest.raises(InputError, match="has no argument `pixel_values`") as error:
        tokens_of(model, input_ids=[[3, 4]], pixel_values=object(), max_new_tokens=1)
    assert "`input_ids`" in error.value.found


# The choice of a token


def chooser(rows: int = 1, **settings: Any) -> Chooser:
    return Chooser(GenerationSettings(max_new_tokens=9, **settings), rows, 1)


def test_draws_follow_the_weights() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32))
    drawn = chooser(temperature=1.0, seed=0)
    counts = np.bincount([int(drawn.choose(logits.copy(), np.zeros((1, 1), int), 1)[0]) for _ in range(4000)])
    assert np.abs(counts / 4000 - np.exp(logits[0])).max() < 0.03


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"), [(2, 1.0, 2), (0, 0.75, 2), (0, 0.85, 3), (3, 0.8, 2), (0, 0.0, 1)]
)
def test_unlikely_tokens_are_left_out(top_k: int, top_p: float, kept: int) -> None:
    weights = np.array([0.15, 0.5, 0.05, 0.3])
    tokens, found = likely_tokens(weights, top_k, top_p)
    assert sorted(tokens.tolist()) == sorted([1, 3, 0, 2][:kept])
    assert (found == weights[tokens]).all()


def test_a_large_vocabulary_is_not_sorted_as_a_whole() -> None:
    weights = np.random.default_rng(0).random(40_000) ** 8
    for top_p in (0.001, 0.3, 0.999999):
        tokens, _ = likely_tokens(weights, 0, top_p)
        order = np.argsort(-weights)
        wanted = order[: int(np.searchsorted(weights[order].cumsum(), top_p * weights.sum())) + 1]
        assert set(tokens.tolist()) == set(wanted.tolist())


def test_a_temperature_close_to_0_draws_the_most_likely_token() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 30)).astype(np.float32)
    drawn = chooser(2, temperature=1e-320, seed=0).choose(logits.copy(), np.zeros((2, 1), int), 1)
    assert drawn.tolist() == logits.argmax(1).tolist()


def test_a_row_draws_the_same_tokens_beside_other_rows() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 30)).astype(np.float32)
    alone, beside = (chooser(rows, temperature=1.0, seed=5) for rows in (1, 3))
    before = np.zeros((3, 1), int)
    for _ in range(5):
        assert alone.choose(logits[:1].copy(), before[:1], 1)[0] == beside.choose(logits.copy(), before, 1)[0]


def test_repetitions_are_punished_and_refused() -> None:
    logits = np.array([[2.0, 1.9, -1.0]], dtype=np.float32)
    assert chooser(repetition_penalty=1.5).choose(logits.copy(), np.array([[0, 2]]), 2)[0] == 1
    assert repeated([1, 2, 3, 1, 2], 3) == [3]
    assert repeated([1, 2], 1) == [1, 2]
    assert repeated([1], 3) == []
    assert chooser(no_repeat_ngram_size=2).choose(logits.copy(), np.array([[2, 0, 2]]), 3)[0] == 1
    padded = np.array([[0, 2, 2]])
    found = chooser(no_repeat_ngram_size=1, repetition_penalty=1.01).choose(logits.copy(), padded[:, 1:], 1, padded)
    assert found[0] == 1, "runs of tokens begin in the padding, as in transformers"


def test_forced_and_suppressed_tokens() -> None:
    logits = np.array([[3.0, 2.0, 1.0]], dtype=np.float32)
    start, later = np.array([[1]]), np.array([[1, 1]])
    assert chooser(never=(0,)).choose(logits.copy(), later, 1)[0] == 1
    assert chooser(never_first=(0,)).choose(logits.copy(), start, 0)[0] == 1
    assert chooser(never_first=(0,)).choose(logits.copy(), later, 1)[0] == 0
    assert chooser(forced_first=(2,)).choose(logits.copy(), start, 0)[0] == 2
    assert chooser(forced_last=(2,)).choose(logits.copy(), later, 8)[0] == 2
    assert chooser(forced_last=(2, 1)).choose(logits.copy(), later, 8)[0] == 1, "the least of several"
    assert chooser(forced_last=(2, 1), never=(1,)).choose(logits.copy(), later, 8)[0] == 2
    both = Chooser(GenerationSettings(max_new_tokens=1, forced_first=(1,), forced_last=(2,)), 1, 1)
    assert both.choose(logits.copy(), start, 0)[0] == 2, "the last token is forced after the first"
