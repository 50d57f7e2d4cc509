"""Models of transformers to export: the method `forward`, under the patches of transformers' own exporters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hatch_lower.errors import EntryPointError
from hatch_lower.huggingface.patches import exporting, make_late_tensors, turn_off_caches
from hatch_lower.huggingface.refusals import OWN_INPUTS
from hatch_lower.model import Method, Model

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def model(
    module: PreTrainedModel,
    *,
    inputs: Mapping[str, torch.Tensor] | None = None,
    dynamic_shapes: Mapping[str, Any] | None = None,
) -> Model:
    """Return a model to export, with the method `forward`.

    Args:
        module: a model of transformers, in the mode to export (`from_pretrained` returns models in `eval` mode). Its
            configuration is changed: without a cache, and with outputs by name.
        inputs: example keyword arguments of `forward`; default: made from the configuration, of batch size 2.
        dynamic_shapes: as for `torch.export.export`, for `inputs`; default: none for given inputs, else batch and
            sequence from 1 to the model's largest sizes, and sequence from 2 if torch.export refuses 1.

    Raises:
        EntryPointError: if `module` is no model of transformers, or if its inputs are of no known kind.
    """
    checked_module(module, "model")
    options: dict[str, Any] = {}
    advice = ""
    if inputs is None:
        from hatch_lower.huggingface.examples import LENGTHS, made_inputs

        advice = f"give `{type(module).__name__}` inputs and dynamic sizes of your own: {OWN_INPUTS}"
        options = {"any_size": True, "narrow": LENGTHS}
        examples = made_inputs(module)
        inputs = {name: example.value for name, example in examples.items()}
        dynamic_shapes = {name: dict(example.dimensions) for name, example in examples.items()}
    from hatch_lower.huggingface.pooled_positions import pools_tokens

    turn_off_caches(module)
    make_late_tensors(module, inputs)
    # torch.export proves nothing about quotients: in the numbers of a sound's frames, and of tokens after a pooling
    options["defer_guards"] = "input_values" in inputs or pools_tokens(module)
    forward = Method(kwargs=dict(inputs), dynamic_shapes=dynamic_shapes, **options)
    return Model(module, {"forward": forward}, exporting=partial(exporting, module), advice=advice)


def generator(module: PreTrainedModel) -> Model:
    """Return a language model to export for generation, with the methods `start` and `decode`.

    `LoadedModel.generate` and `LoadedModel.stream` call the methods. `start` takes what the model's encoder takes, or
    the prompt, and returns an empty cache; `decode` takes tokens and the cache, and returns logits and the next cache.
    A model that reads images has the methods `encode_image` and `embed`, too, and its `decode` takes their results.

    Args:
        module: a causal model, or an encoder with a decoder, in the mode to export. Its configuration is changed:
            outputs by name.

    Raises:
        EntryPointError: if the model has no cache of keys and values, computes other logits with a cache, or reads
            sounds in its prompts.
    """
    from hatch_lower.huggingface.cropped_images import CroppedImageGenerator
    from hatch_lower.huggingface.deep_images import DeepImageGenerator
    from hatch_lower.huggingface.generation import Generator, generation_model
    from hatch_lower.huggingface.pixtral import PixtralGenerator
    from hatch_lower.huggingface.refusals import refuse_sounds
    from hatch_lower.huggingface.sized_images import SizedImageGenerator
    from hatch_lower.huggingface.vision import ImageGenerator, reads_images

    checked_module(module, "generator")
    if not reads_images(module):
        refuse_sounds(module)
        return generation_model(module, Generator)
    kinds: dict[str, type[ImageGenerator]] = {
        "llava_next": CroppedImageGenerator,
        "llava_onevision": CroppedImageGenerator,
        "qwen2_vl": SizedImageGenerator,
        "qwen2_5_vl": SizedImageGenerator,
        "qwen3_vl": DeepImageGenerator,
    }
    kind = kinds.get(module.config.model_type)
    reader = PixtralGenerator if module.config.vision_config.model_type == "pixtral" else ImageGenerator
    return generation_model(module, kind or reader)


def as_pretrained(model: Any) -> PreTrainedModel:
    """Return a loaded language model as a model of transformers, for searches that `LoadedModel.generate` lacks.

    Its `generate` is transformers' own: beams, assisted decoding, constraints. Keys and values are copied in each step.

    Args:
        model: the result of `hatch_lower.load(name, arrays="torch")`, on the CPU.

    Raises:
        InputError: if the model does not generate tokens.
        ProgramError: if the model's assets have no configuration, or its arrays are not torch's.
    """
    found: PreTrainedModel = model.as_pretrained()
    return found


def checked_module(module: object, function: str) -> PreTrainedModel:
    from transformers import PreTrainedModel

    if isinstance(module, PreTrainedModel):
        return module
    raise EntryPointError(
        f"`hatch_lower.huggingface.{function}` takes a model of transformers",
        where="its first argument",
        found=f"a value of type `{type(module).__name__}`",
        hint="give what `AutoModelFor….from_pretrained` returns; any other module: `hatch_lower.Model`",
    )
