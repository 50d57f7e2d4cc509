"""Which operations ExecuTorch's portable kernels take, those that its runtime has without a delegate."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from hatch_lower.backends.engine_partitioner import INTEGERS, why_not_tensors
from hatch_lower.backends.executorch.run import extension
from hatch_lower.backends.executorch.sizes import VIEWS, Ranges, numbers_of, why_not_numbers, why_not_view
from hatch_lower.exir.backend.canonical_partitioners.nodes import tensors_of
from hatch_lower.exir.backend.canonical_partitioners.operators import torch_operator
from hatch_lower.torch_private.operators import schema_of


def aten_names(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


NUMBERS = frozenset({torch.float32, *INTEGERS})
CAST = "dim_order_ops::_to_dim_order_copy.out"  # what ExecuTorch puts in the place of `aten._to_copy`

# kept whole for XNNPACK; ExecuTorch takes them apart into operators that it has kernels for
WHOLE = aten_names("hardswish.default linear.default prelu.default")


def portable_kernels() -> frozenset[str]:
    # those that ExecuTorch's runtime can run without a delegate
    return frozenset(extension()._get_operator_names())


def why_not_portable(node: Node, copy: Node, kernels: frozenset[str], ranges: Ranges) -> str:
    target = torch_operator(node.target)
    name = str(target)
    if torch.Tag.nondeterministic_seeded in target.tags:
        return f"`{name}` draws random numbers, and another library would draw others than eager"
    if schema_of(target).is_mutable:
        return f"`{name}` changes its input"
    values = [value for source in (node, *node.all_input_nodes) for value in tensors_of(source)]
    if torch.Tag.data_dependent_output in target.tags or any(free_unbacked_symbols(value) for value in values):
        return f"`{name}` has a size that depends on its input's contents"
    wanted = CAST if name == "aten._to_copy.default" else None
    if wanted is None and hasattr(copy.target, "to_out_variant"):
        try:
            variant = copy.target.to_out_variant()
        except RuntimeError:
            return f"ExecuTorch has no variant of `{name}` that writes into given memory"
        wanted = f"{schema_of(variant).name}.{schema_of(variant).overload_name}"
    if wanted not in kernels and name not in WHOLE:
        return f"ExecuTorch has no kernel for `{name}`"
    reason = why_not_tensors(node, NUMBERS, unbacked=True)
    if not reason and name in VIEWS and list(numbers_of(copy)):
        return why_not_view(node, ranges)
    return reason or why_not_numbers(copy, ranges)
