"""States of a transformers model for its export: without a cache, and under the patches of transformers' exporters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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

    with apply_patches("dynamo"), reset_model_state(module), plain_experts(module):
        yield


@contextmanager
def plain_experts(module: PreTrainedModel) -> Iterator[None]:
    """Let experts multiply with operators of torch: the default calls an operator of transformers."""
    if not module._can_set_experts_implementation():
        yield
        return
    before = module.get_experts_implementation()
    module.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        module.set_experts_implementation(before)
