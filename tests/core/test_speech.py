"""Whisper from a sound to its text: first tokens and new tokens are those of transformers' own `generate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from hatch_lower.errors import InputError
from hatch_lower.runtime.generation.speech import speech_prompt
from hatch_lower.runtime.loaded import LoadedModel

torch = pytest.importorskip("torch")

RATE = 16_000
WORDS = 31
NAMES = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>"]
NAMES += ["<|nospeech|>", "<|notimestamps|>"]
# behind the words, as in Whisper's vocabulary
END, START, ENGLISH, GERMAN, FRENCH, TRANSLATE, TRANSCRIBE, _, SILENT = range(WORDS, WORDS + len(NAMES))
LANGUAGES = {"lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN, "<|fr|>": FRENCH}}
TASKS = {"task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE}}
MANY = {**LANGUAGES, **TASKS, "is_multilingual": True, "no_timestamps_token_id": SILENT}
FORCED = {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]}
ONE = {"is_multilingual": False, "no_timestamps_token_id": SILENT, "forced_decoder_ids": [[1, SILENT]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small Whisper with random weights, a tokenizer and a feature extractor."""
    pytest.importorskip("transformers.exporters")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("whisper")
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "num_mel_bins": 8,
        "vocab_size": WORDS + len(NAMES),
    }
    tokens = {"pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
    config = transformers.WhisperConfig(max_source_positions=50, max_target_positions=30, **sizes, **tokens)
    torch.manual_seed(0)
    module = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(30 if parameter.dim() > 1 else 1)
    module.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    vocabulary = {name: number for number, name in enumerate([*(f"w{each}" for each in range(WORDS)), *NAMES])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.add_special_tokens(NAMES)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def whisper(folder: Path, place: Path, **packaged: Any) -> tuple[Any, LoadedModel]:
    """Return a model of transformers, and the same model as a loaded model, with a configuration of generation."""
    import transformers
    from support.generators import loaded

    from hatch_lower.huggingface import generator

    module = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    found = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": END, "max_length": 30, **packaged}
    (place / "generation_config.json").write_text(json.dumps(found))
    module.generation_config = transformers.GenerationConfig.from_pretrained(place)
    assets = {path.name: path for path in [*folder.iterdir(), place / "generation_config.json"]}
    return module, loaded(generator(module), assets)


def sounds() -> list[Any]:
    """Return tones and noise, of different lengths."""
    values = numpy.random.default_rng(1)
    tones = [numpy.sin(numpy.arange(4000 * count) * count**2 / 10) / 4 for count in (1, 2, 3)]
    return [each.astype(numpy.float32) for each in (*tones, values.normal(0, 0.2, RATE))]


def new_tokens(rows: Any, first: int) -> list[list[int]]:
    """Return the tokens of each row after the first ones, up to the end."""
    found = [row[first:] for row in rows.tolist()]
    return [row[: row.index(END)] if END in row else row for row in found]


CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], int]] = {
    "one language": (ONE, {}, 2),
    "without a prompt": ({}, {}, 1),
    "detected": (MANY, {}, 3),
    "detected, with a forced task": ({**MANY, **FORCED}, {}, 4),
    "a language of the call": ({**MANY, **FORCED}, {"language": "de"}, 4),
    "a token of a language": (MANY, {"language": "<|fr|>", "task": "translate"}, 4),
    "a task of the call": (MANY, {"task": "translate"}, 4),
    "a language of the configuration": ({**MANY, "language": "en", "task": "transcribe"}, {}, 4),
    "a limit": ({**MANY, "max_length": 5}, {}, 3),
    "a limit of the call": (MANY, {"max_new_tokens": 7}, 3),
    "hidden tokens": ({**ONE, "suppress_tokens": list(range(10, 20)), "begin_suppress_tokens": [END, 21]}, {}, 2),
    "drawn tokens": ({**ONE, "do_sample": True}, {}, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_a_sound_are_those_of_transformers(case: str, folder: Path, tmp_path: Path) -> None:
    packaged, options, first = CASES[case]
    module, model = whisper(folder, tmp_path, **packaged)
    inputs = model.preprocess(sounds=sounds(), sampling_rate=RATE)
    seen: list[Any] = []
    module.model.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    wanted = module.generate(**inputs, **options)
    prompt = next(each for each in seen if each.shape[1] == first)
    seen.clear()
    found = model.generate(**inputs, **options)
    assert found[:, :first].tolist() == prompt.tolist()
    assert new_tokens(found, first) == new_tokens(wanted, 0)
    assert len({tuple(row) for row in new_tokens(found, first)}) > 1
    limit = options.get("max_new_tokens", min(packaged.get("max_length", 30), 30 - first))
    assert found.shape[1] <= first + limit


def test_a_row_has_the_language_of_the_highest_score() -> None:
    prompt = speech_prompt("net", {}, {"decoder_start_token_id": START, **MANY}, {})
    assert prompt.tokens == (START, ENGLISH, SILENT)
    scores = numpy.zeros((3, WORDS + len(NAMES)))
    scores[0, GERMAN], scores[1, [TRANSLATE, FRENCH]] = 1, (2, 1)
    languages = prompt.detected_tokens(scores)
    assert languages.tolist() == [[START, each, SILENT] for each in (GERMAN, FRENCH, ENGLISH)]


def test_a_sound_has_a_text(folder: Path, tmp_path: Path) -> None:
    _, model = whisper(folder, tmp_path, **MANY)
    tokens = model.generate(**model.preprocess(sounds=sounds()[0], sampling_rate=RATE), language="en")
    (text,) = model.texts(tokens)
    assert text.startswith("w")
    assert "<|" not in text


@pytest.mark.parametrize(
    ("packaged", "options", "what"),
    [
        (MANY, {"language": "english"}, "has no such language"),
        (MANY, {"language": 3}, "has no such language"),
        ({}, {"language": "en"}, "has no such language"),
        (MANY, {"task": "sing"}, "has no such task"),
        ({}, {"task": "translate"}, "has no such task"),
        (ONE, {"language": "en"}, "`language` must be left out"),
        (MANY, {"language": "en", "decoder_input_ids": [[1, 2]]}, "`language` chooses the first tokens"),
        ({**MANY, "return_timestamps": True}, {}, "cannot do what its configuration asks for"),
        ({**MANY, "no_speech_threshold": 0.6}, {}, "cannot do what its configuration asks for"),
        ({"forced_decoder_ids": [[2, 3]]}, {}, "`forced_decoder_ids` must be pairs"),
        ({"forced_decoder_ids": 3}, {}, "`forced_decoder_ids` must be pairs"),
        ({"lang_to_id": ["<|en|>"]}, {}, "`lang_to_id` must be a table"),
        ({"lang_to_id": {"<|en|>": 40}}, {}, "a token is out of range"),
        ({"decoder_start_token_id": None}, {}, "has no first token"),
    ],
)
def test_a_prompt_that_is_not_possible_is_refused(
    packaged: Mapping[str, Any], options: Mapping[str, Any], what: str, folder: Path, tmp_path: Path
) -> None:
    _, model = whisper(folder, tmp_path)
    members = {"decoder_start_token_id": START, "max_length": 30, **packaged}
    (tmp_path / "generation_config.json").write_text(json.dumps(members))
    with pytest.raises(InputError, match=what) as error:
        model.generate(**model.preprocess(sounds=sounds()[0], sampling_rate=RATE), **options)
    assert error.value.hint


def test_first_tokens_of_the_call_take_the_place_of_those_of_the_configuration(folder: Path, tmp_path: Path) -> None:
    _, model = whisper(folder, tmp_path, **MANY)
    inputs = model.preprocess(sounds=sounds()[:1], sampling_rate=RATE)
    first = torch.tensor([[START, GERMAN, TRANSLATE, SILENT]])
    found = model.generate(**inputs, decoder_input_ids=first)
    assert torch.equal(found, model.generate(**inputs, language="de", task="translate"))


@pytest.mark.parametrize("value", ["many", 0, -1, 1.5, True, []])
def test_a_damaged_number_of_positions_is_said_with_its_file(value: Any) -> None:
    with pytest.raises(InputError, match=r"`max_target_positions` in `config\.json`"):
        speech_prompt("net", {"max_target_positions": value}, {"decoder_start_token_id": START, **MANY}, {})
