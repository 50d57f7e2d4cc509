"""The whole output of a tokenizer or processor as arguments: what a method lacks is left out if it changes nothing."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from support.plans import (
    BATCH,
    call,
    delegate_entry,
    executor_of,
    method,
    parameter,
    plan_value,
    python,
    tensor_input,
    v,
)

from hatch_lower.errors import InputError
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.spare import FACTS, NEUTRAL, holds, spare_names

TYPES = {"model_type": "roberta", "type_vocab_size": 1}


def loaded(folder: Path, config: object, library: str = "numpy") -> LoadedModel:
    """Return a model that doubles `input_ids`, with a `config.json`."""
    ids = tensor_input("s0", 3, dtype="int64")
    body = [call(0, [v(0)], [ids], 1), python("getitem", v(1), 0, out=2)]
    parameters = [parameter("input_ids", kind="keyword")]
    forward = method([ids], body, v(2), parameters=parameters, symbols=BATCH)
    plan = plan_value(forward=forward, delegates=[delegate_entry("doubling")])
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    provenance: Any = SimpleNamespace(name="net", assets={path.name: path})
    return LoadedModel(executor_of(plan, arrays=library), provenance)


def tokens(**more: Any) -> UserDict[str, Any]:
    """Return a mapping as transformers' own, which is no dict."""
    ids = numpy.array([[5, 6, 7], [8, 9, 1]])
    return UserDict({"input_ids": ids, **{name: numpy.full_like(ids, value) for name, value in more.items()}})


def test_arguments_that_change_nothing_are_left_out(tmp_path: Path) -> None:
    model = loaded(tmp_path, TYPES)
    given = tokens(attention_mask=1, pixel_mask=1, token_type_ids=0, **dict.fromkeys(FACTS, 7))
    for each in (given, tokens(), {**given, "attention_mask": [[1, 1, 1], [1, 1, 1]]}):
        assert model(**each).tolist() == [[10, 12, 14], [16, 18, 2]]


@pytest.mark.parametrize(("name", "value"), [("attention_mask", 0), ("pixel_mask", 0), ("token_type_ids", 1)])
def test_arguments_that_change_the_result_are_refused_by_name(name: str, value: int, tmp_path: Path) -> None:
    given = tokens(**{name: 1 - value, "special_tokens_mask": 0})
    given[name][1, 2] = value
    with pytest.raises(InputError, match=f"model `net` does not take `{name}`") as error:
        loaded(tmp_path, TYPES)(**given)
    assert error.value.hint


def test_types_of_a_model_without_types_are_refused(tmp_path: Path) -> None:
    # GPT-2 adds the embeddings of the tokens with these numbers
    with pytest.raises(InputError) as error:
        loaded(tmp_path, {"model_type": "gpt2"})(**tokens(token_type_ids=0, attention_mask=1))
    assert error.value.found == "the unknown argument `token_type_ids`"


def test_other_unknown_arguments_are_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, TYPES)
    for given in (tokens(attention_mask=1, labels=1), tokens(labels=1)):
        with pytest.raises(InputError) as error:
            model(**given)
        assert error.value.found == "the unknown argument `labels`"


@pytest.mark.parametrize("config", [{}, {"model_type": 3}])
def test_a_model_of_another_library_takes_its_own_arguments_only(config: object, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        loaded(tmp_path, config)(**tokens(attention_mask=1))
    assert error.value.found == "the unknown argument `attention_mask`"
    assert spare_names("net", {}, [], {"attention_mask": [1]}) == frozenset()


@pytest.mark.torch
def test_arguments_may_be_tensors_and_lists_are_refused_with_their_conversion(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    given = {name: torch.from_numpy(each) for name, each in tokens(attention_mask=1, token_type_ids=0).items()}
    lists = {name: each.tolist() for name, each in given.items()}
    for library, tensors in (("numpy", "np"), ("torch", "pt")):
        model = loaded(tmp_path, TYPES, library)
        assert model(**given).tolist() == [[10, 12, 14], [16, 18, 2]]
        with pytest.raises(InputError, match="takes int64") as error:
            model(**lists)
        assert f'`return_tensors="{tensors}"`' in error.value.hint


def test_values_are_compared_in_arrays_and_lists() -> None:
    same: list[Any] = [numpy.ones(3), [[1, 1], [1]], 1, (), numpy.ones((2, 0))]
    others: list[Any] = [numpy.zeros(1), [[1, 0]], 2, None, "1", object(), {"a": 1}]
    assert [holds(value, 1) for value in same] == [True] * len(same)
    assert [holds(value, 1) for value in others] == [False] * len(others)


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SOUND = {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2}
SOUND |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, **SMALL}
CASES: Mapping[str, tuple[str, Mapping[str, Any], str, bool]] = {
    "types": ("Bert", {"vocab_size": 99, **SMALL}, "token_type_ids", True),
    "one type": ("Roberta", {"vocab_size": 99, "type_vocab_size": 1, **SMALL}, "token_type_ids", True),
    "no types": ("Deberta", {"vocab_size": 99, "type_vocab_size": 0, **SMALL}, "token_type_ids", True),
    "types are tokens": ("GPT2", {"vocab_size": 99, "n_embd": 32, "n_layer": 1, "n_head": 2}, "token_type_ids", False),
    "a mask of tokens": ("Bert", {"vocab_size": 99, **SMALL}, "attention_mask", True),
    "a mask of samples": ("Wav2Vec2", SOUND, "attention_mask", True),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_models_of_transformers_compute_the_same_without_them(case: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, config, name, is_same = CASES[case]
    torch.manual_seed(0)
    module = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config)).eval()
    module.config.save_pretrained(tmp_path)
    main = torch.randn(2, 400) if kind == "Wav2Vec2" else torch.randint(3, 99, (2, 7))
    argument = torch.full(main.shape, NEUTRAL[name])
    with torch.no_grad():
        without = module(main).last_hidden_state
        found = module(main, **{name: argument}).last_hidden_state
    assert torch.allclose(found, without, atol=1e-5) == is_same
    assets = {"config.json": tmp_path / "config.json"}
    assert spare_names("net", assets, [], {name: argument}) == ({name} if is_same else set())
