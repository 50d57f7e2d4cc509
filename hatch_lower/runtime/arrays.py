"""The interface over a program's array library, torch or NumPy.

This module imports neither library; `find_arrays` imports the library that a model is loaded for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.arguments import Special, TensorInput
from hatch_lower.format.constants import Constant, Storage
from hatch_lower.format.graph import Graph
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.names import CodeNames

if TYPE_CHECKING:
    from hatch_lower.runtime.mapped import Stored

LIBRARIES = ("torch", "numpy")

Array: TypeAlias = Any  # a tensor of torch, or an array of NumPy


class ArrayOperator(Frozen):
    function: Callable[..., Any]
    may_alias: bool = False  # whether a result may share memory with an argument


class Arrays(ABC):
    """Operations on the arrays of a library on a device, and generated code for these operations. Has no state."""

    # defaults are for arrays that are plain memory, such as NumPy's

    name: ClassVar[str]
    noun: ClassVar[str]  # the library's word for an array, with its article
    kind: ClassVar[type[Array]]
    # code in place of operators that return sizes: attributes of the array are faster than the operator
    size_templates: ClassVar[Mapping[str, str]]

    # Memory

    def storing(self) -> AbstractContextManager[object]:
        """Return the context in which to make constants and write state."""
        return nullcontext()

    def __init__(self, device: str = "cpu", computes_on: str = "cpu") -> None:
        self.device = device  # of the program's arrays; `cuda:0` for tensors on a GPU
        self.computes_on = computes_on  # differs from `device` if engines copy arrays of the CPU to a GPU and back

    def on_device(self, device: str, computes_on: str) -> Self:
        """Return the same library's arrays for a program on other devices; NumPy's arrays are on the CPU."""
        return self if (device, computes_on) == (self.device, self.computes_on) else type(self)(device, computes_on)

    def fresh(self, array: Array) -> Array:
        """Return a copy on the program's device of an array on the CPU."""
        return self.copy(array)

    def placed(self, array: Array) -> Array:
        """Return an array on the program's device, the given array if it is there."""
        return array

    def on_host(self, array: Array) -> Array:
        """Return an array on the CPU, the given array if it is there."""
        return array

    @abstractmethod
    def span(self, storage: Storage, content: memoryview) -> Array:
        """Return a storage on the CPU as a one-dimensional array over its bytes; the array keeps the bytes alive."""

    @abstractmethod
    def view(self, constant: Constant, spans: Mapping[int, Array]) -> Array:
        """Return a constant over the span of its storage. `read_plan` has checked its bounds."""

    @abstractmethod
    def stored(self, tensor: Stored, where: str) -> Array:
        """Return a tensor of a safetensors file over its bytes, on the CPU. Raises `ProgramError` for wrong sizes."""

    @abstractmethod
    def of_bytes(self, array: Array, dtype: str) -> Array:
        """Return an array of bytes as elements of `dtype`; the last dimension holds the bytes of an element."""

    @abstractmethod
    def restrided(self, array: Array, strides: tuple[int, ...]) -> Array:
        """Return the array, or a copy of it, with the given strides."""

    @abstractmethod
    def copy(self, array: Array) -> Array: ...

    @abstractmethod
    def assign(self, target: Array, source: Array) -> None: ...

    @abstractmethod
    def is_same(self, one: Array, other: Array) -> bool:
        """Return whether two spans, on any devices, have the same bits."""
        # comparing values would not do: NaN differs from itself

    @abstractmethod
    def rows(self, array: Array) -> Iterable[Array]:
        """Return the rows of an array, each contiguous."""

    @abstractmethod
    def stack(self, rows: Sequence[Array]) -> Array: ...

    @abstractmethod
    def permuted(self, array: Array, order: Sequence[int]) -> Array:
        """Return a view with the dimensions in the given order."""

    @abstractmethod
    def empty(self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Return an array without elements."""

    @abstractmethod
    def contiguous_copy(self, array: Array) -> Array: ...

    # Generated code

    @abstractmethod
    def operators(self, graph: Graph, where: str) -> Mapping[str, ArrayOperator]:
        """Return at least all operators that a graph calls, at any depth. Raises `LowerError` if one is unavailable."""

    @abstractmethod
    def special(self, value: Special) -> object:
        """Return the argument for a constant of torch, such as a dtype, in a call of an operator."""

    def opening_lines(self, call: str, names: CodeNames) -> list[str]:
        """Return the first lines of a method; `call` is code that calls the method again with the same arguments."""
        return []

    @abstractmethod
    def dtype_test(self, dtype: str, variable: str, names: CodeNames) -> str:
        """Return code that is true if an array's dtype differs from `dtype`."""

    def place_tests(self, variable: str, names: CodeNames) -> list[str]:
        """Return conditions; for an array that is not on the device or not strided, at least one is true."""
        return []

    def produced_tests(self, variable: str, names: CodeNames) -> list[str]:
        """Return conditions for an array that the program computed; off the device, at least one is true."""
        return []

    def guarded(self, lines: list[str], names: CodeNames) -> list[str]:
        """Return the lines of a method's body, with errors of the device as errors of hatch-lower."""
        return lines

    def clock(self) -> Callable[[], int]:
        """Return a clock in nanoseconds, which first waits for the device to finish its work."""
        return perf_counter_ns

    def memory_tests(self, dtype: str, variable: str) -> list[str]:
        """Return conditions; unless all elements of an array are in memory, at least one is true or raises."""
        # a true condition is not final: `memory_reason` decides
        return []

    def memory_reason(self, array: Array) -> str:
        """Return the reason why elements of an array are not in memory, or an empty string."""
        return ""

    def resolve_lines(self, dtype: str, variable: str, *, of_caller: bool, in_place: bool = False) -> list[str]:
        """Return lines that make the elements in memory equal to the array's values."""
        # `of_caller`: the array is an argument, of which only the values count; `in_place`: the array keeps its memory
        return []

    @abstractmethod
    def layout_lines(
        self, entry: TensorInput, variable: str, strides: Sequence[str] | None, names: CodeNames
    ) -> list[str]:
        """Return lines that give an array the exported strides; without `strides`, contiguous ones."""

    # Values

    @abstractmethod
    def plain(self, value: object) -> Array | None:
        """Convert a value to an array whose class is exactly `kind`, over the same memory; `None` if impossible."""

    @abstractmethod
    def foreign_reason(self, value: object) -> str:
        """Return the reason why `plain` returns `None`."""

    @abstractmethod
    def dtype_name(self, array: Array) -> str: ...

    @abstractmethod
    def kind_mismatch(self, entry: TensorInput, array: Array) -> str:
        """Return the mismatch of an array's device or dtype, or an empty string."""

    @abstractmethod
    def layout_mismatch(self, array: Array, strides: tuple[int, ...]) -> str:
        """Return the reason why an array that keeps its memory does not fit `strides`, or an empty string."""

    def is_special(self, value: object, wanted: Special) -> bool:
        return False  # a program that takes one of torch's constants needs torch

    @abstractmethod
    def conversion_hint(self, value: object, name: str) -> str:
        """Return a hint for an argument that is no array or on another device; `name` is the input's."""

    def device_of(self, array: Array) -> str:
        return "cpu"

    @abstractmethod
    def strides(self, array: Array) -> tuple[int, ...]:
        """Return an array's strides in elements."""

    @abstractmethod
    def clone_strides(self, shape: Sequence[int], strides: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides of a clone of an array with the given shape and strides."""

    def describe(self, value: object) -> str:
        if not isinstance(value, self.kind):
            return f"{value!r:.80}" if isinstance(value, bool | int | float | str | None) else type(value).__name__
        array: Array = value
        return f"{self.dtype_name(array)}[{', '.join(str(size) for size in array.shape)}]"


def same_layout(shape: Sequence[int], found: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether strides are the same, ignoring dimensions of size 1. Arrays without elements are the same."""
    if found == strides or 0 in shape:
        return True
    return all(size == 1 or left == right for size, left, right in zip(shape, found, strides, strict=True))


def several_values(found: str, repeated: Sequence[int]) -> InputError:
    return InputError(
        "a tensor was exported with a single value repeated along a dimension, but now holds several values there",
        found=f"{found}, dimension {', '.join(map(str, repeated))}",
        hint="export the method with an example input that was not expanded",
    )


def is_library_installed(library: str) -> bool:
    if sys.modules.get(library) is not None:
        return True
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):  # for example hidden with `sys.modules[library] = None`
        return False


def find_arrays(name: str | None = None) -> Arrays:
    """Return the arrays of an installed library; by default torch, or NumPy if torch is not installed."""
    if name is None:
        name = "torch" if is_library_installed("torch") else "numpy"
    if name not in LIBRARIES:
        raise InputError(
            '`arrays` is "torch" or "numpy"',
            found=f"{name!r:.40}",
            hint="omit `arrays`: then models take and return tensors if torch is installed, else NumPy's arrays",
        )
    if not is_library_installed(name):
        raise ProgramError(
            f"a model takes and returns arrays of {name} here, which is not installed",
            found="neither torch nor NumPy" if not any(map(is_library_installed, LIBRARIES)) else f"no module `{name}`",
            hint=f"install {name}" + (', or load the model with `arrays="numpy"`' if name == "torch" else ""),
        )
    arrays: Arrays = importlib.import_module(f"hatch_lower.runtime.{name}_arrays").ARRAYS
    return arrays
