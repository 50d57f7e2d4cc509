"""Error messages for arguments that a method does not take, and for wrong outputs of a delegate.

Generated code only detects a wrong argument; the functions here check all arguments and name the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from hatch_lower.errors import NO_MEMORY, CallError, IndexRangeError, InputError, LowerError, ProgramError
from hatch_lower.format.arguments import Input, LiteralInput, Special, SymbolInput, TensorInput, input_text, range_texts
from hatch_lower.format.expression import Expression, evaluate_size, expression_text, symbols_in
from hatch_lower.format.plan import MethodPlan, input_paths
from hatch_lower.runtime.analysis import SIZE, bind_symbols
from hatch_lower.runtime.arrays import Arrays, same_layout

# messages of torch, its native code and ONNX Runtime; not Python's message for lists, which is no fault of the caller
BAD_INDEX = re.compile(
    r"(?<!list )(?<!tuple )\bindex(?: \S+)? (?:is )?out of (?:range|bounds)|\bindices element out of data bounds"
    r"|\bout of range value in index tensor"
    r"|\binput takes value -?\d+ which is not in the valid range|\bfound idx to be -?\d+",
    re.I,
)
# messages of torch for other values that an operation refuses
BAD_VALUES = re.compile(
    r"\boffsets\[-?\d+\] (?:has to be 0|can not be greater than)|\brepeats can not be negative"
    r"|\ballocated size does not match required size|\bonly supports 1-d non-negative integral inputs"
    r"|\binvalid multinomial distribution\b|\bprobability tensor contains either\b|\bp_in >= 0 && p_in <= 1"
    r"|\bClass values must be|\bZeroDivisionError\b|\belements of \w+ should be between 0 and 1"
    r"|\bnot positive-definite\b|\bmatrix is (?:singular|ill-conditioned)|\bcontained non-finite values",
)
FRAMES = re.compile(r"\s*^frame #\d.*", re.DOTALL | re.MULTILINE)  # of C++, which torch's native code adds


# messages of torch and CUDA's libraries for lack of memory on a GPU, and for a fault of a GPU or its driver
NO_GPU_MEMORY = re.compile(r"\bCUDA (?:error: )?out of memory\b|_STATUS_ALLOC_FAILED\b", re.I)
GPU_FAULT = re.compile(r"\bCUDA (?:driver )?error\b|\bCU(?:BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_|\bcuDNN error\b", re.I)


class ArgumentRefusals:
    """Functions that raise the fitting `InputError`; an object for each method, bound into its code."""

    def __init__(self, method: str, plan: MethodPlan, arrays: Arrays) -> None:
        self._method = method
        self.arrays = arrays
        self.plan = plan
        self._paths = input_paths(plan)
        self.bindings = bind_symbols(plan.inputs)

    def refuse_call(self, given: Mapping[str, bool], rest: Sequence[object], extra: Mapping[str, object]) -> NoReturn:
        names = [parameter.name for parameter in self.plan.parameters if parameter.kind == "positional"]
        keywords = [parameter.name for parameter in self.plan.parameters if parameter.kind == "keyword"]
        wanted = ", ".join([f"`{name}`" for name in names] + [f"`{name}=`" for name in keywords]) or "no arguments"
        if rest:
            found = f"{len(names) + len(rest)} positional arguments"
        elif extra:
            found = f"the unknown argument `{next(iter(extra))}`"
        else:
            missing = [name for name, is_given in given.items() if not is_given]
            found = f"no value for `{missing[0]}`"
        raise InputError(
            f"method `{self._method}` takes {wanted}",
            found=found,
            hint="pass the arguments that were given as examples at the export, no more and no fewer",
        )

    def refuse_values(self, *values: object) -> NoReturn:
        self.check_values(*values)
        self._refuse(0, values[0], "does not fit the other arguments")

    def check_values(self, *values: Any) -> None:
        for index, value in enumerate(values):
            self.check_value(index, value)
        sizes: dict[str, int] = {}
        for binding in self.bindings:
            value = values[binding.input]
            sizes[SIZE] = value if binding.dimension is None else value.shape[binding.dimension]
            sizes[binding.symbol] = evaluate_size(binding.expression, sizes)
        for index, (entry, value) in enumerate(zip(self.plan.inputs, values, strict=True)):
            if reason := self._size_mismatch(entry, value, sizes):
                self._refuse(index, value, reason)

    def check_value(self, index: int, value: object) -> None:
        # checks a leaf alone: type, dtype, device, layout, rank, static sizes, literal
        entry = self.plan.inputs[index]
        if isinstance(entry, TensorInput):
            reason = self._mismatch(entry, value)
        elif isinstance(entry, SymbolInput):
            reason = "" if type(value) is int else "not an int"
        else:
            reason = "" if self._is_literal(entry, value) else "a value that the graph was not exported for"
        if reason:
            self._refuse(index, value, reason)

    def check_memory(self, index: int, value: object) -> None:
        if reason := self.arrays.memory_reason(value):
            self._refuse(index, value, reason)

    def as_array(self, index: int, value: object) -> object:
        plain = self.arrays.plain(value)
        if plain is None:
            self._refuse(index, value, self.arrays.foreign_reason(value))
        return plain

    def keep_layout(self, index: int, value: object, strides: tuple[int, ...]) -> None:
        # a tensor changed in place cannot be copied into other strides
        if reason := self.arrays.layout_mismatch(value, strides):
            self._refuse(index, value, f"{reason}: the method changes this tensor in place")

    def _mismatch(self, entry: TensorInput, value: object) -> str:
        if not isinstance(value, self.arrays.kind):
            return f"not {self.arrays.noun}"
        if reason := self.arrays.kind_mismatch(entry, value):
            return reason
        if len(value.shape) != len(entry.shape):
            return f"{len(value.shape)} dimensions, which must be {len(entry.shape)}"
        for dimension, (expected, size) in enumerate(zip(entry.shape, value.shape, strict=True)):
            if isinstance(expected, int) and expected != size:
                return f"dimension {dimension} is {size}, which must be {expected}"
        return ""

    def _is_literal(self, entry: LiteralInput, value: object) -> bool:
        # compares types, too: 1 is neither 1.0 nor True
        expected = entry.value
        if isinstance(expected, Special):
            return self.arrays.is_special(value, expected)
        is_nan = isinstance(expected, float | complex) and expected != expected
        return type(value) is type(expected) and bool(value == expected or (is_nan and value != value))

    def _size_mismatch(self, entry: Input, value: Any, sizes: Mapping[str, int]) -> str:
        labels = {name: limits.name for name, limits in self.plan.symbols.items()}
        if isinstance(entry, LiteralInput):
            return ""
        pairs = zip(entry.shape, value.shape, strict=True) if isinstance(entry, TensorInput) else [(entry.expr, value)]
        for dimension, (expression, size) in enumerate(pairs):
            name = f"dimension {dimension} is {size}" if isinstance(entry, TensorInput) else f"the integer is {size}"
            if not symbols_in(expression) <= sizes.keys():
                continue
            expected = evaluate_size(expression, sizes)
            if expected != size:
                text = expression_text(expression, labels)
                return f"{name}, which must be {text}" + ("" if isinstance(expression, int) else f" = {expected}")
            for symbol in sorted(symbols_in(expression)):
                limits = self.plan.symbols[symbol]
                if sizes[symbol] < limits.min:
                    return f"{name}, but {limits.name} must be at least {limits.min}"
                if limits.max is not None and sizes[symbol] > limits.max:
                    return f"{name}, but {limits.name} must be at most {limits.max}"
        return ""

    def _refuse(self, index: int, value: object, reason: str) -> NoReturn:
        entry = self.plan.inputs[index]
        ranges = ", ".join(range_texts([entry], self.plan.symbols))
        what = f"method `{self._method}` takes {input_text(entry, self.plan.symbols)} for `{self._paths[index]}`"
        raise InputError(
            f"{what}, {ranges}" if ranges else what,
            found=f"{self.arrays.describe(value)}: {reason}",
            hint=self.arrays.conversion_hint(value, self._paths[index])
            or "convert the argument, or export the method for arguments of this kind",
        )


def refuse_produced(arrays: Arrays, expected: str, value: object) -> NoReturn:
    # reached if this torch computes other shapes or dtypes than the torch of the build, or on another device
    place = arrays.device_of(value)
    raise ProgramError(
        "a tensor for a delegate does not fit the inputs that the delegate was lowered for",
        where=expected,
        found=arrays.describe(value) + ("" if place == arrays.device else f" on {place} instead of {arrays.device}"),
        hint="install the torch version that the program requires, or build the wheel again",
    )


def call_failed(
    backend: str,
    where: str,
    error: Exception,
    values: Sequence[object] = (),
    find: Callable[[Exception, Sequence[object]], Exception | None] | None = None,
) -> NoReturn:
    """Raise the error of a delegate again; `find` makes the error for an index out of range from the inputs."""
    if find is not None and (isinstance(error, IndexRangeError) or BAD_INDEX.search(str(error))):
        exact = find(error, values)
        if exact is not None:
            raise exact from error
    if isinstance(error, LowerError | MemoryError):
        raise error
    raise CallError(
        f"the delegate `{backend}` failed in a call",
        where=where,
        found=f"{type(error).__name__}: {FRAMES.sub('', str(error)).strip():.1000}",
        hint=hint_of(error),
    ) from error


def hint_of(error: Exception) -> str:
    # by the text, because engines use the same class of exception for all errors
    text = str(error)
    if BAD_INDEX.search(text):
        return "look at the values of the arguments: an index is out of range"
    if BAD_VALUES.search(text):
        return "look at the values of the arguments: an operation of the model does not take them"
    if NO_GPU_MEMORY.search(text):
        return (
            "free memory of the GPU, or call the method with smaller arguments: the model can be called again after the"
            " `except` block, whose error still holds the tensors of the call"
        )
    if GPU_FAULT.search(text):
        return (
            "start a new process, because a GPU computes no more for a process after a fault; the environment variable"
            " CUDA_LAUNCH_BLOCKING=1 makes an error name its operation"
        )
    if NO_MEMORY.search(text):
        return "give the process more memory, or call the method with smaller arguments"
    return (
        "call another recipe with the same arguments; if that call succeeds, `hatch-lower localize` finds the failing"
        " operation: name the operation in the recipe's `exclude`, and report the fault"
    )


def device_failed(device: str, error: Exception) -> NoReturn:
    """Raise an error of a method on a GPU again, a fault of the GPU or of its memory as `CallError`."""
    text = str(error)
    if isinstance(error, LowerError) or not (NO_GPU_MEMORY.search(text) or GPU_FAULT.search(text)):
        raise error
    raise CallError(
        "a call failed on the GPU",
        where=device,
        found=f"{type(error).__name__}: {FRAMES.sub('', text).strip():.1000}",
        hint=hint_of(error),
    ) from error


def refuse_fork() -> NoReturn:
    raise CallError(
        "a model on a GPU cannot be called in a forked process",
        found="the parent process had used the GPU before the fork, which CUDA does not survive",
        hint="load the model in the child process, started with the method `spawn` of `multiprocessing`",
    )


def check_outputs(
    arrays: Arrays, where: str, expected: Sequence[TensorInput | None], outputs: object, sizes: Mapping[str, int]
) -> None:
    """Compare the outputs of a delegate call with the plan, as far as sizes are known; `None` means a number."""
    if not isinstance(outputs, Sequence):
        raise wrong_outputs(where, f"`{type(outputs).__name__}` instead of a sequence of outputs")
    if len(outputs) != len(expected):
        raise wrong_outputs(where, f"{len(outputs)} outputs instead of {len(expected)}")
    for index, (output, entry) in enumerate(zip(outputs, expected, strict=True)):
        if entry is not None and (difference := find_output_difference(arrays, output, entry, sizes)):
            raise wrong_outputs(f"{where}, output {index}", difference)


def wrong_outputs(where: str, found: str) -> ProgramError:
    return ProgramError(
        "the outputs of a delegate differ from the outputs that the delegate was lowered for",
        where=where,
        found=found,
        hint="this is a fault of the backend: report it to its authors, or leave the backend out of the recipe",
    )


def find_output_difference(arrays: Arrays, output: object, expected: TensorInput, sizes: Mapping[str, int]) -> str:
    if not isinstance(output, arrays.kind):
        return f"`{type(output).__name__}` instead of {arrays.noun}"
    dtype, device = arrays.dtype_name(output), arrays.device_of(output)
    if dtype != expected.dtype or device != arrays.device:
        return f"{dtype} on {device} instead of {expected.dtype} on {arrays.device}"
    found = tuple(output.shape)
    shape = known(expected.shape, sizes, found) if len(found) == len(expected.shape) else None
    if shape != found:
        return f"the shape {list(found)} instead of {list(shape or expected.shape)}"
    steps = arrays.strides(output)
    strides = known(expected.stride, sizes, steps)
    # a delegate may return a dense copy in place of a view with gaps or repeated elements
    if not same_layout(found, steps, strides) and not same_layout(found, steps, arrays.clone_strides(found, strides)):
        return f"the strides {list(steps)} instead of {list(strides)} for the shape {list(found)}"
    return ""


def known(expressions: Sequence[Expression], sizes: Mapping[str, int], found: Sequence[int]) -> tuple[int, ...]:
    # an expression with an unknown size takes the value found
    return tuple(
        evaluate_size(expression, sizes) if symbols_in(expression) <= sizes.keys() else there
        for expression, there in zip(expressions, found, strict=True)
    )
