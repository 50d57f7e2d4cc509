"""Example inputs of a transformers model, and their dynamic dimensions, from its configuration and its modules."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from hatch_lower.errors import EntryPointError
from hatch_lower.frozen import Frozen
from hatch_lower.huggingface.end_tokens import reads_end_tokens
from hatch_lower.huggingface.pooled_positions import shortest_pooled_text
from hatch_lower.huggingface.refusals import OWN_INPUTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH, SEQUENCE = 2, 12  # sizes of examples: torch.export takes a size of 0 or 1 as fixed
LARGEST_BATCH = 1024
LONGEST = 4096  # tokens, for models without a limit of their own
SAMPLES, LONGEST_SAMPLES = 16_000, 480_000  # of sound: a second, and 30 seconds at 16 kHz
FRAMES, LONGEST_FRAMES = 128, 1500  # of a spectrogram without a fixed length
SEQUENCE_NAME, DECODER_NAME = LENGTHS = ("sequence", "decoder_sequence")  # names of dynamic lengths of texts
LETTERS = 128  # of ASCII, for models of letters (CANINE), which have no vocabulary
# endings of classes: of a decoder that reads the encoder's tokens, and of texts to choose from
HEADS, CHOICES = ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification"), "ForMultipleChoice"
MOST_CHOICES = 64
SPEAKERS = "ForXVector"  # ending of classes
LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len")  # members with a number of positions
POSITIONS = ("position_embeddings", "embed_positions", "position_embedding", "wpe")  # names of embeddings of positions


class ExampleInput(Frozen):
    value: torch.Tensor
    dimensions: Mapping[int, Any]  # dimension to its `torch.export.Dim`


def made_inputs(module: PreTrainedModel) -> dict[str, ExampleInput]:
    """Return example inputs of `forward` by name.

    Raises:
        EntryPointError: if the model's inputs are of no known kind.
    """
    names = inspect.signature(module.forward).parameters
    batch = Dim("batch", min=1, max=LARGEST_BATCH)
    found = {name: each for name, each in known_inputs(module, batch, names) if name in names}
    if module.main_input_name not in found:
        raise EntryPointError(
            "the example inputs of the model are not known",
            where=f"`{type(module).__name__}.forward`",
            found=f"its main input is `{module.main_input_name}`",
            hint=f"give them: {OWN_INPUTS}",
        )
    return found


def known_inputs(module: PreTrainedModel, batch: Any, names: Container[str]) -> Iterator[tuple[str, ExampleInput]]:
    """Yield inputs of the model's kind; `names` are the parameters of `forward`."""
    main, config = module.main_input_name, module.config
    # some models of image and text have a single configuration for both
    has_vision = "pixel_values" in names and (hasattr(config, "vision_config") or hasattr(config, "image_size"))
    if main == "pixel_values" or has_vision:
        yield "pixel_values", image_input(getattr(config, "vision_config", None) or config, batch)
    if main == "input_values" and hasattr(config, "max_length"):  # a spectrogram of a fixed length
        yield "input_values", ExampleInput(torch.randn(BATCH, config.max_length, config.num_mel_bins), {0: batch})
    elif main == "input_values":
        yield (
            "input_values",
            ExampleInput(
                torch.randn(BATCH, SAMPLES),
                {0: batch, 1: Dim("samples", min=fewest_samples(module), max=LONGEST_SAMPLES)},
            ),
        )
    if main == "input_features" or ("input_features" in names and hasattr(config, "audio_config")):
        sound = getattr(config, "audio_config", None) or config
        yield "input_features", spectrogram_input(sound, batch)
        if getattr(sound, "enable_fusion", False):  # of CLAP
            yield "is_longer", ExampleInput(torch.arange(BATCH)[:, None] > 0, {0: batch})
    if main == "input_ids":
        yield from text_inputs(module, batch)
    # a detector's decoder reads no tokens; with a head, the decoder reads the encoder's
    if "decoder_input_ids" in names and config.is_encoder_decoder and not type(module).__name__.endswith(HEADS):
        length = Dim(DECODER_NAME, min=1, max=longest_text(module))
        yield "decoder_input_ids", token_input(config, batch, length)


def text_inputs(module: PreTrainedModel, batch: Any) -> Iterator[tuple[str, ExampleInput]]:
    if type(module).__name__.endswith(CHOICES):
        choices = Dim("choices", min=1, max=MOST_CHOICES)
        for name, each in tokens_of_text(module, batch):
            found = each.value[:, None].expand(-1, BATCH, -1).clone()
            yield name, ExampleInput(found, {0: batch, 1: choices, 2: each.dimensions[1]})
    else:
        yield from tokens_of_text(module, batch)


def tokens_of_text(module: PreTrainedModel, batch: Any) -> Iterator[tuple[str, ExampleInput]]:
    config = module.config.get_text_config()
    length = Dim(SEQUENCE_NAME, min=shortest_pooled_text(module), max=longest_text(module))
    ids = token_input(config, batch, length)
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.int64)
    mask[-1, SEQUENCE // 2 :] = 0  # padding, so that the comparison with eager covers it
    if reads_end_tokens(module):
        ids.value[(mask > 0) & (mask.cumsum(1) == mask.sum(1, keepdim=True))] = config.eos_token_id
    yield "input_ids", ids
    yield "attention_mask", ExampleInput(mask, {0: batch, 1: length})
    if getattr(config, "type_vocab_size", 0) > 1:
        yield "token_type_ids", ExampleInput(torch.zeros_like(mask), {0: batch, 1: length})


def token_input(config: Any, batch: Any, length: Any) -> ExampleInput:
    count = getattr(config, "vocab_size", LETTERS)
    ids = torch.randint(0, count, (BATCH, SEQUENCE))
    for special in ("pad_token_id", "eos_token_id"):
        number = getattr(config, special, None)
        for each in number if isinstance(number, list) else [number]:
            ids[ids == each] = next(other for other in range(count) if other != each)
    return ExampleInput(ids, {0: batch, 1: length})


def longest_text(module: PreTrainedModel) -> int:
    """Return the largest number of tokens for which the model has positions."""
    config = module.config.get_text_config()
    # -1 for a model without a limit
    limits = [limit for name in LIMITS if (limit := getattr(config, name, None) or 0) > 0]
    for name, child in module.named_modules():
        if isinstance(child, torch.nn.Embedding) and name.rpartition(".")[2] in POSITIONS and "vision" not in name:
            # tables with an index for padding number positions from the next index on
            limits.append(child.num_embeddings - (0 if child.padding_idx is None else child.padding_idx + 1))
    return min(limits, default=LONGEST)


def image_input(config: Any, batch: Any) -> ExampleInput:
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(config, "num_channels", None) or 3
    return ExampleInput(torch.randn(BATCH, channels, height, width), {0: batch})


def fewest_samples(module: PreTrainedModel) -> int:
    """Return the least number of samples of a sound: a quarter of a second, or what the layers of x-vectors take."""
    config = module.config
    if not type(module).__name__.endswith(SPEAKERS):
        return SAMPLES // 4
    count = 1 + sum((size - 1) * step for size, step in zip(config.tdnn_kernel, config.tdnn_dilation, strict=True))
    for size, step in reversed([*zip(config.conv_kernel, config.conv_stride, strict=True)]):
        count = (count - 1) * step + size
    return int(max(count, SAMPLES // 4))


def spectrogram_input(config: Any, batch: Any) -> ExampleInput:
    if (features := getattr(config, "feature_projection_input_dim", None)) is not None:  # of Wav2Vec2-BERT
        length = Dim("frames", min=FRAMES // 8, max=LONGEST_FRAMES)
        return ExampleInput(torch.randn(BATCH, FRAMES, features), {0: batch, 1: length})
    mels = getattr(config, "num_mel_bins", None) or 80
    if (side := getattr(config, "spec_size", None)) is not None:  # of CLAP, which stretches a sound to a square image
        whole, crops = side * (side // mels), 4 if config.enable_fusion else 1
        length = Dim("frames", min=2, max=whole - 1)
        return ExampleInput(torch.randn(BATCH, crops, whole * 3 // 4, mels), {0: batch, 2: length})
    positions = getattr(config, "max_source_positions", None)
    frames = 2 * positions if positions else FRAMES
    return ExampleInput(torch.randn(BATCH, mels, frames), {0: batch})
