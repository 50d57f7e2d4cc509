"""What `check.safetensors` holds: example inputs and eager's outputs, to be compared where a wheel is installed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils import _pytree as pytree

from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.eager import eager_factory, random_operators
from hatch_lower.pipeline.random_inputs import example_case

CHECK_BYTES = 1 << 20  # bytes of tensors up to which they are packaged


def limited(found: Mapping[str, torch.Tensor], note: str) -> tuple[Mapping[str, torch.Tensor], str]:
    total = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if total > CHECK_BYTES:
        return {}, f"no check data: example inputs and outputs take {total} bytes, more than {CHECK_BYTES}"
    return found, note


def example_tensors(model: CapturedModel) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors among the example inputs and eager's outputs, and a note if there are none of them."""
    # the names are `<method>/input/<i>` and `<method>/output/<i>`, where `i` counts all leaves, not the tensors alone;
    # the tensors are contiguous and share no memory
    found: dict[str, torch.Tensor] = {}
    for method in model.methods:
        if not method.has_examples or random_operators(method.program):
            continue
        case = example_case(method)
        args, kwargs = case.copied()
        try:
            with torch.no_grad():
                outputs = eager_factory(model, method)()(*args, **kwargs)
        except Exception as error:
            return {}, f"no check data: eager fails on the example inputs of `{method.name}`: {error}"
        for part, tree in (("input", (case.args, case.kwargs)), ("output", outputs)):
            for i, leaf in enumerate(pytree.tree_leaves(tree)):
                if isinstance(leaf, torch.Tensor):
                    found[f"{method.name}/{part}/{i}"] = leaf.detach().clone(memory_format=torch.contiguous_format)
    return found, ""
