"""A method's Python parameters and the names of its dynamic dimensions, matched to the exported program."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree


def positional_names(signature: inspect.Signature, count: int) -> tuple[str, ...]:
    """Return the Python names of the first `count` positional arguments; `*args` gives `args_0`, `args_1`, …"""
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names[:count])


def dimension_names(
    program: ExportedProgram,
    dynamic_shapes: Any,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, str]:
    """Return symbol → name of its `torch.export.Dim`, as far as the declaration says."""
    if not dynamic_shapes:
        return {}
    arguments = [*args, *kwargs.values()]
    keys = [*positional_names(signature, len(args)), *kwargs]
    if isinstance(dynamic_shapes, Mapping):
        by_key = dict(dynamic_shapes)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL and parameter.name in by_key:
                by_key |= {f"{parameter.name}_{i}": value for i, value in enumerate(by_key[parameter.name])}
        shapes = [by_key.get(key) for key in keys]
    else:
        shapes = [*dynamic_shapes, *[None] * (len(arguments) - len(dynamic_shapes))]
    leaves = [leaf for argument, shape in zip(arguments, shapes, strict=True) for leaf in paired(argument, shape)]
    order = [leaf for leaf, _ in leaves]
    names: dict[str, str] = {}
    values = {id(leaf): value for leaf, value in zip(flat_examples(program), user_values(program), strict=False)}
    for leaf, shape in zip(order, (shape for _, shape in leaves), strict=True):
        value = values.get(id(leaf))
        if not isinstance(leaf, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        for index, size in enumerate(value.shape):
            dimension = shape.get(index) if isinstance(shape, Mapping) else shape[index] if shape else None
            if isinstance(size, torch.SymInt) and isinstance(dimension, torch.export.Dim):
                expression = size.node.expr
                if expression.is_Symbol:
                    names.setdefault(str(expression), dimension.__name__)
    return names


def paired(argument: Any, shape: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(argument, torch.Tensor) or shape is None:
        yield argument, shape
    elif isinstance(argument, Mapping) and isinstance(shape, Mapping):
        for key, value in argument.items():
            yield from paired(value, shape.get(key))
    elif isinstance(argument, (tuple, list)) and isinstance(shape, (tuple, list)):
        for value, sizes in zip(argument, shape, strict=False):
            yield from paired(value, sizes)
    else:
        yield argument, None


def flat_examples(program: ExportedProgram) -> list[Any]:
    return pytree.tree_leaves(program.example_inputs) if program.example_inputs is not None else []


def user_values(program: ExportedProgram) -> list[Any]:
    """Return what the program's user inputs look like: fake tensors, symbolic numbers, or the literal itself."""
    placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.input_specs
    return [placeholders.get(spec.arg.name) for spec in specs if spec.kind is InputKind.USER_INPUT]
