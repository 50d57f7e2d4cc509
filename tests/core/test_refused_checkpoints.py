"""Checkpoints of transformers that a build refuses: the error names the reason, and the entry point to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from hatch_lower.errors import CaptureError, EntryPointError
from hatch_lower.events import NullReporter
from hatch_lower.huggingface import generator, model
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import capture_model

pytestmark = pytest.mark.torch

ENTRY_POINT = "in an entry point, return `hatch_lower.huggingface.model(module, inputs={…}, dynamic_shapes={…})`"
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 99, "pad_token_id": 0, **SMALL}
SERIES = {"prediction_length": 4, "context_length": 8, "d_model": 16, "lags_sequence": [1, 2]}
SPEECH = {"vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 16}
SPEECH |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "input_feat_per_channel": 16}
HEARD = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 16}
AUDIO = {"patch_embeds_hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2], "hidden_size": 32}
AUDIO |= {"spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "projection_dim": 16}


def made(name: str, config: Mapping[str, Any]) -> Any:
    pytest.importorskip("transformers.exporters")
    kind = getattr(pytest.importorskip("transformers"), name)
    torch.manual_seed(0)
    return kind(kind.config_class(**config)).eval()


def test_a_model_that_does_not_take_the_made_inputs_is_refused_with_an_entry_point() -> None:
    videos = made("VideoMAEForVideoClassification", {"image_size": 16, "patch_size": 8, "num_frames": 4, **SMALL})
    with pytest.raises(CaptureError, match="method `forward` does not run with its example inputs") as error:
        capture_model("net", model(videos), NullReporter())
    assert "transformers/models/videomae/modeling_videomae.py:" in error.value.where
    assert error.value.found.startswith("ValueError: not enough values to unpack")
    assert error.value.hint == (
        "give `VideoMAEForVideoClassification` inputs and dynamic sizes of your own: " + ENTRY_POINT + ", without"
        " `dynamic_shapes` for fixed sizes; the parameters are `pixel_values`, `labels`, `kwargs`"
    )


def test_a_model_with_other_inputs_is_refused_with_an_entry_point() -> None:
    with pytest.raises(EntryPointError, match="the example inputs of the model are not known") as error:
        model(made("TimeSeriesTransformerForPrediction", SERIES))
    assert error.value.found == "its main input is `past_values`"
    assert ENTRY_POINT in error.value.hint


def test_a_size_that_the_code_fixes_is_refused_with_the_model_s_advice() -> None:
    class Pairs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 3)

    method = Method(args=(torch.ones(2, 3),), dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}})
    with pytest.raises(CaptureError, match="the dynamic shapes of method `forward` do not hold") as error:
        capture_model("net", Model(Pairs(), {"forward": method}, advice="write an entry point"), NullReporter())
    assert error.value.hint == "write an entry point; the parameters are `x`"


def test_given_inputs_keep_the_hint_to_correct_them() -> None:
    bert = made("BertModel", TEXT)
    with pytest.raises(CaptureError, match="does not run with its example inputs") as error:
        capture_model("net", model(bert, inputs={"input_ids": torch.ones(2, 3)}), NullReporter())
    assert error.value.hint.startswith("correct `args` and `kwargs` of the `hatch_lower.Method`")


@pytest.mark.parametrize(
    ("name", "config", "where", "found"),
    [
        ("Speech2TextForConditionalGeneration", SPEECH, "its inputs", "a call with `input_features`, `decoder_input_i"),
        ("MambaForCausalLM", TEXT, "its cache", "a call with a cache of keys and values failed: IndexError"),
        (
            "MusicgenForCausalLM",
            {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32},
            "its `get_input_embeddings`",
            "not an embedding, but `ModuleList`",
        ),
        (
            "BarkSemanticModel",
            {"input_vocab_size": 99, "output_vocab_size": 99, "hidden_size": 32, "num_layers": 1, "num_heads": 2},
            "its `get_output_embeddings`",
            "no layer of logits",
        ),
        (
            "Qwen2AudioForConditionalGeneration",
            {"audio_config": HEARD, "text_config": {"model_type": "qwen2", "num_key_value_heads": 2, **TEXT}},
            "its prompts",
            "an encoder of sounds, `input_features`",
        ),
    ],
)
def test_a_model_without_generation_is_refused_with_the_reason(
    name: str, config: dict[str, Any], where: str, found: str
) -> None:
    with pytest.raises(EntryPointError, match=f"generation is not possible with `{name}`") as error:
        generator(made(name, config))
    assert error.value.where == where
    assert error.value.found.startswith(found)
    assert error.value.hint.startswith("export its method `forward`: " + ENTRY_POINT)


def test_clap_that_mixes_crops_of_long_sounds_is_refused_with_the_line() -> None:
    clap = made("ClapAudioModelWithProjection", {**AUDIO, "enable_fusion": True})
    with pytest.raises(CaptureError, match="cannot capture method `forward`") as error:
        capture_model("net", model(clap), NullReporter())
    assert "transformers/models/clap/modeling_clap.py:" in error.value.where
    assert "the line depends on the values in a tensor" in error.value.hint
    assert ENTRY_POINT in error.value.hint


def test_clap_takes_texts_and_sounds() -> None:
    config = {"text_config": {"projection_dim": 16, **TEXT}, "audio_config": AUDIO, "projection_dim": 16}
    clap = made("ClapModel", config)
    from hatch_lower.huggingface.examples import made_inputs  # needs transformers

    assert made_inputs(clap).keys() == {"input_ids", "attention_mask", "input_features"}


def test_sounds_of_clap_of_all_lengths_have_eager_s_numbers() -> None:
    clap = made("ClapAudioModelWithProjection", AUDIO)
    (method,) = capture_model("net", model(clap), NullReporter()).methods
    ranges = {method.dimensions[str(symbol)]: each for symbol, each in method.program.range_constraints.items()}
    assert (ranges["frames"].lower, ranges["frames"].upper) == (2, 255)
    program = method.program.module(check_guards=False)
    for rows, frames in ((1, 2), (3, 251)):
        given = torch.randn(rows, 1, frames, 16)
        with torch.no_grad():
            torch.testing.assert_close(
                program(input_features=given).audio_embeds, clap(given).audio_embeds, rtol=1e-4, atol=1e-4
            )
