"""Calls for which inductor's places or windows differ from eager's for some sizes, or that inductor cannot compile."""

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
        return f"inductor decomposes `{op}` into operations whose result differs from eager's"
    if op is aten.grid_sampler_2d.default and named_arguments(node)["interpolation_mode"] == NEAREST:
        return f"inductor's `{op}` rounds places between two elements differently from eager"
    if isinstance(op, OpOverload) and "_adaptive_" in f"_{base_name(op)}" and has_symbolic_windows(node):
        return f"inductor needs the window sizes of `{op}`, and so compiles fixed sizes only"
    return ""


def has_symbolic_windows(node: Node) -> bool:
    # of an input of a dynamic size, inductor would read as much as its example has, whatever the call gives
    shapes = [tensor.shape for each in (node, *node.all_input_nodes) for tensor in tensors_of(each)]
    return any(isinstance(size, torch.SymInt) for shape in shapes for size in shape[1:])
