"""Generated inputs with the example's specification: random values of several sizes, constants, integers at limits.

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

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import sympy
import torch

from hatch_lower.exir.graph.state import constant_placeholders, mutated_targets
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.graph.writes import written_into
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.input_sizes import MethodSizes, Sizes
from hatch_lower.pipeline.random_inputs import (
    InputCase,
    equal_values,
    example_case,
    has_nonzero,
    is_equal,
    is_integer,
    is_varied,
    limit_values,
    random_values,
    span_of,
    zero_values,
)
from hatch_lower.runtime.torch_private import trees

SMALLEST = "if the method is never called with this size, let the range begin later: `Dim(…, min=2)`"
Fill = Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]


class Generated(Frozen):
    """Inputs of the same kind, the best first: the first input that eager takes is compared."""

    what: str  # name in a note, if eager takes no input
    tries: tuple[InputCase, ...]
    apart: tuple[Generated, ...] = ()  # replacements for each dimension alone, if eager takes no input
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
        return self._of(name, [self._leaf(leaf, value, sizes, fill, generator) for leaf, value in pairs])

    def _of(self, name: str, leaves: list[object]) -> InputCase:
        args, kwargs = trees.tree_unflatten(leaves, self._spec)
        return InputCase(name, args, kwargs, self._method.parameters)

    @cached_property
    def _spec(self) -> Any:
        return self._method.program.call_spec.in_spec  # cached: the property builds a new spec each time

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
        return all(is_equal(leaf) for leaf in self.example.leaves())

    def sized(self) -> Iterator[Generated]:
        """Yield random inputs of other sizes than the example's."""
        sizes = self._sizes
        apart = tuple(self._near(symbol) for symbol in sizes.example)
        near = sizes.neighbour() if len(sizes.dynamic) > 1 else None
        if near is None:
            yield from apart
        else:
            case = self._sized(near, sizes.dynamic)
            yield Generated("other sizes", (case,), apart)
            yield from (each for each in apart if not each.tries)
        for changed, least in sizes.smallest():
            if sizes.is_whole(least):
                yield self._extra("the smallest size", least, changed, SMALLEST)
        for symbol, largest in sizes.largest():
            yield self._extra("a large size", largest, (symbol,))

    def _near(self, symbol: sympy.Symbol) -> Generated:
        sizes = self._sizes
        tries = [{**sizes.example, symbol: size} for size in sizes.near(symbol, 1)]
        cases = [self._sized(each, (symbol,)) for each in filter(sizes.is_whole, tries)]
        return Generated(f"a second size of `{sizes.label(symbol)}`", tuple(cases[:3]))

    def _extra(self, what: str, sizes: Sizes, symbols: tuple[sympy.Symbol, ...], cure: str = "") -> Generated:
        case = self._sized(sizes, symbols)
        return Generated(f"{what}, {case.name}", (case,), is_extra=True, cure=cure)

    def _sized(self, sizes: Sizes, symbols: tuple[sympy.Symbol, ...]) -> InputCase:
        return self.case(self._sizes.text(sizes, symbols), sizes, random_values)

    def constant(self, *, has_equal: bool) -> Iterator[Generated]:
        """Yield inputs that are all zeros, and all equal if `has_equal` is false."""
        sizes = self._sizes
        if not has_equal and not self._is_equal:
            yield Generated("equal numbers", (self.case("equal numbers", sizes.few, equal_values),), is_extra=True)
        if any(map(has_nonzero, self.example.leaves())):
            yield Generated("zeros", (self.case("zeros", sizes.least, zero_values),), is_extra=True)

    def limits(self) -> Iterator[Generated]:
        """Yield integers at the limits of their dtypes, if no size and no loop depends on data."""
        if any(map(is_integer, self.example.leaves())) and not depends_on_data(self._method):
            case = self.case("limits of integers", self._sizes.example, limit_values)
            yield Generated(case.name, (case,), is_extra=True)

    def needs_random(self) -> bool:
        """Return whether the example's numbers may hide a difference that random numbers show."""
        return not all(map(is_varied, self.example.leaves()))


def depends_on_data(method: CapturedMethod) -> bool:
    """Return whether a size or the length of a loop depends on data, so that a large integer makes the call huge."""
    return any(
        node.meta.get("unbacked_bindings") or node.target is torch.ops.higher_order.while_loop
        for node in all_nodes(method.program.graph_module)
    )
