"""Signatures of programs whose graphs have changed."""

from __future__ import annotations

from dataclasses import replace

from torch.export.graph_signature import ArgumentSpec, ConstantArgument, CustomObjArgument, ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from hatch_lower.exir.graph.surgery import output_values


def _get_updated_graph_signature(old_signature: ExportGraphSignature, new_gm: GraphModule) -> ExportGraphSignature:
    placeholders = new_gm.graph.find_nodes(op="placeholder")
    # by order, not by name: a pass that rebuilds a graph renames its nodes
    return ExportGraphSignature(
        [
            replace(spec, arg=renamed_argument(spec.arg, node))
            for spec, node in zip(old_signature.input_specs, placeholders, strict=True)
        ],
        [
            replace(spec, arg=renamed_argument(spec.arg, value))
            for spec, value in zip(old_signature.output_specs, output_values(new_gm), strict=True)
        ],
    )


def renamed_argument(argument: ArgumentSpec, value: Argument) -> ArgumentSpec:
    if isinstance(argument, (ConstantArgument, CustomObjArgument)) or not isinstance(value, Node):
        return argument
    return replace(argument, name=value.name)
