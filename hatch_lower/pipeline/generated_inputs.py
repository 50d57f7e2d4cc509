"""Generated inputs with the example's specification, and the sizes on which a method is tried: random values of
several sizes, constants, integers at limits.

| inputs | values | sizes |
|---|---|---|
| near sizes in all dimensions at once, else in each dimension alone | random | the example's, each plus another step |
| the least sizes, then 0 in each dimension alone | random | at least 1; the other dimensions small |
| the largest size of each dimension within `LARGEST_ELEMENTS` | random | the other dimensions small |
| random inputs, if no other size was tried and the example is not random | random | the example's |
| equal numbers, zeros | constant | small; the example's where the method has fixed sizes |
| limits of integers, where an input has integers and no size depends on data | the limits | the example's |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import sympy
import torch

from hatch_lower.exir.graph.nodes import written_into
from hatch_lower.exir.graph.state import constant_placeholders, mutated_targets
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.module_checks import path_text
from hatch_lower.pipeline.parameters import user_input_values
from hatch_lower.pipeline.random_inputs import (
    InputCase,
    case_of,
    equal_values,
    example_case,
    has_equal_elements,
    has_nonzero,
    is_integer,
    is_varied,
    limit_values,
    random_values,
    span_of,
    zero_values,
)
from hatch_lower.runtime.torch_private import tensors
from hatch_lower.runtime.torch_private.symbols import int_oo

Sizes = Mapping[sympy.Symbol, int]

# Limit of elements that a method takes and computes at a large size; at least half the example's number is allowed
LARGEST_ELEMENTS = 1 << 14
FEW = 2  # rows of a small input: on a single row many operations do not compute anything
UNBOUNDED = 1 << 62


class MethodSizes:
    """The symbols of a method's inputs, and the sizes that follow from the symbols' values."""

    def __init__(self, method: CapturedMethod, example: Mapping[str, object]) -> None:
        self.method = method
        paths, _ = tensors.tree_flatten_with_path(example)
        self.paths = [path_text(path) for path, _ in paths]
        self.leaves = [leaf for _, leaf in paths]
        self.values = user_input_values(method.program)
        self.example = self._example()
        self.ranges = {symbol: self._range(symbol) for symbol in self.example}

    def _example(self) -> dict[sympy.Symbol, int]:
        sizes: dict[sympy.Symbol, int] = {}
        for leaf, value in zip(self.leaves, self.values, strict=True):
            pairs: list[tuple[object, object]] = []
            if isinstance(value, torch.SymInt):
                pairs = [(leaf, value)]
            elif isinstance(value, torch.Tensor) and isinstance(leaf, torch.Tensor):
                pairs = list(zip(leaf.shape, value.shape, strict=True))
            for number, size in pairs:
                if isinstance(size, torch.SymInt) and isinstance(number, int):
                    note_size(size.node.expr, number, sizes)
        return sizes

    def _range(self, symbol: sympy.Symbol) -> tuple[int, int]:
        bounds = self.method.program.range_constraints.get(symbol)
        if bounds is None:
            return 0, UNBOUNDED
        high = bounds.upper
        return int(bounds.lower), UNBOUNDED if high in (int_oo, sympy.oo) else int(high)

    @cached_property
    def dynamic(self) -> tuple[sympy.Symbol, ...]:
        """The symbols with several values."""
        return tuple(symbol for symbol, (low, high) in self.ranges.items() if low < high)

    def label(self, symbol: sympy.Symbol) -> str:
        """Return a dimension's name, for example `batch`, or `image.shape[0]` if the dimension has no name."""
        if name := self.method.dimensions.get(str(symbol)):
            return name
        for name, value in zip(self.paths, self.values, strict=True):
            if isinstance(value, torch.SymInt) and value.node.expr == symbol:
                return name
            for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                    return f"{name}.shape[{index}]"
        return str(symbol)

    def text(self, sizes: Sizes, symbols: Iterable[sympy.Symbol]) -> str:
        """Format sizes, for example `batch = 3 and length = 34`."""
        return " and ".join(f"{self.label(symbol)} = {sizes[symbol]}" for symbol in symbols)

    def is_whole(self, sizes: Sizes) -> bool:
        """Return whether all derived sizes are whole numbers; half of an odd size is not."""
        numbers = [expression.subs(sizes) for expression in self._compound]
        return all(number.is_Integer and number >= 0 for number in numbers)

    @cached_property
    def _compound(self) -> tuple[sympy.Expr, ...]:
        shapes: list[Any] = [value.shape for value in self.values if isinstance(value, torch.Tensor)]
        sizes = [size.node.expr for shape in shapes for size in shape if isinstance(size, torch.SymInt)]
        return tuple(dict.fromkeys(size for size in sizes if not size.is_Symbol))

    def of(self, size: int | torch.SymInt, sizes: Sizes) -> int:
        return size if isinstance(size, int) else size_value(size.node.expr, sizes)

    def near(self, symbol: sympy.Symbol, step: int) -> list[int]:
        """Return the sizes of a dimension near the example's, the best first."""
        value, (low, high) = self.example[symbol], self.ranges[symbol]
        candidates = dict.fromkeys((value + step, value + 1, value * 2, value - 1, value + 2, low))
        return [size for size in candidates if size != value and max(low, 1) <= size <= high]

    def neighbour(self) -> Sizes | None:
        """Return near sizes for all dimensions, each changed by another step, so that all ratios of sizes change."""
        sizes = dict(self.example)
        for step, symbol in enumerate(self.dynamic, 1):
            tries = ({**sizes, symbol: size} for size in self.near(symbol, step))
            found = next(filter(self.is_whole, tries), None)
            if found is None:
                return None
            sizes = found
        return sizes

    @cached_property
    def few(self) -> Sizes:
        """Sizes of at least 1, mostly 2, for a cheap call."""
        return {
            symbol: value if symbol not in self.dynamic else max(self.ranges[symbol][0], min(value, FEW))
            for symbol, value in self.example.items()
        }

    @cached_property
    def least(self) -> Sizes:
        """The least sizes of at least 1."""
        least = {symbol: max(self.ranges[symbol][0], 1) for symbol in self.dynamic}
        return {**self.example, **least}

    def smallest(self) -> Iterator[tuple[tuple[sympy.Symbol, ...], Sizes]]:
        """Yield the least sizes of at least 1, then 0 in each dimension alone, with the dimensions that differ."""
        changed = tuple(symbol for symbol in self.dynamic if self.least[symbol] != self.example[symbol])
        if changed:
            yield changed, self.least
        for symbol in self.dynamic:
            if self.ranges[symbol][0] == 0 and self.example[symbol] != 0:
                yield (symbol,), {**self.few, symbol: 0}

    def largest(self) -> Iterator[tuple[sympy.Symbol, Sizes]]:
        """Yield each dimension's largest size within the limit of elements, with small sizes in other dimensions."""
        limit = max(LARGEST_ELEMENTS, self._elements(self.example) // 2)
        for symbol in self.dynamic:
            least, high = self.example[symbol], self.ranges[symbol][1]
            size = high
            while size > least and (count := self._elements({**self.few, symbol: size})) > limit:
                size = min(size - 1, size * limit // count)
            for candidate in range(size, max(least, size - 4), -1):
                if self.is_whole(sizes := {**self.few, symbol: candidate}):
                    yield symbol, sizes
                    break

    def _elements(self, sizes: Sizes) -> int:
        known = {expression: max(size_value(expression, sizes), 1) for expression in self._symbolic}
        return sum(
            count * factor * math.prod(known[expression] for expression in symbolic)
            for (factor, symbolic), count in self._shapes.items()
        )

    @cached_property
    def _shapes(self) -> Counter[tuple[int, tuple[sympy.Expr, ...]]]:
        # for all values: the product of the fixed sizes, the symbolic sizes, and the number of values with both
        computed = [
            leaf
            for node in self.method.program.graph.nodes
            if node.op == "call_function"
            for leaf in tensors.tree_leaves(node.meta.get("val"))
        ]
        shapes: Counter[tuple[int, tuple[sympy.Expr, ...]]] = Counter()
        for value in (*self.values, *computed):
            if isinstance(value, torch.Tensor):
                fixed = [size for size in value.shape if isinstance(size, int)]
                symbolic: list[Any] = [size for size in value.shape if not isinstance(size, int)]
                shapes[math.prod(fixed), tuple(size.node.expr for size in symbolic)] += 1
        return shapes

    @cached_property
    def _symbolic(self) -> frozenset[sympy.Expr]:
        return frozenset(expression for _, symbolic in self._shapes for expression in symbolic)


def size_value(expression: sympy.Expr, sizes: Sizes) -> int:
    """Return the value of a size; 1 for a size that depends on data."""
    if expression.is_Symbol:
        return sizes.get(expression, 1)
    number = expression.subs(sizes)
    return int(number) if number.is_Integer else 1


def note_size(expression: sympy.Expr, number: int, sizes: dict[sympy.Symbol, int]) -> None:
    """Solve `expression == number` for the expression's only symbol, and note the symbol's value."""
    symbols = sorted(expression.free_symbols, key=str)
    if len(symbols) != 1 or symbols[0] in sizes:
        return
    if expression.is_Symbol:
        sizes[expression] = number
        return
    solutions = [solution for solution in sympy.solve(sympy.Eq(expression, number), symbols[0]) if solution.is_Integer]
    if solutions:
        sizes[symbols[0]] = int(solutions[0])


SMALLEST = "if the method is never called with this size, let the range begin later: `Dim(…, min=2)`"
Fill = Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]


class GeneratedInputs(Frozen):
    """Inputs of the same kind, the best first: the first input that eager takes is compared."""

    what: str  # name in a note, if eager takes no input
    tries: tuple[InputCase, ...]
    apart: tuple[GeneratedInputs, ...] = ()  # replacements for each dimension alone, if eager takes no input
    is_extra: bool = False  # values or sizes that are rare in calls
    cure: str = ""  # declaration that leaves these inputs out


class InputMaker:
    """Makes a method's inputs."""

    def __init__(self, method: CapturedMethod, seed: int = 1) -> None:
        self._method = method
        self._seed = seed
        self.example = example_case(method)
        named = self.example.named(self.example.args, self.example.kwargs)
        self._sizes = MethodSizes(method, named)

    def case(self, name: str, sizes: Sizes, fill: Fill) -> InputCase:
        generator = torch.Generator().manual_seed(self._seed)
        pairs = zip(self.example.leaves(), self._sizes.values, strict=True)
        leaves = [self._leaf(leaf, value, sizes, fill, generator) for leaf, value in pairs]
        return case_of(self._method, name, leaves)

    def _leaf(self, leaf: object, value: object, sizes: Sizes, fill: Fill, generator: torch.Generator) -> object:
        if isinstance(value, torch.SymInt):
            return self._sizes.of(value, sizes)
        if not isinstance(leaf, torch.Tensor) or not isinstance(value, torch.Tensor):
            return leaf
        shape = tuple(self._sizes.of(size, sizes) for size in value.shape)
        changed = shape != tuple(leaf.shape)
        stride = tuple(self._sizes.of(step, sizes) for step in value.stride()) if changed else leaf.stride()
        return fill(leaf, span_of(shape, stride), generator).as_strided(shape, stride)

    def random(self) -> InputCase:
        return self.case(f"random inputs, seed {self._seed}", self._sizes.example, random_values)

    def second(self) -> InputCase | None:
        """Return inputs for a second call instead of the example; `None` if the comparison must cover state."""
        program = self._method.program
        state = written_into(program.graph_module) & constant_placeholders(program).keys()
        if self._is_equal or state or mutated_targets(program):
            return None
        return self.case("equal numbers", self._sizes.example, equal_values)

    @cached_property
    def _is_equal(self) -> bool:
        return all(has_equal_elements(leaf) for leaf in self.example.leaves())

    def sized(self) -> Iterator[GeneratedInputs]:
        """Yield random inputs of other sizes than the example's."""
        sizes = self._sizes
        apart = tuple(self._near(symbol) for symbol in sizes.example)
        near = sizes.neighbour() if len(sizes.dynamic) > 1 else None
        if near is None:
            yield from apart
        else:
            case = self._sized(near, sizes.dynamic)
            yield GeneratedInputs("other sizes", (case,), apart)
            yield from (each for each in apart if not each.tries)
        for changed, least in sizes.smallest():
            if sizes.is_whole(least):
                yield self._extra("the smallest size", least, changed, SMALLEST)
        for symbol, largest in sizes.largest():
            yield self._extra("a large size", largest, (symbol,))

    def _near(self, symbol: sympy.Symbol) -> GeneratedInputs:
        sizes = self._sizes
        tries = [{**sizes.example, symbol: size} for size in sizes.near(symbol, 1)]
        cases = [self._sized(each, (symbol,)) for each in filter(sizes.is_whole, tries)]
        return GeneratedInputs(f"a second size of `{sizes.label(symbol)}`", tuple(cases[:3]))

    def _extra(self, what: str, sizes: Sizes, symbols: tuple[sympy.Symbol, ...], cure: str = "") -> GeneratedInputs:
        case = self._sized(sizes, symbols)
        return GeneratedInputs(f"{what}, {case.name}", (case,), is_extra=True, cure=cure)

    def _sized(self, sizes: Sizes, symbols: tuple[sympy.Symbol, ...]) -> InputCase:
        return self.case(self._sizes.text(sizes, symbols), sizes, random_values)

    def constant(self, *, has_equal: bool) -> Iterator[GeneratedInputs]:
        """Yield inputs that are all zeros, and all equal if `has_equal` is false."""
        sizes = self._sizes
        if not has_equal and not self._is_equal:
            yield GeneratedInputs(
                "equal numbers", (self.case("equal numbers", sizes.few, equal_values),), is_extra=True
            )
        if any(map(has_nonzero, self.example.leaves())):
            yield GeneratedInputs("zeros", (self.case("zeros", sizes.least, zero_values),), is_extra=True)

    def limits(self) -> Iterator[GeneratedInputs]:
        """Yield integers at the limits of their dtypes, if no size and no loop depends on data."""
        if any(map(is_integer, self.example.leaves())) and not depends_on_data(self._method):
            case = self.case("limits of integers", self._sizes.example, limit_values)
            yield GeneratedInputs(case.name, (case,), is_extra=True)

    def needs_random(self) -> bool:
        """Return whether the example's numbers may hide a difference that random numbers show."""
        return not all(map(is_varied, self.example.leaves()))


def depends_on_data(method: CapturedMethod) -> bool:
    """Return whether a size or the length of a loop depends on data, so that a large integer makes the call huge."""
    return any(
        node.meta.get("unbacked_bindings") or node.target is torch.ops.higher_order.while_loop
        for node in all_nodes(method.program.graph_module)
    )
