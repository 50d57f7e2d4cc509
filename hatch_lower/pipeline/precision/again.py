"""Export a changed graph module again, with the arguments and dynamic sizes of the method it was made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from hatch_lower.exir.graph.surgery import copy_graph, rebuild_program
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.module_checks import same_tensor
from hatch_lower.pipeline.parameters import user_input_values
from hatch_lower.pipeline.precision.halves import unused_name
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.recurrent import recurrent_shapes


def export_module(method: CapturedMethod, module: GraphModule) -> CapturedMethod:
    """Return a method that computes as a changed copy of its program's module."""
    shapes = dynamic_shapes(method)
    with torch.no_grad(), recurrent_shapes():
        program = torch.export.export(module, method.args, dict(method.kwargs), dynamic_shapes=shapes)
    share_unchanged(program, method.program)
    program = with_own_names(program, method)
    return replace(method, program=program, dimensions=renamed(method, program))


def dynamic_shapes(method: CapturedMethod) -> Any:
    """Return the dynamic sizes of a method's inputs as `torch.export` takes them; `None` without dynamic sizes."""
    values = list(user_input_values(method.program))
    dims = {str(symbol): dimension_of(symbol, method.program) for symbol in free_symbols_of(values)}
    if not dims and not any(isinstance(value, torch.SymInt) for value in values):
        return None
    leaves = [shape_of(value, dims) for value in values]
    spec = tensors.tree_flatten((method.args, dict(method.kwargs)))[1]
    args, kwargs = tensors.tree_unflatten(leaves, spec)
    return (*args, *kwargs.values())


def free_symbols_of(values: list[Any]) -> Iterator[Any]:
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                yield from sorted(size.node.expr.free_symbols, key=str)


def dimension_of(symbol: Any, program: ExportedProgram) -> Any:
    """Return the dimension of a symbol, with the limits of the symbol, or of the only size that depends on it."""
    ranges = program.range_constraints
    limits = ranges.get(symbol)
    if limits is None:
        return Dim(str(symbol))
    least, most = int(limits.lower), int(limits.upper) if limits.upper.is_finite else None
    for size, own in ranges.items():  # torch raises a symbol's own lower limit to 2
        if size != symbol and size.free_symbols == {symbol} and own.lower.is_finite:
            step, begin = size.coeff(symbol), size.subs(symbol, 0)
            least = min(least, math.ceil((int(own.lower) - begin) / step))
    return Dim(str(symbol), min=least, max=most)


def shape_of(value: Any, dims: Mapping[str, Any]) -> Any:
    """Return the entry of an input in the dynamic shapes: sizes by dimension, a free number, or nothing."""
    if isinstance(value, torch.SymInt):
        return Dim.DYNAMIC
    if not isinstance(value, torch.Tensor):
        return None
    shape: Any = value.shape
    return {place: size_in(size.node.expr, dims) for place, size in enumerate(shape) if isinstance(size, torch.SymInt)}


def size_in(expression: Any, dims: Mapping[str, Any]) -> Any:
    """Return a size in terms of dimensions: `Dim` of a symbol, or a linear expression as `2 * batch + 1`.

    The export finds a size that depends on several symbols, as the number of keys of a cache and new tokens, by itself.
    """
    if expression.is_Symbol:
        return dims[str(expression)]
    if len(expression.free_symbols) != 1:
        return Dim.AUTO
    (symbol,) = expression.free_symbols
    step, begin = expression.coeff(symbol), expression.subs(symbol, 0)
    size = int(step) * dims[str(symbol)]
    return size + int(begin) if begin else size


def renamed(method: CapturedMethod, program: ExportedProgram) -> dict[str, str]:
    """Return the names of dimensions by the symbols of a program, which has other symbols than the method's own."""
    names: dict[str, str] = {}
    pairs: Any = zip(user_input_values(method.program), user_input_values(program), strict=True)
    for before, after in pairs:
        sizes: Any = zip(before.shape, after.shape, strict=True) if isinstance(before, torch.Tensor) else ()
        for one, other in sizes:
            if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt):
                symbols = one.node.expr.free_symbols, other.node.expr.free_symbols
                if len(symbols[0]) == len(symbols[1]) == 1:
                    (known,), (new,) = symbols
                    if str(known) in method.dimensions:
                        names[str(new)] = method.dimensions[str(known)]
    return names


def share_unchanged(program: ExportedProgram, before: ExportedProgram) -> None:
    """Replace unchanged tensors of a program by the tensors of the program before, which methods share."""
    known: dict[str, Any] = {**before.state_dict, **before.constants}
    for store in (program.state_dict, program.constants):
        for name, tensor in store.items():
            other = known.get(name)
            if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor) and same_tensor(tensor, other):
                store[name] = other


def with_own_names(program: ExportedProgram, method: CapturedMethod) -> ExportedProgram:
    """Return a program whose new tensors have the method in their names, which methods of a model do not share."""
    before: dict[str, Any] = {**method.program.state_dict, **method.program.constants}
    known: dict[str, Any] = {**program.state_dict, **program.constants}
    new = {
        name: unused_name(f"{name}_{method.name}", known)
        for name, tensor in known.items()
        if before.get(name) is not tensor
    }
    specs = [
        replace(spec, target=new.get(str(spec.target), spec.target)) for spec in program.graph_signature.input_specs
    ]
    signature = replace(program.graph_signature, input_specs=specs)
    state, constants = (
        {new.get(name, name): tensor for name, tensor in store.items()}
        for store in (program.state_dict, program.constants)
    )
    copied = copy_graph(program.graph_module)
    return rebuild_program(program, *copied, signature=signature, state_dict=state, constants=constants)
