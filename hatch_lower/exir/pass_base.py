"""Passes over edge programs: functions of a graph module, as torch's and ExecuTorch's are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, CustomObjArgument, ExportGraphSignature
from torch.fx import GraphModule, Node

from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.surgery import copy_program, rebuild_program
from hatch_lower.exir.lowering.adopt import highest_debug_handle
from hatch_lower.exir.lowering.convert import fill_debug_handles

__all__ = ["Pass", "transform_program"]

Pass = Callable[[GraphModule], Any]
"""Takes a graph module, changes it or not, and returns a `PassResult`, the module, or `None`."""


def transform_program(program: ExportedProgram, passes: Iterable[Pass]) -> ExportedProgram:
    """Return a program after some passes; the given one is left as it is.

    Args:
        program: an edge program.
        passes: applied in order to its graph module. They keep its inputs and outputs in number and order; operations
            that they add get a debug handle of their own unless they have one.

    Raises:
        EdgeError: if a pass changes the number of inputs or outputs, or breaks a rule of the dialect. What a pass
            itself raises passes through.
    """
    module = copy_program(program).graph_module
    names: list[str] = []
    for each in passes:
        result = each(module)
        names.append(getattr(each, "__name__", type(each).__name__))
        module = result_module(result, module, names[-1])
        for kind, count in zip(("inputs", "outputs"), counts(module), strict=True):
            expected = len(getattr(program.graph_signature, f"{kind[:-1]}_specs"))
            if count != expected:
                raise EdgeError(
                    f"a pass changed the number of {kind} of the program",
                    where=f"pass `{names[-1]}`",
                    found=f"{count} instead of {expected}",
                    hint="keep placeholders and outputs as they are; unused ones are dropped when constants are owned",
                )
    module.recompile()
    used = highest_debug_handle(program.graph_module)  # handles of what a pass removed are not given out again
    fill_debug_handles(module, lambda node: node.op == "call_function", above=used)
    try:
        return rebuild_program(program, module, module.graph, signature=renamed_signature(program, module))
    except torch._export.verifier.SpecViolationError as error:
        raise EdgeError(
            "the passes made something that is no edge program",
            where=", ".join(f"`{name}`" for name in names),
            found=str(error),
            hint="let the passes keep to the dialect: edge operators from `ops.edge`, `meta['val']` on every node",
        ) from error


def result_module(result: Any, module: GraphModule, name: str) -> GraphModule:
    """Return the graph module that a pass made; one that returns nothing changed the one that it was given."""
    made = getattr(result, "graph_module", result)
    if made is None:
        return module
    if not isinstance(made, GraphModule):
        raise EdgeError(
            "a pass returned something else than a graph module",
            where=f"pass `{name}`",
            found=repr(result),
            hint="return `PassResult(graph_module, modified)`",
        )
    return made


def counts(module: GraphModule) -> tuple[int, int]:
    """Return how many inputs and outputs a graph has."""
    return len(module.graph.find_nodes(op="placeholder")), len(output_values(module))


def output_values(module: GraphModule) -> tuple[Any, ...]:
    """Return what a graph returns."""
    values = module.graph.output_node().args[0]
    return tuple(values) if isinstance(values, (list, tuple)) else (values,)


def renamed_signature(program: ExportedProgram, module: GraphModule) -> ExportGraphSignature:
    """Return the program's signature with the names that a changed graph has for the same inputs and outputs."""
    signature = program.graph_signature
    placeholders = module.graph.find_nodes(op="placeholder")
    return ExportGraphSignature(
        [
            replace(spec, arg=renamed_argument(spec.arg, node))
            for spec, node in zip(signature.input_specs, placeholders, strict=True)
        ],
        [
            replace(spec, arg=renamed_argument(spec.arg, value))
            for spec, value in zip(signature.output_specs, output_values(module), strict=True)
        ],
    )


def renamed_argument(argument: Any, value: Any) -> Any:
    """Return the signature's word for the same value under its new name."""
    if isinstance(argument, (ConstantArgument, CustomObjArgument)) or not isinstance(value, Node):
        return argument
    return replace(argument, name=value.name)
