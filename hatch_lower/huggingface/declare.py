"""Models of transformers to export: the method `forward`, under the patches of transformers' own exporters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hatch_lower.errors import EntryPointError
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
            sequence from 1 to the model's largest sizes.

    Raises:
        EntryPointError: if `module` is no model of transformers, or if its inputs are of no known kind.
    """
    from transformers import PreTrainedModel

    if not isinstance(module, PreTrainedModel):
        raise EntryPointError(
            "`hatch_lower.huggingface.model` takes a model of transformers",
            where="its first argument",
            found=f"a value of type `{type(module).__name__}`",
            hint="give what `AutoModelFor….from_pretrained` returns; any other module: `hatch_lower.Model`",
        )
    if inputs is None:
        from hatch_lower.huggingface.examples import made_inputs

        examples = made_inputs(module)
        inputs = {name: example.value for name, example in examples.items()}
        dynamic_shapes = {name: dict(example.dimensions) for name, example in examples.items()}
    turn_off_caches(module)
    # lengths of sound: torch.export proves nothing about the quotients in the numbers of frames
    forward = Method(kwargs=dict(inputs), dynamic_shapes=dynamic_shapes, defer_guards="input_values" in inputs)
    return Model(module, {"forward": forward}, exporting=partial(exporting, module))


def turn_off_caches(module: PreTrainedModel) -> None:
    from transformers import PreTrainedModel

    for part in module.modules():  # a decoder may have a configuration of its own
        if isinstance(part, PreTrainedModel):
            part.config.use_cache, part.config.return_dict = False, True


@contextmanager
def exporting(module: PreTrainedModel) -> Iterator[None]:
    """Put the patches in place under which transformers exports its models; eager runs outside of this context."""
    from transformers.exporters.exporter_dynamo import reset_model_state
    from transformers.exporters.utils import apply_patches

    with apply_patches("dynamo"), reset_model_state(module):
        yield
