"""The library of a program's arrays, torch or NumPy: what differs between them is behind one interface.

Neither is imported here. `find_arrays` imports the one that a model is loaded for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.arguments import Special
from hatch_lower.format.constants import Constant, Storage
from hatch_lower.format.graph import Graph
from hatch_lower.format.inputs import TensorInput
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.names import Names

if TYPE_CHECKING:
    from hatch_lower.runtime.mapped import Stored

LIBRARIES = ("torch", "numpy")

Array: TypeAlias = Any  # a tensor of torch, or an array of NumPy


class Operator(Frozen):
    function: Callable[..., Any]
    may_alias: bool = False  # whether what it returns may share memory with its arguments


class Arrays(ABC):
    """What is done with the arrays of one library, or written about them into generated code; it has no state."""

    # what is not abstract is so for arrays that are no more than memory, as NumPy's

    name: ClassVar[str]
    noun: ClassVar[str]  # what people call one, with its article
    kind: ClassVar[type[Array]]
    # code for operators that ask for sizes: the array itself answers faster than the operator
    size_templates: ClassVar[Mapping[str, str]]

    # Memory

    def storing(self) -> AbstractContextManager[object]:
        """Return the context in which constants are made and state is written."""
        return nullcontext()

    @abstractmethod
    def span(self, storage: Storage, content: memoryview) -> Array:
        """Return a storage of one dimension over its bytes, which live as long as the array."""

    @abstractmethod
    def view(self, constant: Constant, spans: Mapping[int, Array]) -> Array:
        """Return a constant over the span of its storage; its bounds were checked when the plan was read."""

    @abstractmethod
    def stored(self, tensor: Stored, where: str) -> Array:
        """Return a tensor of a safetensors file over its bytes; sizes that no array has are refused."""

    @abstractmethod
    def of_bytes(self, array: Array, dtype: str) -> Array:
        """Return the elements of which the last dimension of an array has the bytes."""

    @abstractmethod
    def restrided(self, array: Array, strides: tuple[int, ...]) -> Array:
        """Return an array, or a copy, of these strides."""

    @abstractmethod
    def copy(self, array: Array) -> Array: ...

    @abstractmethod
    def assign(self, target: Array, source: Array) -> None: ...

    @abstractmethod
    def is_same(self, one: Array, other: Array) -> bool:
        """Return whether two spans are equal bit by bit, for NaN is not equal to itself."""

    @abstractmethod
    def rows(self, array: Array) -> Iterable[Array]:
        """Return the rows of an array, each of them contiguous."""

    @abstractmethod
    def stack(self, rows: Sequence[Array]) -> Array: ...

    @abstractmethod
    def permuted(self, array: Array, order: Sequence[int]) -> Array:
        """Return a view in which the dimensions are in this order."""

    @abstractmethod
    def empty(self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Return an array without elements."""

    @abstractmethod
    def contiguous_copy(self, array: Array) -> Array: ...

    # Generated code

    @abstractmethod
    def operators(self, graph: Graph, where: str) -> Mapping[str, Operator]:
        """Return at least the operators that a graph calls, at any depth; those that are not to be had are refused."""

    @abstractmethod
    def special(self, value: Special) -> object:
        """Return what stands for one of torch's own constants in a call of an operator."""

    def opening_lines(self, call: str, names: Names) -> list[str]:
        """Return what a method begins with; `call` is a call of it with the same arguments."""
        return []

    @abstractmethod
    def dtype_test(self, dtype: str, variable: str, names: Names) -> str:
        """Return the code that is true for an array of another dtype."""

    def place_tests(self, variable: str, names: Names) -> list[str]:
        """Return pieces of code; one of them is true for an array that is not on the CPU, or not strided."""
        return []

    def memory_tests(self, dtype: str, variable: str) -> list[str]:
        """Return pieces of code; one is true, or raises, unless all elements of an array are in memory."""
        # where one is true, `memory_reason` decides
        return []

    def memory_reason(self, array: Array) -> str:
        """Return why not all elements of an array are in memory, or an empty string."""
        return ""

    def resolve_lines(self, dtype: str, variable: str, *, of_caller: bool, in_place: bool = False) -> list[str]:
        """Return the lines after which the elements in memory are an array's values."""
        # `of_caller`: it is an argument, of which nothing but the values counts; `in_place`: it has to keep its memory
        return []

    @abstractmethod
    def layout_lines(self, entry: TensorInput, variable: str, strides: Sequence[str] | None, names: Names) -> list[str]:
        """Return the lines that lay out an array as it was exported; without `strides` contiguous."""

    # Values

    @abstractmethod
    def plain(self, value: object) -> Array | None:
        """Return a value as an array of just `kind`, over the same memory; `None` if it cannot be one."""

    @abstractmethod
    def foreign_reason(self, value: object) -> str:
        """Return why `plain` returns `None`."""

    @abstractmethod
    def dtype_name(self, array: Array) -> str: ...

    @abstractmethod
    def kind_mismatch(self, entry: TensorInput, array: Array) -> str:
        """Return what is wrong with where an array lies and of what dtype it is, or an empty string."""

    @abstractmethod
    def layout_mismatch(self, array: Array, strides: tuple[int, ...]) -> str:
        """Return why an array that keeps its memory is not one of these strides, or an empty string."""

    def is_special(self, value: object, wanted: Special) -> bool:
        return False  # a program that takes one of torch's constants needs torch

    @abstractmethod
    def conversion_hint(self, value: object) -> str:
        """Return what to do about an argument that is no array, or an empty string."""

    def device(self, array: Array) -> str:
        return "cpu"

    @abstractmethod
    def strides(self, array: Array) -> tuple[int, ...]:
        """Return an array's strides in elements."""

    @abstractmethod
    def clone_strides(self, shape: Sequence[int], strides: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides of a clone of an array of these."""

    def describe(self, value: object) -> str:
        if not isinstance(value, self.kind):
            return f"{value!r:.80}" if isinstance(value, bool | int | float | str | None) else type(value).__name__
        array: Array = value
        return f"{self.dtype_name(array)}[{', '.join(str(size) for size in array.shape)}]"


def same_layout(shape: Sequence[int], found: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether strides are the same, but for dimensions of size 1 and arrays without elements."""
    if found == strides or 0 in shape:
        return True
    return all(size == 1 or left == right for size, left, right in zip(shape, found, strides, strict=True))


def several_values(found: str, repeated: Sequence[int]) -> InputError:
    return InputError(
        "a tensor was exported as one value repeated along a dimension, and now holds several there",
        found=f"{found}, dimension {', '.join(map(str, repeated))}",
        hint="export the method with an example input that was not expanded",
    )


def is_installed(library: str) -> bool:
    if sys.modules.get(library) is not None:
        return True
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):  # somebody has hidden it
        return False


def find_arrays(name: str | None = None) -> Arrays:
    """Return the arrays of a library that is installed; of torch, else of NumPy, if none is named."""
    if name is None:
        name = "torch" if is_installed("torch") else "numpy"
    if name not in LIBRARIES:
        raise InputError(
            '`arrays` is "torch" or "numpy"',
            found=f"{name!r:.40}",
            hint="leave it out: then models take and return tensors where torch is installed, else NumPy's arrays",
        )
    if not is_installed(name):
        raise ProgramError(
            f"a model takes and returns arrays of {name} here, which is not installed",
            found="neither torch nor NumPy" if not any(map(is_installed, LIBRARIES)) else f"no module `{name}`",
            hint=f"install {name}" + (', or load the model with `arrays="numpy"`' if name == "torch" else ""),
        )
    arrays: Arrays = importlib.import_module(f"hatch_lower.runtime.{name}_arrays").ARRAYS
    return arrays
