"""Calls of which inductor's places or windows are not eager's for all sizes, or which it cannot compile for them."""

from __future__ import annotations

import torch
from torch.fx import Node

from hatch_lower.exir.backend.canonical_partitioners.nodes import tensors_of
from hatch_lower.exir.backend.canonical_partitioners.operators import named_arguments, torch_operator
from hatch_lower.exir.lowering.unlike_eager import UNLIKE_EAGER, is_between_other_places, is_of_doubles
from hatch_lower.runtime.torch_private.operators import OpOverload, base_name

aten = torch.ops.aten

NEAREST = 1  # of the modes of `grid_sampler_2d`
# core operators, which no program takes apart, and inductor does
APART = {aten.upsample_nearest2d.vec: is_of_doubles, aten.upsample_bilinear2d.vec: is_between_other_places}


def why_not_sizes(node: Node) -> str:
    op = torch_operator(node.target)
    unlike = {**UNLIKE_EAGER, **APART}.get(op)
    if unlike is not None and unlike(node):
        return f"inductor takes `{op}` apart into what gives other numbers than eager"
    if op is aten.grid_sampler_2d.default and named_arguments(node)["interpolation_mode"] == NEAREST:
        return f"inductor's `{op}` rounds places between two elements otherwise than eager"
    if isinstance(op, OpOverload) and "_adaptive_" in f"_{base_name(op)}" and has_symbolic_windows(node):
        return f"inductor asks how large the windows of `{op}` are, so that it compiles fixed sizes only"
    return ""


def has_symbolic_windows(node: Node) -> bool:
    return any(isinstance(size, torch.SymInt) for tensor in tensors_of(node) for size in tensor.shape[1:])
