"""NumPy's arrays as the arrays of a program, and NumPy dtypes for the dtypes of a plan. Dtypes that NumPy lacks come
from `ml_dtypes`, if installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hatch_lower.errors import ProgramError
from hatch_lower.format.arguments import Special, TensorInput, is_contiguous
from hatch_lower.format.codec import refuse_damaged_file
from hatch_lower.format.constants import Constant, Storage
from hatch_lower.format.graph import Graph
from hatch_lower.format.values import DTYPES
from hatch_lower.runtime.arrays import ArrayOperator, Arrays, same_layout, several_values
from hatch_lower.runtime.mapped import Stored
from hatch_lower.runtime.names import CodeNames, tuple_code
from hatch_lower.runtime.numpy_operators import NUMPY_OPERATORS, copy_in_order, dense_order, runs_on_numpy
from hatch_lower.runtime.operators import calls_in

DType = np.dtype[Any]
OTHERS = frozenset(name for name in DTYPES if name == "bfloat16" or name.startswith("float8"))  # in `ml_dtypes`


def is_common(name: str) -> bool:
    return name not in OTHERS and name != "complex32"


def element_dtype(name: str) -> DType:
    """Return the NumPy dtype for elements of a plan's dtype; raw bytes if unavailable."""
    found = known_dtype(name)
    return np.dtype(f"V{DTYPES[name].size}") if found is None else found


def border_dtype(name: str) -> DType:
    """Return the NumPy dtype for a method's arguments. Raises `ProgramError` if unavailable."""
    found = known_dtype(name)
    if found is None and name not in OTHERS:
        raise ProgramError(
            f"the program takes {name}, which NumPy does not have", hint='load the model with `arrays="torch"`'
        )
    if found is None:
        raise ProgramError(
            f"the program takes {name}, which NumPy has from the package `ml_dtypes`",
            found="`ml_dtypes` is not installed, or too old",
            hint='run `pip install ml_dtypes`, or load the model with `arrays="torch"`',
        )
    return found


def known_dtype(name: str) -> DType | None:
    if is_common(name):
        return np.dtype(name)
    try:
        kind = getattr(importlib.import_module("ml_dtypes"), name, None) if name in OTHERS else None
    except ImportError:
        return None
    return None if kind is None else np.dtype(kind)


def is_bfloat16(array: np.ndarray[Any, Any]) -> bool:
    """Return whether a delegate's array is bfloat16, as the dtype of `ml_dtypes` or as raw bytes."""
    dtype: DType = array.dtype
    return bool(dtype.kind == "V" and dtype.itemsize == 2)


Array = np.ndarray[Any, Any]
CPU = 1  # DLPack's number of the device
VIEWS = {1: "uint8", 2: "int16"}  # by element size, for tensors whose dtype NumPy lacks


class NumpyArrays(Arrays):
    name = "numpy"
    noun = "an array"
    kind: ClassVar[type[Any]] = np.ndarray
    size_templates: ClassVar[Mapping[str, str]] = {
        "aten.sym_numel.default": "{0}.size",
        "aten.sym_size.int": "{0}.shape[{1}]",
    }

    # Memory

    def span(self, storage: Storage, content: memoryview) -> Array:
        # bytes, because `view` sets the dtype
        return np.frombuffer(content, np.uint8)

    def view(self, constant: Constant, spans: Mapping[int, Any]) -> Array:
        dtype = element_dtype(constant.dtype)
        steps = [step * dtype.itemsize for step in constant.stride]
        span: Array = spans[constant.storage]
        try:
            viewed: Array = np.ndarray(constant.shape, dtype, span.data, constant.offset * dtype.itemsize, steps)
        except (OverflowError, TypeError, ValueError) as error:
            refuse_damaged_file(
                f"a constant of {constant.dtype}{list(constant.shape)}"[:120], f"refused by NumPy: {error}"
            )
        return viewed

    def stored(self, tensor: Stored, where: str) -> Array:
        try:
            array: Array = np.ndarray(tensor.shape, element_dtype(tensor.dtype), tensor.content)
        except (TypeError, ValueError) as error:
            refuse_damaged_file(where, f"impossible sizes ({error})")
        return array

    def of_bytes(self, array: Array, dtype: str) -> Array:
        elements: Array = array.copy(order="C").view(element_dtype(dtype))[..., 0]
        return elements

    def restrided(self, array: Array, strides: tuple[int, ...]) -> Array:
        return restride_array(array, tuple(step * array.itemsize for step in strides))

    def copy(self, array: Array) -> Array:
        return copy_in_order(array, dense_order(array))

    def assign(self, target: Array, source: Array) -> None:
        target[...] = source

    def is_same(self, one: Array, other: Array) -> bool:
        return np.array_equal(one, other)  # spans are bytes, so equal values are equal bits

    def empty(self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        return np.empty(shape, border_dtype(dtype))

    def rows(self, array: Array) -> Iterable[Array]:
        # with the ellipsis, NumPy returns 0-d arrays instead of scalars
        return (make_contiguous(array[index, ...]) for index in range(len(array)))

    def stack(self, rows: Sequence[Array]) -> Array:
        return make_contiguous(np.stack(rows))

    def permuted(self, array: Array, order: Sequence[int]) -> Array:
        view: Array = array.transpose(order)
        return view

    def contiguous_copy(self, array: Array) -> Array:
        copy: Array = array.copy(order="C")
        return copy

    # Generated code

    def operators(self, graph: Graph, where: str) -> Mapping[str, ArrayOperator]:
        missing = next((call.op for call in calls_in(graph) if not runs_on_numpy(call)), None)
        if missing is not None:
            raise ProgramError(
                "the program needs torch for operators between its partitions",
                where=where,
                found=f"a call of `{missing}`",
                hint='install torch and load the model with `arrays="torch"`, or load another recipe',
            )
        return NUMPY_OPERATORS

    def special(self, value: Special) -> object:
        return element_dtype(value.name) if value.kind == "dtype" else value

    def dtype_test(self, dtype: str, variable: str, names: CodeNames) -> str:
        # not `is`: equal dtypes may be different objects
        return f"{variable}.dtype != {names.bind(dtype, border_dtype(dtype), ('dtype', dtype))}"

    def layout_lines(
        self, entry: TensorInput, variable: str, strides: Sequence[str] | None, names: CodeNames
    ) -> list[str]:
        if strides is None:
            bound = names.bind("contiguous", make_contiguous, make_contiguous)
            return [f"if not {variable}.flags.carray: {variable} = {bound}({variable})"]
        size = border_dtype(entry.dtype).itemsize
        wanted = tuple_code([f"{stride}*{size}" for stride in strides])
        # `carray` is false also for read-only memory, which `restride_array` accepts
        wrong = f"{variable}.strides != {wanted} or not {variable}.flags.aligned"
        if is_contiguous(entry):
            wrong = f"not {variable}.flags.carray"
        return [f"if {wrong}: {variable} = {names.bind('restride', restride_array, 'restride')}({variable}, {wanted})"]

    # Values

    def plain(self, value: object) -> Array | None:
        if isinstance(value, np.ndarray):
            # masked values count as missing
            return None if isinstance(value, np.ma.MaskedArray) else value.view(np.ndarray)
        if isinstance(value, np.generic):
            found = np.asarray(value)
            found.flags.writeable = False  # a copy: writes would be lost
            return found
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return of_tensor(torch, value)
        return of_dlpack(value)

    def foreign_reason(self, value: object) -> str:
        if isinstance(value, np.ma.MaskedArray):
            return "an array of which some values are masked"
        if hasattr(value, "__dlpack__"):
            return "a tensor that NumPy cannot read: only dense tensors on the CPU with a dtype of NumPy are possible"
        return "not an array"

    def dtype_name(self, array: Array) -> str:
        return str(array.dtype)

    def kind_mismatch(self, entry: TensorInput, array: Array) -> str:
        wanted = border_dtype(entry.dtype)
        if array.dtype == wanted:
            return ""
        if array.dtype == wanted.newbyteorder():
            return f"the byte order is another machine's: pass `array.astype({entry.dtype!r})`"
        return f"the dtype must be {entry.dtype}"

    def layout_mismatch(self, array: Array, strides: tuple[int, ...]) -> str:
        if not array.flags.writeable:
            return "read-only memory"
        if not array.flags.aligned:
            return f"memory that is not at a multiple of {array.dtype.alignment} bytes"
        found = self.strides(array)
        if same_layout(array.shape, found, strides):
            return ""
        return f"strides {list(found)}, which must be {list(strides)}"

    def conversion_hint(self, value: object, name: str) -> str:
        if not isinstance(value, list | tuple):
            return ""
        return 'pass `numpy.asarray(...)` with the right dtype; a tokenizer makes arrays with `return_tensors="np"`'

    def strides(self, array: Array) -> tuple[int, ...]:
        # -1 for a stride that is not a multiple of the element size, as of a field of records: it fits no layout
        size = array.itemsize
        return tuple(step // size if step % size == 0 else -1 for step in array.strides)

    def clone_strides(self, shape: Sequence[int], strides: tuple[int, ...]) -> tuple[int, ...]:
        order = dense_order(as_strided(np.empty(1, np.uint8), shape, strides))
        return copy_in_order(np.empty(shape, np.uint8), order).strides


ARRAYS = NumpyArrays()


def make_contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def restride_array(array: Array, steps: tuple[int, ...]) -> Array:
    """Return the array, or a copy, with strides of `steps` bytes."""
    if array.flags.aligned and same_layout(array.shape, array.strides, steps):
        return array
    repeated = [dim for dim, step in enumerate(steps) if step == 0 and array.shape[dim] > 1]
    narrow = array[tuple(slice(1) if dim in repeated else slice(None) for dim in range(array.ndim))]
    length = sum((size - 1) * step for size, step in zip(narrow.shape, steps, strict=True)) + array.itemsize
    copy = np.ndarray(narrow.shape, array.dtype, np.empty(length, np.uint8), 0, steps)
    copy[...] = narrow
    whole = as_strided(copy, array.shape, steps)
    # compared as bytes, because NaN differs from itself
    if repeated and whole.tobytes() != array.tobytes():
        raise several_values(ARRAYS.describe(array), repeated)
    return whole


# Arguments of other libraries: torch tensors and objects with DLPack. `None` if the memory is not on the CPU.


def of_tensor(torch: Any, tensor: Any) -> Array | None:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        dtype = None if is_common(name) else known_dtype(name)
        if dtype is not None:
            plain = plain.view(getattr(torch, VIEWS[plain.itemsize]))
        array: Array = plain.numpy()
        if tensor.is_conj() or tensor.is_neg():
            array.flags.writeable = False  # a copy: writes would be lost
        return array if dtype is None else array.view(dtype)
    except (RuntimeError, TypeError, KeyError):  # for subclasses without memory, and for unknown dtypes
        return None


def of_dlpack(value: Any) -> Array | None:
    try:
        if not hasattr(value, "__dlpack__") or value.__dlpack_device__()[0] != CPU:
            return None
        return np.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError, IndexError):
        return None
