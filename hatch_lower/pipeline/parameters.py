"""A method's Python parameters, the names of its dynamic dimensions, and checks of the declared sizes against the
example's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from hatch_lower.errors import CaptureError
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.emit.signature import user_inputs
from hatch_lower.runtime.torch_private import tensors


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
    """Return symbol → name of its `torch.export.Dim`, for declared names."""
    if not isinstance(dynamic_shapes, Mapping | tuple | list):  # an object of torch's, without names
        return {}
    # by the method's parameters, as torch reads a declaration: `*inputs` and `**options` are a parameter each
    given: dict[str, object] = dict(signature.bind(*args, **kwargs).arguments)
    shapes = dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(given, dynamic_shapes, strict=False))
    examples = tensors.tree_leaves(program.example_inputs) if program.example_inputs is not None else []
    values = {id(leaf): value for leaf, value in zip(examples, user_input_values(program), strict=False)}
    names: dict[str, str] = {}
    computed: dict[str, str] = {}
    for leaf, shape in paired(given, shapes):
        value = values.get(id(leaf))
        for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) and shape else ()):
            dimension = shape.get(index) if isinstance(shape, Mapping) else shape[index]
            if isinstance(dimension, torch.export.Dim) and isinstance(size, torch.SymInt):
                expression = size.node.expr
                # torch's symbol stands for the root dimension (`n` of `2 * n`)
                root = getattr(dimension, "root", dimension)
                if expression.is_Symbol and root is dimension:
                    names.setdefault(str(expression), dimension.__name__)
                elif root is not dimension and len(expression.free_symbols) == 1:
                    computed.setdefault(str(*expression.free_symbols), root.__name__)
    return computed | names


def with_named_keywords(
    call: Callable[..., object], dynamic_shapes: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Callable[..., object], Any]:
    """Return a method whose signature names all keyword arguments of a call, and the method's dynamic shapes."""
    # torch.export drops the dynamic shapes of arguments in `**options`
    signature = inspect.signature(call)
    rest = next((each for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD), None)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the export reports the mismatch
        return call, dynamic_shapes
    if rest is None or rest.name not in bound or not isinstance(dynamic_shapes, Mapping | tuple | list):
        return call, dynamic_shapes
    if isinstance(dynamic_shapes, Mapping):
        shapes = dict(dynamic_shapes)
    elif len(dynamic_shapes) == len(bound):
        shapes = dict(zip(bound, dynamic_shapes, strict=True))
    else:
        return call, dynamic_shapes
    # the shapes of `**options` by its name, or by the names of the arguments themselves
    options = {**(shapes.pop(rest.name, None) or {}), **shapes}
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in bound[rest.name]]
    others = [each for each in signature.parameters.values() if each is not rest]

    def method(*args: object, **kwargs: object) -> object:
        return call(*args, **kwargs)

    described: Any = method
    described.__signature__ = signature.replace(parameters=[*others, *named])
    return method, {**{name: shapes.get(name) for name in bound if name != rest.name}, **options}


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


def user_input_values(program: ExportedProgram) -> list[object]:
    """Return the traced values of the program's user inputs: fake tensors, symbolic numbers, or literals."""
    return [node.meta.get("val") for _, node in user_inputs(program)]


FIXED_SIZES = (0, 1)  # sizes that torch.export treats as fixed


class DeclaredSize(Frozen):
    path: str  # of the tensor: `image`, `pair[0]`
    dimension: int
    declared: Any  # a `Dim`, or a hint, for example `Dim.AUTO`
    size: int  # the example's

    @property
    def name(self) -> str:
        return self.declared.__name__ if isinstance(self.declared, Dim) else str(self.declared)

    def text(self) -> str:
        return f"dimension {self.dimension} of `{self.path}` is {self.size} in the example"


def declared_sizes(
    signature: inspect.Signature, dynamic_shapes: Any, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[DeclaredSize]:
    """Return the example's dimensions that are declared dynamic; empty if the arguments do not fit the signature."""
    if not isinstance(dynamic_shapes, Mapping | tuple | list):
        return []
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:
        return []
    shapes = dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(given, dynamic_shapes, strict=False))
    return [size for name, value in given.items() for size in tensor_sizes(name, value, shapes.get(name))]


def tensor_sizes(path: str, value: object, shape: Any) -> Iterator[DeclaredSize]:
    if isinstance(value, torch.Tensor):
        pairs = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
        for dimension, declared in pairs:
            if isinstance(dimension, int) and declared is not None and not isinstance(declared, int):
                size = value.shape[dimension] if -value.dim() <= dimension < value.dim() else -1
                yield DeclaredSize(path, dimension, declared, size)
    elif isinstance(value, Mapping) and isinstance(shape, Mapping):
        for key, each in value.items():
            yield from tensor_sizes(f"{path}[{key!r}]", each, shape.get(key))
    elif isinstance(value, (tuple, list)) and isinstance(shape, (tuple, list)):
        for index, (each, inner) in enumerate(zip(value, shape, strict=False)):
            yield from tensor_sizes(f"{path}[{index}]", each, inner)


def check_declared_sizes(where: str, what: str, sizes: list[DeclaredSize]) -> None:
    """Refuse dimensions that tensors lack, and ranges without the example's size."""
    for declared in sizes:
        if declared.size < 0:
            raise CaptureError(
                what,
                where=where,
                found=f"`{declared.path}` has no dimension {declared.dimension}",
                hint="count the dimensions from 0",
            )
        if type(declared.declared) is not Dim:  # a multiple of another dimension, or a hint
            continue
        low, high = declared.declared.min, declared.declared.max
        bound = f"below min = {low}" if declared.size < low else f"above max = {high}" if declared.size > high else ""
        if bound:
            raise CaptureError(
                what,
                where=where,
                found=f"{declared.text()}, which is {bound} of `{declared.name}`",
                hint="use an example within the range, or widen the range of the `Dim`",
            )


def fixed_size(reason: str, sizes: list[DeclaredSize]) -> DeclaredSize | None:
    """Return the dimension whose example size of 0 or 1 made torch.export fail, or `None` for other failures."""
    if not any(text in reason for text in ("specialized", "Constraints violated", "not all values")):
        return None
    fixed = (size for size in sizes if size.size in FIXED_SIZES and size.declared is not Dim.AUTO)
    return next(fixed, None)


def separate_tensors(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    # torch.export would merge two arguments that are the same tensor into a single input
    seen: set[int] = set()

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in seen:
            return tensor.detach().clone()
        seen.add(id(tensor))
        return tensor

    return tensors.tree_map_only(torch.Tensor, once, args), tensors.tree_map_only(torch.Tensor, once, kwargs)
