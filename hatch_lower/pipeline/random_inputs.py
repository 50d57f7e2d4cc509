"""Other inputs of the same specification: random ones, and a second size of every dynamic dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch

from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.parameters import user_values
from hatch_lower.pipeline.tensor_checks import path_text
from hatch_lower.runtime.torch_private import trees
from hatch_lower.runtime.torch_private.programs import order_kwargs
from hatch_lower.runtime.torch_private.symbols import int_oo

Sizes = Mapping[sympy.Symbol, int]


class InputCase(Frozen):
    name: str  # what an error calls it: `example inputs`, `random inputs, seed 1`, `batch = 3`
    args: tuple[object, ...]
    kwargs: dict[str, object]
    parameters: tuple[str, ...]  # the names of `args`

    def named(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        return {**dict(zip(self.parameters, args, strict=True)), **kwargs}

    def leaves(self) -> list[object]:
        return trees.tree_leaves((self.args, self.kwargs))

    def copied(self) -> tuple[tuple[object, ...], dict[str, object]]:
        # a method may change its inputs, and their strides decide what some operators do
        args, kwargs = trees.tree_map_only(torch.Tensor, copied_tensor, (self.args, self.kwargs))
        return args, kwargs


def copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    span = torch.as_strided(tensor.detach(), (span_of(tensor.shape, tensor.stride()),), (1,))
    return span.clone().as_strided(tensor.shape, tensor.stride(), 0)


def span_of(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def example_case(method: CapturedMethod) -> InputCase:
    # keyword arguments in the order of the exported signature, in which the program's inputs are
    kwargs = dict(method.kwargs)
    if kwargs and method.program.call_spec.in_spec is not None:
        kwargs = order_kwargs(kwargs, method.program.call_spec.in_spec)
    return InputCase("example inputs", method.args, kwargs, method.parameters)


def case_of(method: CapturedMethod, name: str, leaves: list[object]) -> InputCase:
    args, kwargs = trees.tree_unflatten(leaves, method.program.call_spec.in_spec)
    return InputCase(name, args, kwargs, method.parameters)


def random_case(method: CapturedMethod, seed: int) -> InputCase:
    return rebuilt_case(method, f"random inputs, seed {seed}", example_sizes(method), seed)


def resized_cases(method: CapturedMethod, seed: int) -> Iterator[tuple[str, list[InputCase]]]:
    """Yield each dynamic dimension's name and the inputs to try, the best first; none if its range has one size."""
    # Only that dimension differs from the example. A size that the model itself refuses (an odd one, say) is for the
    # caller to pass over.
    sizes = example_sizes(method)
    for symbol in sorted(sizes, key=str):
        name = dimension_label(method, symbol)
        value = sizes[symbol]
        low, high = size_range(method, symbol)
        candidates = dict.fromkeys((value + 1, value * 2, value - 1, value + 2, low))
        usable = [size for size in candidates if size != value and max(low, 1) <= size <= high]
        tries = [{**sizes, symbol: size} for size in usable if has_whole_sizes(method, {**sizes, symbol: size})]
        yield name, [rebuilt_case(method, f"{name} = {resized[symbol]}", resized, seed) for resized in tries[:3]]


def has_whole_sizes(method: CapturedMethod, sizes: Sizes) -> bool:
    # a derived dimension, such as half of another, has none for some of its sizes
    shapes: list[Any] = [value.shape for value in user_values(method.program) if isinstance(value, torch.Tensor)]
    numbers = [size.node.expr.subs(sizes) for shape in shapes for size in shape if isinstance(size, torch.SymInt)]
    return all(number.is_Integer and number >= 0 for number in numbers)


def example_sizes(method: CapturedMethod) -> dict[sympy.Symbol, int]:
    sizes: dict[sympy.Symbol, int] = {}
    for leaf, value in zip(example_case(method).leaves(), user_values(method.program), strict=True):
        pairs: list[tuple[object, object]] = []
        if isinstance(value, torch.SymInt):
            pairs = [(leaf, value)]
        elif isinstance(value, torch.Tensor) and isinstance(leaf, torch.Tensor):
            pairs = list(zip(leaf.shape, value.shape, strict=True))
        for number, size in pairs:
            if isinstance(size, torch.SymInt) and isinstance(number, int):
                note_size(size.node.expr, number, sizes)
    return sizes


def note_size(expression: sympy.Expr, number: int, sizes: dict[sympy.Symbol, int]) -> None:
    """Note what the only symbol of a size is, where `expression` has the value `number`."""
    symbols = sorted(expression.free_symbols, key=str)
    if len(symbols) != 1 or symbols[0] in sizes:
        return
    if expression.is_Symbol:
        sizes[expression] = number
        return
    solutions = [solution for solution in sympy.solve(sympy.Eq(expression, number), symbols[0]) if solution.is_Integer]
    if solutions:
        sizes[symbols[0]] = int(solutions[0])


def size_range(method: CapturedMethod, symbol: sympy.Symbol) -> tuple[int, int]:
    bounds = method.program.range_constraints.get(symbol)
    if bounds is None:
        return 0, 1 << 62
    high = bounds.upper
    return int(bounds.lower), 1 << 62 if high in (int_oo, sympy.oo) else int(high)


def dimension_label(method: CapturedMethod, symbol: sympy.Symbol) -> str:
    """Return `batch`, or `image.shape[0]` where the dimension has no name of its own."""
    if name := method.dimensions.get(str(symbol)):
        return name
    case = example_case(method)
    paths, _ = trees.tree_flatten_with_path(case.named(case.args, case.kwargs))
    for (path, _), value in zip(paths, user_values(method.program), strict=True):
        name = path_text(path)
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return name
        for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                return f"{name}.shape[{index}]"
    return str(symbol)


def rebuilt_case(method: CapturedMethod, name: str, sizes: Sizes, seed: int) -> InputCase:
    generator = torch.Generator().manual_seed(seed)
    pairs = zip(example_case(method).leaves(), user_values(method.program), strict=True)
    return case_of(method, name, [rebuilt_leaf(leaf, value, sizes, generator) for leaf, value in pairs])


def rebuilt_leaf(leaf: object, value: object, sizes: Sizes, generator: torch.Generator) -> object:
    if isinstance(value, torch.SymInt):
        return size_of(value, sizes)
    if not isinstance(leaf, torch.Tensor) or not isinstance(value, torch.Tensor):
        return leaf
    shape = tuple(size_of(size, sizes) for size in value.shape)
    changed = shape != tuple(leaf.shape)
    stride = tuple(size_of(step, sizes) for step in value.stride()) if changed else leaf.stride()
    return random_values(leaf, span_of(shape, stride), generator).as_strided(shape, stride)


def size_of(size: int | torch.SymInt, sizes: Sizes) -> int:
    if isinstance(size, int):
        return size
    return int(size.node.expr.subs(sizes))


def random_values(example: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    # floats from a standard normal distribution; integers from the example's own values, so that indices stay valid
    if example.dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    if example.dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(example.dtype)
    if example.dtype.is_complex:
        return torch.randn(count, generator=generator, dtype=torch.complex64).to(example.dtype)
    pool = example.detach().reshape(-1)
    if pool.numel() == 0:
        return torch.zeros(count, dtype=example.dtype)
    return pool[torch.randint(0, pool.numel(), (count,), generator=generator)]
