"""Signatures of programs whose graphs have changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.export.graph_signature import ConstantArgument, CustomObjArgument, ExportGraphSignature
from torch.fx import GraphModule, Node


def output_values(module: GraphModule) -> tuple[Any, ...]:
    values = module.graph.output_node().args[0]
    return tuple(values) if isinstance(values, (list, tuple)) else (values,)


def _get_updated_graph_signature(old_signature: ExportGraphSignature, new_gm: GraphModule) -> ExportGraphSignature:
    """Return a signature with the names that a changed graph has for the same inputs and outputs, by their order."""
    placeholders = new_gm.graph.find_nodes(op="placeholder")
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


def renamed_argument(argument: Any, value: Any) -> Any:
    if isinstance(argument, (ConstantArgument, CustomObjArgument)) or not isinstance(value, Node):
        return argument
    return replace(argument, name=value.name)
