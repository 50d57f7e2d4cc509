"""Language models of transformers for generation: the tokens are those of transformers' own `generate`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.generators import loaded

from hatch_lower.config.checkpoint import CheckpointFolder
from hatch_lower.errors import EntryPointError, InputError, ProgramError
from hatch_lower.events import NullReporter
from hatch_lower.huggingface import as_pretrained, generator
from hatch_lower.huggingface.checkpoint import checkpoint_model
from hatch_lower.pipeline.capture import capture_model
from hatch_lower.runtime.eager import make_eager
from hatch_lower.runtime.loaded import LoadedModel

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LLAMA = {"vocab_size": 99, "num_key_value_heads": 2, **WIDTH}
SEQ2SEQ = {"vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 64}
SEQ2SEQ |= {"decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
SEQ2SEQ |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
CAUSAL: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grouped queries": ("Llama", LLAMA),
    "learned positions": ("GPT2", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "sliding layers": ("Mistral", {"sliding_window": 4, **LLAMA}),
    "layers of both kinds": ("Gemma2", {"sliding_window": 4, "head_dim": 8, **LLAMA}),
    "experts": ("Mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1, **LLAMA}),
}
ENCODERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "relative positions": (
        "T5",
        {"vocab_size": 99, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8},
    ),
    "absolute positions": ("Bart", {"forced_eos_token_id": None, **SEQ2SEQ}),
    "sound of any length": (
        "Moonshine",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "sound": ("Whisper", {"max_source_positions": 20, "num_mel_bins": 8, "suppress_tokens": None, **SEQ2SEQ}),
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("transformers.exporters")
    return pytest.importorskip("transformers")


def language_model(transformers: Any, kind: str, config: Mapping[str, Any]) -> Any:
    """Return a model with large random weights, whose tokens differ from step to step."""
    torch.manual_seed(0)
    found = getattr(transformers, f"{kind}Config")
    is_beside = not config.keys().isdisjoint({"d_model", "encoder_num_hidden_layers"})
    head = {"GPT2": "LMHeadModel"}.get(kind, "ForConditionalGeneration" if is_beside else "ForCausalLM")
    module = getattr(transformers, kind + head)(found(**config)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    return module


def encoder_inputs(module: Any) -> dict[str, torch.Tensor]:
    """Return four rows of an encoder's inputs."""
    sounds = {"input_features": (4, 8, 40), "input_values": (4, 9000)}
    main = module.main_input_name
    return {main: torch.randn(sounds[main])} if main in sounds else {k: each.flip(1) for k, each in prompts().items()}


def prompts() -> dict[str, torch.Tensor]:
    """Return four prompts of different lengths, padded on the left."""
    ids, mask = torch.randint(3, 99, (4, 9)), torch.ones(4, 9, dtype=torch.int64)
    for row in range(4):
        ids[row, :row], mask[row, :row] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


OPTIONS = {"max_new_tokens": 24, "eos_token_id": 2, "pad_token_id": 0}


@pytest.mark.parametrize("kind", CAUSAL)
def test_tokens_are_those_of_transformers(kind: str, transformers: Any) -> None:
    module = language_model(transformers, *CAUSAL[kind])
    given = prompts()
    wanted = module.generate(**given, **OPTIONS, do_sample=False)
    assert len(set(wanted[0, 9:].tolist())) > 1, "the model repeats a token"
    model = loaded(generator(module))
    assert torch.equal(model.generate(**given, **OPTIONS), wanted)
    (alone,) = model.generate(given["input_ids"][2:3, 2:], **OPTIONS)
    assert wanted[2, 2:].tolist()[: len(alone)] == alone.tolist()


ROPE = {"rope_theta": 10000.0, "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Phi3", {"rope_parameters": {"rope_type": "longrope", **ROPE}, "original_max_position_embeddings": 12}),
        ("Mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 13, "vocab_size": 99}),
        ("Llama4", {"head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 2, "attention_chunk_size": 12}),
    ],
)
def test_a_sequence_ends_where_earlier_keys_would_have_to_change(
    kind: str, config: Mapping[str, Any], transformers: Any
) -> None:
    made = getattr(transformers, f"{kind}ForCausalLM")
    module = made(made.config_class(**({} if kind == "Mpt" else {"pad_token_id": 0, **LLAMA}), **config)).eval()
    given, model = prompts(), loaded(generator(module))
    options = {"eos_token_id": [], "pad_token_id": 0}
    wanted = module.generate(**given, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(model.generate(**given, max_new_tokens=4, **options), wanted)
    with pytest.raises(InputError, match="the sequence is longer than") as error:
        model.generate(**given, max_new_tokens=5, **options)
    assert "the model has 12 positions" in error.value.hint


def test_dynamic_rotary_positions_are_exported(transformers: Any) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    module = language_model(transformers, "Llama", {"rope_parameters": rope, "max_position_embeddings": 16, **LLAMA})
    decode = capture_model("net", generator(module), NullReporter()).methods[1]
    assert module.model.rotary_emb.rope_type == "dynamic"
    with torch.no_grad():
        found, _ = decode.program.module()(**decode.kwargs)
        wanted, _ = generator(module).module.decode(**decode.kwargs)
    torch.testing.assert_close(found, wanted)


def test_experts_are_exported_with_operators_of_torch(transformers: Any) -> None:
    module = language_model(transformers, *CAUSAL["experts"])
    before = module.get_experts_implementation()
    model = generator(module)
    captured = capture_model("net", model, NullReporter())
    operators = {str(node.target) for each in captured.methods for node in each.program.graph.nodes}
    assert not [name for name in operators if name.startswith("transformers")]
    assert module.get_experts_implementation() == before


@pytest.mark.parametrize("kind", ENCODERS)
def test_tokens_after_an_encoder_are_those_of_transformers(kind: str, transformers: Any) -> None:
    module = language_model(transformers, *ENCODERS[kind])
    given = encoder_inputs(module)
    first = torch.ones(4, 1, dtype=torch.int64)
    wanted = transformers.GenerationMixin.generate(
        module, **given, **OPTIONS, decoder_start_token_id=1, do_sample=False
    )
    model = loaded(generator(module))
    assert torch.equal(model.generate(**given, decoder_input_ids=first, **OPTIONS), wanted)


@pytest.mark.parametrize("packaged", [1, [1, 5, 6, 7]])
def test_the_first_tokens_of_a_decoder_begin_with_the_start_token(
    packaged: Any, transformers: Any, tmp_path: Path
) -> None:
    module = language_model(transformers, *ENCODERS["absolute positions"])
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"decoder_start_token_id": packaged}))
    given, model = encoder_inputs(module), loaded(generator(module), {path.name: path})
    rows = ([[8, 9]] * 4, [[1, 9]] * 4, [[1, 9], [8, 9], [8, 4], [8, 7]], [[8], [5], [8], [8]])
    for first in (None, *rows):
        more = {} if first is None else {"decoder_input_ids": torch.tensor(first)}
        wanted = module.generate(**given, **more, **OPTIONS, decoder_start_token_id=packaged, do_sample=False)
        assert torch.equal(model.generate(**given, **more, **OPTIONS), wanted)
    if packaged != 1:
        with pytest.raises(InputError, match="model `net` has a first token for each row") as error:
            model.generate(**{name: each[:3] for name, each in given.items()}, **OPTIONS)
        assert error.value.found == "4 tokens `decoder_start_token_id`, and 3 rows"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoder_sees_no_padding(attention: str, transformers: Any) -> None:
    module = language_model(transformers, *ENCODERS["absolute positions"])
    module.set_attn_implementation(attention)  # the second adds a mask to its scores
    given = {name: each.flip(1) for name, each in prompts().items()}
    first, mask = torch.ones(4, 1, dtype=torch.int64), given["attention_mask"][:, None, None].bool()
    made: Any = generator(module).module
    with torch.no_grad():
        wanted = module(**given, decoder_input_ids=first).logits
        started = made.start(input_ids=given["input_ids"], attention_mask=mask)
        options = {"position_ids": first - 1, "cross": started["cross"], "encoder_mask": mask}
        sees = torch.tensor([False, True]).expand(4, 1, 1, 2)
        logits, _ = made.decode(first, sees, torch.eye(1), started["cache"], **options)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


def test_a_decoder_after_an_encoder_takes_no_padding(transformers: Any) -> None:
    model = loaded(generator(language_model(transformers, *ENCODERS["absolute positions"])))
    first = {"decoder_input_ids": torch.ones(4, 2, dtype=torch.int64)}
    first["decoder_attention_mask"] = torch.tensor([[0, 1]] * 4)
    with pytest.raises(InputError, match="the first tokens of a decoder have no padding"):
        model.generate(**prompts(), **first, **OPTIONS)


def test_an_encoder_takes_its_own_inputs_only(transformers: Any, tmp_path: Path) -> None:
    module = language_model(transformers, *ENCODERS["absolute positions"])
    module.save_pretrained(tmp_path)
    model = loaded(generator(module), {"config.json": tmp_path / "config.json"})
    given = {"decoder_input_ids": torch.ones(4, 1, dtype=torch.int64), **prompts(), **OPTIONS}
    spare = {"special_tokens_mask": torch.zeros(4, 9)}
    assert torch.equal(model.generate(**given, **spare), model.generate(**given))
    with pytest.raises(InputError, match="has no argument `language`") as error:
        model.generate(**given, language="en")
    assert "give `attention_mask`, `input_ids` and the settings" in error.value.hint


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 24}])
def test_scores_are_changed_as_transformers_changes_them(options: Mapping[str, Any], transformers: Any) -> None:
    module = language_model(transformers, "Llama", LLAMA)
    given, model = prompts(), loaded(generator(module))
    ends = {**OPTIONS, "eos_token_id": list(range(2, 60)) if "min_new_tokens" in options else 2}
    wanted = module.generate(**given, **ends, **options, do_sample=False)
    assert torch.equal(model.generate(**given, **ends, **options), wanted)
    assert not torch.equal(model.generate(**given, **ends), wanted)


def test_a_sound_before_a_text_has_any_length(transformers: Any) -> None:
    module = language_model(transformers, *ENCODERS["sound of any length"])
    start, decode = capture_model("net", generator(module), NullReporter()).methods
    assert set(start.dimensions.values()) == {"batch", "samples"}
    assert "frames" in decode.dimensions.values()


def test_a_form_of_the_cache_that_is_right_for_some_tokens_alone_is_not_taken(transformers: Any) -> None:
    from hatch_lower.huggingface.generation import LARGEST_ERROR, CacheForm, Generator
    from hatch_lower.huggingface.trial import largest_error

    torch.manual_seed(39)  # a model whose logits of the first trial hardly depend on positions
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()
    for parameter in model.parameters():
        parameter.data *= 6 if parameter.ndim > 1 else 1
    assert largest_error(Generator(model, CacheForm(False, unseen=1)), 1) < LARGEST_ERROR
    assert generator(model).module.form == CacheForm(False, unseen=0)


def test_of_several_forms_of_the_cache_the_one_with_the_smallest_error_is_taken(
    transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatch_lower.huggingface import generation

    errors = iter((5e-5, 2e-5, 9e-5, 3e-5, 8e-5))
    monkeypatch.setattr(generation, "largest_error", lambda *_: next(errors))
    assert generator(language_model(transformers, "Llama", LLAMA)).module.form == generation.FORMS[1]


def test_the_methods_are_exported_for_all_sizes(transformers: Any) -> None:
    model = generator(language_model(transformers, *CAUSAL["layers of both kinds"]))
    start, decode = capture_model("net", model, NullReporter()).methods
    assert set(start.dimensions.values()) == {"batch", "source"}
    assert {"batch", "tokens", "past", "kept"} <= set(decode.dimensions.values())


@pytest.mark.parametrize(
    ("kind", "is_apart"), [(kind, True) for kind in CAUSAL] + [(kind, kind[0] != "r") for kind in ENCODERS]
)
def test_attention_leaves_the_cache_where_it_is(kind: str, is_apart: bool, transformers: Any) -> None:
    model = generator(language_model(transformers, *{**CAUSAL, **ENCODERS}[kind]))
    decode: Any = model.module.decode
    with torch.no_grad():
        _, layers = decode(**model.methods["decode"].kwargs)
    tokens, past = (model.methods["decode"].kwargs[name] for name in ("input_ids", "cache"))
    joined = 0 if is_apart else past[0][0].shape[2]
    assert {each.shape[2] for layer in layers for each in layer} == {joined + tokens.shape[1]}


def test_a_checkpoint_of_a_language_model_generates(transformers: Any, tmp_path: Path) -> None:
    language_model(transformers, "Llama", LLAMA).save_pretrained(tmp_path)
    assert set(checkpoint_model(CheckpointFolder(str(tmp_path), ""), Path(), "here").methods) == {"start", "decode"}


def test_models_without_a_cache_of_keys_are_refused(transformers: Any) -> None:
    config = transformers.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(EntryPointError, match="generation is not possible with `MambaForCausalLM`") as error:
        generator(transformers.MambaForCausalLM(config).eval())
    assert "return `hatch_lower.huggingface.model(module, inputs={…}" in error.value.hint
    with pytest.raises(EntryPointError, match=r"`hatch_lower\.huggingface\.generator` takes a model of transformers"):
        generator(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["grouped queries", "absolute positions"])
def test_a_language_model_generates_in_an_editable_install(kind: str, transformers: Any, tmp_path: Path) -> None:
    module = language_model(transformers, *{**CAUSAL, **ENCODERS}[kind])
    module.save_pretrained(tmp_path)
    runnable = make_eager("net", f"transformers:{tmp_path}")
    assert set(inspect.signature(runnable.methods["decode"]).parameters) == set(
        generator(module).methods["decode"].kwargs
    )
    provenance: Any = SimpleNamespace(name="net", assets={}, arrays="torch")
    model = LoadedModel(runnable, provenance)
    given = prompts() if kind in CAUSAL else {name: each.flip(1) for name, each in prompts().items()}
    first = {} if kind in CAUSAL else {"decoder_input_ids": torch.ones(4, 1, dtype=torch.int64)}
    wanted = module.generate(**given, **OPTIONS, decoder_start_token_id=1, do_sample=False)
    for each in (model, model.clone()):
        assert torch.equal(each.generate(**given, **first, **OPTIONS), wanted)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.generate(**given, **first, **OPTIONS), range(4)):
            assert torch.equal(found, wanted)


# A packaged model as a model of transformers


def pretrained(module: Any, folder: Path) -> Any:
    module.save_pretrained(folder)
    assets = {path.name: path for path in folder.glob("*.json")}
    return as_pretrained(loaded(generator(module), assets))


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_beams": 2, "num_return_sequences": 2},
        {"prompt_lookup_num_tokens": 3},
        {"use_cache": False},
        {"logits": True},
    ],
)
def test_searches_of_transformers_run_on_a_packaged_model(
    options: Mapping[str, Any], transformers: Any, tmp_path: Path
) -> None:
    module = language_model(transformers, *CAUSAL["layers of both kinds"])
    model = pretrained(module, tmp_path)
    given = prompts()
    if "prompt_lookup_num_tokens" in options:
        given = {name: each[:1] for name, each in given.items()}
    if "logits" in options:
        with torch.no_grad():
            torch.testing.assert_close(
                model(**given).logits[:, -1], module(**given).logits[:, -1], rtol=1e-4, atol=1e-4
            )
        return
    wanted = module.generate(**given, **OPTIONS, **options, do_sample=False)
    assert torch.equal(model.generate(**given, **OPTIONS, **options, do_sample=False), wanted)


def test_a_cache_of_a_fixed_size_is_refused(transformers: Any, tmp_path: Path) -> None:
    module = language_model(transformers, "Llama", LLAMA)
    module.generation_config.cache_implementation = "static"
    model, given = pretrained(module, tmp_path), prompts()  # the packaged configuration asks for another cache
    wanted = module.generate(**given, **OPTIONS, do_sample=False, cache_implementation="dynamic")
    assert torch.equal(model.generate(**given, **OPTIONS, do_sample=False), wanted)
    with pytest.raises(InputError, match="need a cache that grows") as error:
        model.generate(**given, **OPTIONS, cache_implementation="static")
    assert error.value.found == "layers of type `StaticLayer`"


@pytest.mark.parametrize("kind", ENCODERS)
def test_beams_after_an_encoder(kind: str, transformers: Any, tmp_path: Path) -> None:
    module = language_model(transformers, *ENCODERS[kind])
    given = encoder_inputs(module)
    options = {**OPTIONS, "num_beams": 3, "do_sample": False, "decoder_start_token_id": 1}
    wanted = transformers.GenerationMixin.generate(module, **given, **options)
    assert torch.equal(pretrained(module, tmp_path).generate(**given, **options), wanted)


def test_a_model_without_a_configuration_is_no_model_of_transformers(transformers: Any) -> None:
    model = loaded(generator(language_model(transformers, "Llama", LLAMA)))
    with pytest.raises(ProgramError, match="cannot become a model of transformers"):
        as_pretrained(model)
