"""Texts and labels of packaged models of transformers: as transformers' own tokenizer gives them, or a clear error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.texts import TextReader, checked_texts, in_library, read_labels

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "bad", "film", "good", "was", "this"]
TEXTS = ["this was a good film", "bad", "a film"]


def tokenizer_of(folder: Path, **config: Any) -> Mapping[str, Path]:
    """Write a tokenizer of ten words, and its configuration; return the assets."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"id2label": {"0": "bad", "1": "good"}}))
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("wrong", [[1, 2], [[-100]], [[0.5]], [[1 << 40]]])
def test_other_values_than_rows_of_tokens_have_no_text(wrong: Any, tmp_path: Path) -> None:
    model = loaded(tokenizer_of(tmp_path))
    assert model.texts([[4, 7, 6]]) == ["a good film"]
    with pytest.raises(InputError, match="tokens must be integers from 0 on"):
        model.texts(wrong)


def test_a_tokenizer_in_another_format_is_refused_with_its_conversion(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ProgramError, match=r"has no file `tokenizer\.json`") as error:
        loaded({path.name: path for path in tmp_path.iterdir()}).preprocess("a film")
    assert "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)" in error.value.hint


def loaded(assets: Mapping[str, Path], library: str = "numpy") -> LoadedModel:
    def forward(input_ids: Any, attention_mask: Any) -> Any:
        return input_ids

    arrays = SimpleNamespace(name=library, kind=numpy.ndarray, placed=lambda array: array, on_host=lambda array: array)
    runnable: Any = SimpleNamespace(methods={"forward": forward}, arrays=arrays)
    provenance: Any = SimpleNamespace(name="reviews", assets=assets)
    return LoadedModel(runnable, provenance)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("longest", [4, 512, 10**30])
def test_texts_are_read_as_transformers_reads_them(side: str, longest: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    assets = tokenizer_of(tmp_path, padding_side=side, model_max_length=longest, **special)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    reader = TextReader("reviews", assets)
    for texts, pairs in ((TEXTS, None), (TEXTS, TEXTS[::-1]), (TEXTS[:1], None)):
        names = ["input_ids", "attention_mask", "token_type_ids"]
        wanted = theirs(
            texts, pairs, padding=True, truncation=longest < 10**6, return_tensors="np", return_token_type_ids=True
        )
        found = reader.read(texts, pairs)
        for name in names:
            numpy.testing.assert_array_equal(found[name], wanted[name], name)
            assert found[name].dtype == numpy.int64


def test_a_model_gets_the_arguments_that_forward_has(tmp_path: Path) -> None:
    model = loaded(tokenizer_of(tmp_path, pad_token={"content": "[PAD]"}))
    found = model.preprocess(["a good film", "bad"])
    assert list(found) == ["input_ids", "attention_mask"]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert model.preprocess("bad")["input_ids"].tolist() == [[2, 5, 3]]
    assert model.preprocess("bad", pair="film")["input_ids"].tolist() == [[2, 5, 3, 6, 3]]


def test_an_encoder_of_sentences_has_a_limit_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 4, "do_lower_case": True}))
    reader = TextReader("words", tokenizer_of(tmp_path, pad_token="[PAD]", model_max_length=512))
    assert reader.read(["This WAS a film"], None)["input_ids"].tolist() == [[2, 9, 8, 3]]
    assert reader.read(["BAD"], ["Film"])["input_ids"].tolist() == [[2, 3, 6, 3]]


def test_an_encoder_of_sentences_begins_with_its_default_prompt(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "a ", "document": "this "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    reader = TextReader("words", tokenizer_of(tmp_path, pad_token="[PAD]"))
    assert reader.read(["film", "bad film"], None)["input_ids"].tolist() == [[2, 4, 6, 3, 0], [2, 4, 5, 6, 3]]


def test_a_model_of_tensors_gets_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    found = loaded(tokenizer_of(tmp_path), "torch").preprocess("bad")
    assert torch.equal(found["input_ids"], torch.tensor([[2, 5, 3]]))
    array = numpy.ones(2)
    assert in_library(array, SimpleNamespace(name="numpy")) is array  # type: ignore[arg-type]


def test_texts_of_different_lengths_need_a_token_for_padding(tmp_path: Path) -> None:
    model = loaded(tokenizer_of(tmp_path))
    assert model.preprocess(["bad", "film"])["input_ids"].shape == (2, 3)
    with pytest.raises(InputError, match="need a token for padding") as error:
        model.preprocess(TEXTS)
    assert error.value.found == "no `pad_token` in `tokenizer_config.json`, and no `pad_token_id` in `config.json`"


@pytest.mark.parametrize(
    "files",
    [
        {"special_tokens_map.json": {"pad_token": "[PAD]"}},
        {"special_tokens_map.json": {"pad_token": {"content": "[PAD]"}}},
        {"config.json": {"pad_token_id": 1}, "special_tokens_map.json": {"pad_token": "[PAD]"}},
        {"config.json": {"pad_token_id": 0}},
    ],
)
def test_a_token_for_padding_is_found_in_files_of_older_checkpoints(files: Any, tmp_path: Path) -> None:
    tokenizer_of(tmp_path)
    for name, contents in files.items():
        (tmp_path / name).write_text(json.dumps(contents))
    reader = TextReader("reviews", {path.name: path for path in tmp_path.iterdir()})
    assert reader.read(["a film", "bad"], None)["input_ids"].tolist() == [[2, 4, 6, 3], [2, 5, 3, 0]]


def test_the_limit_and_the_padding_in_a_tokenizer_s_own_file_are_left_out(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assets = tokenizer_of(tmp_path, pad_token="[PAD]")
    found = json.loads(assets["tokenizer.json"].read_text())
    found["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    found["padding"] = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 1}
    found["padding"] |= {"pad_type_id": 0, "pad_token": "[UNK]"}
    assets["tokenizer.json"].write_text(json.dumps(found))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    wanted = theirs(TEXTS, padding=True, truncation=True, return_tensors="np")["input_ids"]
    numpy.testing.assert_array_equal(TextReader("reviews", assets).read(TEXTS, None)["input_ids"], wanted)


@pytest.mark.parametrize("kind", ["WordLevel", "BPE"])
def test_texts_of_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["film", "was", ".", "'", "s", "!", "n't"])}
    models = tokenizers.models
    made = tokenizers.Tokenizer(models.BPE(words, []) if kind == "BPE" else models.WordLevel(words))
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=True).save_pretrained(
        tmp_path
    )
    tokens = [0, 3, 4, 1, 6, 2, 5]
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    found = TextReader("reviews", {path.name: path for path in tmp_path.iterdir()}).text(tokens)
    assert found == theirs.decode(tokens)
    assert ("film's" in found) == (kind == "WordLevel")


@pytest.mark.parametrize("splits", [True, False])
def test_special_tokens_in_a_text_are_read_as_transformers_reads_them(splits: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer_of(tmp_path, pad_token="[PAD]", sep_token="[SEP]", split_special_tokens=splits)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    reader = TextReader("reviews", {path.name: path for path in tmp_path.iterdir()})
    found = reader.read(["a[SEP]film"], None)["input_ids"]
    numpy.testing.assert_array_equal(found, theirs(["a[SEP]film"], return_tensors="np")["input_ids"])
    assert (found[0].tolist() == [2, 4, 3, 6, 3]) == (not splits)


@pytest.mark.parametrize("token", ["[PAD]", {"__type": "AddedToken", "content": "[PAD]", "lstrip": True}])
def test_a_token_that_the_configuration_alone_calls_special_is_special(token: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assets = tokenizer_of(tmp_path, pad_token=token, additional_special_tokens=["film", "unknown"])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    reader = TextReader("reviews", assets)
    texts = ["a[PAD]bad", "a goodfilm [PAD]"]
    wanted = theirs(texts, padding=True, return_tensors="np")["input_ids"]
    numpy.testing.assert_array_equal(reader.read(texts, None)["input_ids"], wanted)
    assert reader.text([0, 4, 6, 7]) == theirs.decode([0, 4, 6, 7], skip_special_tokens=True) == "a good"


def test_a_text_that_the_tokenizer_cannot_read_is_refused(tmp_path: Path) -> None:
    assets = tokenizer_of(tmp_path, pad_token="[PAD]")
    found = json.loads(assets["tokenizer.json"].read_text())
    del found["model"]["vocab"]["[UNK]"]
    assets["tokenizer.json"].write_text(json.dumps(found))
    reader = TextReader("reviews", assets)
    assert reader.read(["a film"], None)["input_ids"].tolist() == [[2, 4, 6, 3]]
    with pytest.raises(InputError, match="the tokenizer cannot read a text") as error:
        reader.read(["a tree"], None)
    assert "[UNK]" in error.value.found


@pytest.mark.parametrize("value", [3, [], ["a", 3], None, {"a": "b"}, b"text"])
def test_other_values_than_texts_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="`text` must be a text, or a list of texts"):
        checked_texts(value, "text")


def test_half_a_letter_is_refused() -> None:
    with pytest.raises(InputError, match="`pair` must be text that UTF-8 can encode") as error:
        checked_texts(["ä", "a\ud800"], "pair")
    assert error.value.found == r"'a\ud800'"


def test_each_text_has_a_second_text_or_none_has(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="each text needs one second text") as error:
        loaded(tokenizer_of(tmp_path)).preprocess(["a", "bad"], pair="film")
    assert error.value.found == "2 texts, 1 of `pair`"


def test_labels_are_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"id2label": {str(number): f"label {number}" for number in reversed(range(12))}}))
    assert read_labels("reviews", {"config.json": path})[:3] == ("label 0", "label 1", "label 2")
    assert loaded({"config.json": path}).labels[11] == "label 11"


@pytest.mark.parametrize("config", [{}, {"id2label": ["a"]}, {"id2label": {"1": "a"}}, {"id2label": {"a": "b"}}])
def test_a_configuration_without_labels_is_refused(config: object, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ProgramError, match="model `reviews` has no labels"):
        read_labels("reviews", {"config.json": path})


@pytest.mark.parametrize(("name", "contents"), [("tokenizer.json", "{"), ("tokenizer_config.json", "[]")])
def test_damaged_files_are_named(name: str, contents: str, tmp_path: Path) -> None:
    assets = tokenizer_of(tmp_path)
    assets[name].write_text(contents)
    with pytest.raises(ProgramError) as error:
        TextReader("reviews", assets)
    assert error.value.where == str(assets[name])


def test_a_model_without_a_tokenizer_names_its_assets(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(ProgramError, match=r"model `reviews` has no file `tokenizer\.json`") as error:
        TextReader("reviews", {"labels.txt": tmp_path})
    assert error.value.found == "`labels.txt`"


def test_the_library_of_tokenizers_is_named_if_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ProgramError, match="texts need the library of tokenizers") as error:
        TextReader("reviews", {})
    assert error.value.hint == "install it: pip install tokenizers"
