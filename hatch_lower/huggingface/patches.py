"""States of a transformers model for its export: without a cache, and under the patches of transformers' exporters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DYNAMIC = "dynamic"  # a kind of rotary positions


def turn_off_caches(module: PreTrainedModel) -> None:
    from transformers import PreTrainedModel

    for part in module.modules():  # a decoder may have a configuration of its own
        if isinstance(part, PreTrainedModel):
            part.config.use_cache, part.config.return_dict = False, True


def make_late_tensors(module: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """Call a model once: an export cannot keep the tensors that the first call makes (long frequencies of Phi-3)."""
    import torch

    with torch.no_grad(), suppress(Exception):  # the export raises the error again, and names the line
        module(**inputs)


@contextmanager
def frequencies_kept(module: PreTrainedModel) -> Iterator[None]:
    """Let rotary positions of the kind `dynamic` keep their frequencies.

    The frequencies change beyond the positions of the configuration, which no exported text exceeds, but the question
    depends on the values of a tensor.
    """
    parts: list[Any] = [part for part in module.modules() if getattr(part, "rope_type", None) == DYNAMIC]
    for part in parts:
        part.rope_type = "default"
    try:
        yield
    finally:
        for part in parts:
            part.rope_type = DYNAMIC


@contextmanager
def exporting(module: PreTrainedModel) -> Iterator[None]:
    """Put the patches in place under which transformers exports its models; eager runs outside of this context."""
    from transformers.exporters.exporter_dynamo import reset_model_state
    from transformers.exporters.utils import apply_patches

    from hatch_lower.huggingface.end_tokens import last_ends_selected
    from hatch_lower.huggingface.experts import experts_for_export
    from hatch_lower.huggingface.frames import frames_padded
    from hatch_lower.huggingface.pooled_positions import positions_computed
    from hatch_lower.huggingface.whole_images import images_whole

    patches = (
        *(reset_model_state, experts_for_export, frames_padded, images_whole, positions_computed, frequencies_kept),
        last_ends_selected,
    )
    with ExitStack() as stack:
        stack.enter_context(apply_patches("dynamo"))
        for patch in patches:
            stack.enter_context(patch(module))
        yield
