"""Checkpoints of transformers whose code asks for sizes: an export computes eager's numbers for all of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from hatch_lower.events import NullReporter
from hatch_lower.exir.lowering.convert import decompose
from hatch_lower.huggingface import model
from hatch_lower.pipeline.capture import CapturedMethod, capture_model

pytestmark = pytest.mark.torch

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SOUND = {"conv_dim": (16, 16), "conv_kernel": (80, 8), "conv_stride": (40, 4), "num_feat_extract_layers": 2, **SMALL}
SOUND |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "vocab_size": 32}
XLNET = {"vocab_size": 99, "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64}
FUNNEL = {"vocab_size": 99, "block_sizes": [1, 1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64}
TEXTS: Mapping[str, tuple[dict[str, Any], int]] = {  # configuration, and the smallest length
    "MobileBert": ({"vocab_size": 99, "embedding_size": 32, "intra_bottleneck_size": 32, **SMALL}, 1),
    "XLNet": (XLNET, 2),
    "Funnel": (FUNNEL, 5),
}
SOUNDS: Mapping[str, dict[str, Any]] = {"WavLM": SOUND, "SEW": {"squeeze_factor": 2, **SOUND}}


def captured(name: str, config: Mapping[str, Any]) -> tuple[Any, CapturedMethod]:
    """Return a model with large random weights, and its method as exported."""
    pytest.importorskip("transformers.exporters")
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    module = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.2)
    (method,) = capture_model("net", model(module), NullReporter()).methods
    return module, method


def skip_refused(name: str) -> None:
    """Skip a model whose build fails with this torch, at the export or at the comparison with eager."""
    minor = tuple(map(int, torch.__version__.split(".")[:2]))
    if name == "XLNet" and minor not in ((2, 12), (2, 13)):
        pytest.skip("this torch refuses each range of the lengths of XLNet")
    if name in ("Funnel", "SEW") and minor < (2, 13):
        pytest.skip(f"torch 2.12 takes the lengths of {name} for odd numbers")


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_all_lengths_have_eager_s_numbers(name: str) -> None:
    skip_refused(name)
    config, smallest = TEXTS[name]
    module, method = captured(f"{name}ForSequenceClassification", config)
    ranges = {method.dimensions[str(symbol)]: each for symbol, each in method.program.range_constraints.items()}
    assert {each: ranges[each].lower for each in ranges} == {"batch": 1, "sequence": smallest}
    program = decompose(method.program, ()).module(check_guards=False)  # torch's own checks are in no wheel
    for rows, length in ((1, smallest), (1, 6), (1, 7), (3, 19)):
        given = {each: torch.zeros(rows, length).long() for each in method.kwargs}
        given["input_ids"] = torch.randint(1, 99, (rows, length))
        given["attention_mask"][:, : length - length // 4] = 1
        with torch.no_grad():
            torch.testing.assert_close(program(**given).logits, module(**given).logits, rtol=1e-4, atol=1e-4)


BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 99, "max_position_embeddings": 64}
BART |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def test_a_head_behind_a_decoder_reads_the_encoder_s_tokens() -> None:
    module, method = captured("BartForQuestionAnswering", BART)
    assert list(method.kwargs) == ["input_ids", "attention_mask"]
    assert method.narrowed == ("`sequence` has the range 3 to 64: torch.export refuses a range from 1 on",)
    program = decompose(method.program, ()).module(check_guards=False)
    for rows, length in ((1, 3), (3, 19)):
        given = {"input_ids": torch.randint(3, 99, (rows, length)), "attention_mask": torch.ones(rows, length).long()}
        with torch.no_grad():
            wanted = module(**given).start_logits
            torch.testing.assert_close(program(**given).start_logits, wanted, rtol=1e-4, atol=1e-4)


def test_texts_to_choose_from_have_eager_s_numbers() -> None:
    module, method = captured("BertForMultipleChoice", {"vocab_size": 99, **SMALL})
    assert set(method.dimensions.values()) == {"batch", "choices", "sequence"}
    program = decompose(method.program, ()).module(check_guards=False)
    for shape in ((1, 1, 7), (3, 4, 19)):
        given = {name: torch.zeros(shape).long() for name in method.kwargs}
        given["input_ids"], given["attention_mask"][..., :5] = torch.randint(1, 99, shape), 1
        with torch.no_grad():
            wanted = module(**given).logits
            torch.testing.assert_close(program(**given).logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds_of_all_lengths_have_eager_s_numbers(name: str) -> None:
    skip_refused(name)
    module, method = captured(f"{name}ForCTC", SOUNDS[name])
    program = decompose(method.program, ()).module(check_guards=False)  # torch's own checks are in no wheel
    numbers = set()
    for rows, length in ((1, 4000), (1, 4160), (1, 6000), (3, 23_456)):
        sound = torch.randn(rows, length)
        with torch.no_grad():
            wanted = module(input_values=sound).logits
            torch.testing.assert_close(program(input_values=sound).logits, wanted, rtol=1e-4, atol=1e-4)
        numbers.add(wanted.shape[1] % 2)
    assert numbers == {0, 1}, "SEW halves the number of frames"


def test_stacked_frames_of_all_lengths_have_eager_s_numbers() -> None:
    config = {"vocab_size": 32, "feature_projection_input_dim": 16, **SMALL}
    module, method = captured("Wav2Vec2BertForCTC", config)
    assert set(method.dimensions.values()) == {"batch", "frames"}
    program = decompose(method.program, ()).module(check_guards=False)
    for rows, frames in ((1, 16), (3, 301)):
        given = torch.randn(rows, frames, 16)
        with torch.no_grad():
            wanted = module(input_features=given).logits
            torch.testing.assert_close(program(input_features=given).logits, wanted, rtol=1e-4, atol=1e-4)


VILT = {"image_size": 32, "patch_size": 8, "max_position_embeddings": 32, "num_labels": 3, "vocab_size": 99, **SMALL}


def test_an_image_and_a_text_have_eager_s_numbers() -> None:
    module, method = captured("ViltForQuestionAnswering", VILT)
    program = decompose(method.program, ()).module(check_guards=False)
    for rows, length in ((1, 7), (3, 19)):
        given = {name: torch.zeros(rows, length).long() for name in method.kwargs if name != "pixel_values"}
        given["attention_mask"][:, : length - 2] = 1
        given["pixel_values"] = torch.randn(rows, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(program(**given).logits, module(**given).logits, rtol=1e-4, atol=1e-4)


def test_images_stay_as_they_are_where_a_model_draws_patches_of_a_mask_or_a_part() -> None:
    transformers = pytest.importorskip("transformers")
    from hatch_lower.huggingface.whole_images import with_embeddings

    whole, part = (transformers.ViltModel(transformers.ViltConfig(max_image_length=n, **VILT)) for n in (16, 15))
    pixels = torch.zeros(1, 3, 32, 32)
    changed = with_embeddings(whole, (), {"pixel_values": pixels})
    assert changed is not None
    assert (changed[1]["pixel_values"], changed[1]["image_embeds"].shape) == (None, (1, 17, 32))
    assert with_embeddings(part, (), {"pixel_values": pixels}) is None
    assert with_embeddings(whole, (), {"pixel_values": pixels, "pixel_mask": torch.ones(1, 32, 32)}) is None
    assert with_embeddings(whole, (), {"pixel_values": torch.zeros(1, 3, 16, 64)}) is None


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("truncated", [True, False])
def test_computed_positions_of_funnel_are_its_own(separate: bool, truncated: bool) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("transformers.exporters")
    from transformers.models.funnel.modeling_funnel import FunnelAttentionStructure

    from hatch_lower.huggingface.pooled_positions import position_embeddings

    config = transformers.FunnelConfig(**FUNNEL, separate_cls=separate, truncate_seq=truncated)
    part = FunnelAttentionStructure(config).eval()
    given = torch.float32, torch.device("cpu")
    for count in (5, 7, 8, 30):
        wanted, found = part.get_position_embeds(count, *given), position_embeddings(part, count, *given)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
