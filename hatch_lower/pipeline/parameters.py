"""A method's Python parameters and the names of its dynamic dimensions, matched to the exported program."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from hatch_lower.pipeline.emit.signature import user_inputs
from hatch_lower.runtime.torch_private import trees


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
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> dict[str, str]:
    """Return symbol → name of its `torch.export.Dim`, as far as the declaration says."""
    if not dynamic_shapes:
        return {}
    arguments = [*args, *kwargs.values()]
    if isinstance(dynamic_shapes, Mapping):
        by_key = dict(dynamic_shapes)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL and parameter.name in by_key:
                by_key |= {f"{parameter.name}_{i}": value for i, value in enumerate(by_key[parameter.name])}
        shapes = [by_key.get(key) for key in (*positional_names(signature, len(args)), *kwargs)]
    else:
        shapes = [*dynamic_shapes, *[None] * (len(arguments) - len(dynamic_shapes))]
    examples = trees.tree_leaves(program.example_inputs) if program.example_inputs is not None else []
    values = {id(leaf): value for leaf, value in zip(examples, user_values(program), strict=False)}
    names: dict[str, str] = {}
    for argument, given in zip(arguments, shapes, strict=True):
        for leaf, shape in paired(argument, given):
            value = values.get(id(leaf))
            for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) and shape else ()):
                dimension = shape.get(index) if isinstance(shape, Mapping) else shape[index]
                if isinstance(dimension, torch.export.Dim) and isinstance(size, torch.SymInt):
                    expression = size.node.expr
                    if expression.is_Symbol:
                        names.setdefault(str(expression), dimension.__name__)
    return names


def paired(argument: object, shape: Any) -> Iterator[tuple[object, Any]]:
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


def user_values(program: ExportedProgram) -> list[object]:
    """Return what the program's user inputs look like: fake tensors, symbolic numbers, or the literal itself."""
    return [node.meta.get("val") for _, node in user_inputs(program)]
