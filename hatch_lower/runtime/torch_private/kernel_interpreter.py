"""Triton's interpreter, for kernels that inductor generates: a program of a kernel after the other, with NumPy.

Triton reads `TRITON_INTERPRET` once, while it is imported, so a process either compiles kernels or interprets kernels.
The interpreter of Triton lacks the functions of NVIDIA's libdevice, rounds bfloat16 toward zero, and reduces an array
element by element: these parts are replaced.
"""

from __future__ import annotations

import ctypes
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hatch_lower.runtime.torch_private.kernel_texts import KernelText

C_TYPES: Mapping[str, Any] = {
    "i1": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}


class KernelArrays:
    """The memory that kernels may read and write: the first byte of each array, and the byte after its last."""

    def __init__(self, extents: Sequence[tuple[int, int]]) -> None:
        self.extents = extents

    def refuse_outside(self, addresses: Any, mask: Any, size: int) -> None:
        addresses, mask = np.broadcast_arrays(addresses, mask)
        used = addresses[mask]
        inside = np.zeros(used.shape, dtype=bool)
        for first, end in self.extents:
            inside |= (used >= first) & (used + np.uint64(size) <= end)
        if not inside.all():
            address = int(used[~inside][0])
            near = min((first for first, _ in self.extents), key=lambda first: abs(address - first), default=0)
            raise IndexError(f"byte {address - near} relative to an array is outside of the kernel's arrays")


class Decorators:
    """Stands for the module of inductor whose decorators choose a configuration and compile a kernel."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: lambda function: function


class KernelInterpreter:
    """Defines and launches kernels in a process with `TRITON_INTERPRET=1`."""

    def __init__(self) -> None:
        import triton.language as tl
        from torch._inductor import runtime
        from torch._inductor.runtime import triton_helpers
        from triton.runtime import interpreter

        self._interpreter: Any = interpreter
        self._tl: Any = tl
        self._arrays = KernelArrays(())
        helpers: Any = triton_helpers
        helpers.set_driver_to_gpu = lambda: None
        helpers.libdevice = Libdevice(interpreter, tl)
        decorators: Any = Decorators()
        sys.modules["torch._inductor.runtime.triton_heuristics"] = decorators
        runtime.triton_heuristics = decorators
        self._replace_parts()
        # for good, as all of Triton in this process is interpreted
        interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))

    def define(self, kernel: KernelText) -> Callable[..., None]:
        """Return a function that launches a kernel: of the grid, the raw parameters, and the kernel's memory."""
        name = f"<kernel {kernel.name}>"
        # the interpreter rewrites a kernel from its lines
        linecache.cache[name] = (len(kernel.text), None, kernel.text.splitlines(keepends=True), name)
        scope: dict[str, Any] = {"__file__": name, "__name__": f"kernel_{kernel.name}"}
        exec(compile(kernel.text, name, "exec"), scope)
        function = scope[kernel.name]
        rewritten = function.rewrite()

        def launch(grid: tuple[int, int, int], parameters: Any, extent: Callable[[int], tuple[int, int]]) -> None:
            arguments, place, extents = {}, 0, []
            for parameter, kind in kernel.signature.items():
                if kind == "constexpr":
                    arguments[parameter] = kernel.constants[parameter]
                    continue
                if kind.startswith("*"):
                    address = ctypes.cast(parameters[place], ctypes.POINTER(ctypes.c_uint64))[0]
                    arguments[parameter] = self._scalar(kind, np.uint64(address))
                    extents.append(extent(address))
                else:
                    number = ctypes.cast(parameters[place], ctypes.POINTER(C_TYPES[kind]))[0]
                    arguments[parameter] = self._scalar(kind, number)
                place += 1
            self._arrays.extents = extents
            builder = self._interpreter.interpreter_builder
            builder.set_grid_dim(*grid)
            with np.errstate(all="ignore"):
                for index in indices(grid):
                    builder.set_grid_idx(*index)
                    rewritten(**arguments)

        return launch

    def _scalar(self, kind: str, value: Any) -> Any:
        given = self._tl.str_to_ty(kind, None)
        dtype = self._interpreter._get_np_dtype(given)
        return self._tl.tensor(self._interpreter.TensorHandle(np.array([value], dtype=dtype), given), given)

    def _replace_parts(self) -> None:
        interpreter, tl, arrays = self._interpreter, self._tl, self._arrays
        builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
        load, store = builder.create_masked_load, builder.create_masked_store
        rmw, operate = builder.create_atomic_rmw, builder.binary_op

        def size_of(pointers: Any) -> int:
            return int(interpreter._get_np_dtype(pointers.get_element_ty()).itemsize)

        def checked_load(self: Any, pointers: Any, mask: Any, *more: Any) -> Any:
            arrays.refuse_outside(pointers.data, mask.data, size_of(pointers))
            return load(self, pointers, mask, *more)

        def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
            arrays.refuse_outside(pointers.data, mask.data, size_of(pointers))
            return store(self, pointers, value, mask, *more)

        def checked_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
            arrays.refuse_outside(pointers.data, mask.data, size_of(pointers))
            return rmw(self, operation, pointers, value, mask, *more)

        def convert(self: Any, source: Any, target: Any, *rounding: Any) -> Any:
            kind = target.scalar
            return handle(converted(interpreter, tl, source, kind), kind)

        def operate_wide(self: Any, left: Any, right: Any, operation: Any) -> Any:
            if tl.bfloat16 not in (left.dtype.scalar, right.dtype.scalar):
                return operate(self, left, right, operation)
            wide = [handle(converted(interpreter, tl, each, tl.float32), tl.float32) for each in (left, right)]
            result = operate(self, *wide, operation)
            return result if result.data.dtype == bool else convert(self, result, tl.bfloat16)

        def compute(self: Any, text: str, constraints: str, values: Any, *_: Any) -> Any:
            if text not in INSTRUCTIONS:
                raise NotImplementedError(f"the instruction `{text}` cannot be interpreted")
            numbers = [torch.from_numpy(np.ascontiguousarray(value.data)) for value in values]
            result = handle(INSTRUCTIONS[text](*numbers).numpy(), values[0].dtype.scalar)
            return SimpleNamespace(get_result=lambda place: result)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self.rewrite()(*args, **kwargs)

        builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
        builder.create_atomic_rmw, builder.binary_op = checked_rmw, operate_wide
        builder.cast_impl = builder.create_fp_to_fp = convert
        builder.create_inline_asm = compute
        interpreter.InterpretedFunction.__call__ = call
        interpreter.ReduceOps.generic_reduce = reduce_by_halves
        interpreter.ScanOps.generic_scan = scan_by_doubling


def indices(grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    for x in range(grid[0]):
        for y in range(grid[1]):
            for z in range(grid[2]):
                yield x, y, z


def converted(interpreter: Any, tl: Any, source: Any, kind: Any) -> Any:
    """Return the numbers of a handle in another type, rounded to the nearest; bfloat16 is held as 16 bits."""
    target, data = interpreter._get_np_dtype(kind), source.data
    if tl.bfloat16 not in (source.dtype.scalar, kind):
        with np.errstate(all="ignore"):
            return data.astype(target)
    numbers = torch.from_numpy(np.ascontiguousarray(data))
    if source.dtype.scalar == tl.bfloat16:
        numbers = numbers.view(torch.bfloat16)
        return numbers.float().numpy().astype(target) if kind != tl.bfloat16 else data
    return numbers.to(torch.bfloat16).view(torch.uint16).numpy()


def reduce_by_halves(reduction: Any, tensors: Any) -> list[Any]:
    """Reduce along an axis: neighbours in each step, whose order is kept. Lengths are powers of two."""
    tensors, axis = reduction.unravel(tensors, reduction.axis)
    kinds = [tensor.dtype for tensor in tensors]
    arrays = [np.moveaxis(tensor.handle.data, axis, -1) for tensor in tensors]
    while arrays[0].shape[-1] > 1:
        even, odd = ([array[..., start::2] for array in arrays] for start in (0, 1))
        arrays = combine(reduction, even, odd, kinds)
    results = [array[..., 0] for array in arrays]
    if reduction.keep_dims:
        results = [np.expand_dims(array, axis) for array in results]
    return [reduction.to_tensor(array, kind) for array, kind in zip(results, kinds, strict=True)]


def scan_by_doubling(reduction: Any, tensors: Any) -> list[Any]:
    kinds = [tensor.dtype for tensor in tensors]
    arrays = [np.moveaxis(tensor.handle.data, reduction.axis, -1) for tensor in tensors]
    length, step = arrays[0].shape[-1], 1
    while step < length:
        shifted = [np.roll(array, step, -1) for array in arrays]
        results = combine(reduction, shifted, arrays, kinds)
        has_left = np.arange(length) >= step
        arrays = [np.where(has_left, result, array) for result, array in zip(results, arrays, strict=True)]
        step *= 2
    moved = [np.moveaxis(array, -1, reduction.axis) for array in arrays]
    return [reduction.to_tensor(array, kind) for array, kind in zip(moved, kinds, strict=True)]


def combine(reduction: Any, left: Sequence[Any], right: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
    """Apply a reduction's function to arrays, element by element."""
    given = [
        reduction.to_tensor(array, kind) for arrays in (left, right) for array, kind in zip(arrays, kinds, strict=True)
    ]
    results = reduction.combine_fn(*given)
    results = results if isinstance(results, tuple) else (results,)
    return [
        np.broadcast_to(getattr(getattr(result, "handle", None), "data", result), like.shape).astype(like.dtype)
        for result, like in zip(results, left, strict=True)
    ]


class Libdevice:
    """NVIDIA's functions of numbers, computed by torch; a result of a test is an int32, as NVIDIA's."""

    def __init__(self, interpreter: Any, tl: Any) -> None:
        self._interpreter = interpreter
        self._tl = tl

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in FUNCTIONS:
            raise AttributeError(f"the function `{name}` of libdevice cannot be interpreted")
        compute = FUNCTIONS[name]
        tl, interpreter = self._tl, self._interpreter

        def call(*values: Any, **_: Any) -> Any:
            tensors = [interpreter.interpreter_semantic.to_tensor(value) for value in values]
            shapes = np.broadcast_arrays(*(tensor.handle.data for tensor in tensors))
            numbers = [torch.from_numpy(np.ascontiguousarray(array)) for array in shapes]
            result = compute(*numbers)
            kind = tl.int32 if result.dtype in (torch.int32, torch.bool) else tensors[0].dtype
            if result.dtype == torch.int64:
                kind = tl.int64
            array = result.numpy().astype(interpreter._get_np_dtype(kind))
            shape = next((tensor.shape for tensor in tensors if tensor.type.is_block()), None)
            given = kind if shape is None else tl.block_type(kind, list(array.shape))
            return tl.tensor(interpreter.TensorHandle(array, kind), given)

        return call


def as_test(test: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: test(value).to(torch.int32)


NAMES = (
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor fmod hypot",
    "ldexp lgamma log log10 log1p log2 nextafter pow rsqrt sin sinh sqrt tan tanh trunc",
)
FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for names in NAMES for name in names.split()},
    "fabs": torch.abs,
    "fast_tanhf": torch.tanh,
    "nearbyint": torch.round,
    "rint": torch.round,
    "llrint": lambda value: torch.round(value).to(torch.int64),
    "isnan": as_test(torch.isnan),
    "isinf": as_test(torch.isinf),
    "signbit": as_test(torch.signbit),
    "ilogb": lambda value: (torch.frexp(value)[1] - 1).to(torch.int32),
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
}


def flushed(value: torch.Tensor) -> torch.Tensor:
    return torch.where(
        value.abs() < torch.finfo(value.dtype).tiny, torch.copysign(torch.zeros_like(value), value), value
    )


# instructions of PTX in inductor's kernels
INSTRUCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "rcp.approx.ftz.f32 $0, $1;": lambda value: flushed(flushed(value).reciprocal()),
    "fma.rn.f32 $0, $1, $2, $3;": lambda one, two, three: (one.double() * two.double() + three.double()).float(),
}
