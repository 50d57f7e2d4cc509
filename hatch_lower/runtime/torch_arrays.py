"""Tensors of torch as the arrays of a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any, ClassVar

import torch
from torch import Tensor

from hatch_lower.format.arguments import Special, TensorInput, is_contiguous
from hatch_lower.format.codec import refuse_damaged_file
from hatch_lower.format.constants import Constant, Storage
from hatch_lower.format.graph import Graph
from hatch_lower.format.values import DTYPES
from hatch_lower.runtime.arrays import ArrayOperator, Arrays, same_layout, several_values
from hatch_lower.runtime.mapped import Stored
from hatch_lower.runtime.names import CodeNames, tuple_code
from hatch_lower.runtime.refusals import device_failed, refuse_fork
from hatch_lower.runtime.torch_operators import function_of, may_return_alias, placed_function, resolve_operators
from hatch_lower.runtime.torch_private.cuda import fork_test, synchronize
from hatch_lower.runtime.torch_private.operators import OpOverload


class TorchArrays(Arrays):
    """Tensors on a device. Storages stay on the CPU until a program places the storages that it needs."""

    name = "torch"
    noun = "a tensor"
    kind: ClassVar[type[Any]] = Tensor
    size_templates: ClassVar[Mapping[str, str]] = {
        "aten.sym_numel.default": "{0}.numel()",
        "aten.sym_size.int": "{0}.size({1})",
        "aten.sym_storage_offset.default": "{0}.storage_offset()",
        "aten.sym_stride.int": "{0}.stride({1})",
    }

    def __init__(self, device: str = "cpu", computes_on: str = "cpu") -> None:
        super().__init__(device, computes_on)
        self._place = torch.device(device)

    # Memory

    def storing(self) -> AbstractContextManager[object]:
        return torch.inference_mode(False)

    def span(self, storage: Storage, content: memoryview) -> Tensor:
        return flat_tensor(storage.dtype, content)

    def fresh(self, array: Tensor) -> Tensor:
        return array.clone() if self.device == "cpu" else array.to(self._place, copy=True)

    def placed(self, array: Tensor) -> Tensor:
        return array.to(self._place)

    def on_host(self, array: Tensor) -> Tensor:
        return array.cpu()

    def view(self, constant: Constant, spans: Mapping[int, Any]) -> Tensor:
        span = spans[constant.storage]
        dtype = getattr(torch, constant.dtype)
        try:
            if span.dtype is not dtype:
                span = span.view(dtype)
            viewed: Tensor = span.as_strided(constant.shape, constant.stride, constant.offset)
        except (RuntimeError, TypeError, ValueError) as error:
            refuse_damaged_file(
                f"a constant of {constant.dtype}{list(constant.shape)}"[:120], f"refused by torch: {error}"
            )
        return viewed

    def stored(self, tensor: Stored, where: str) -> Tensor:
        try:
            return flat_tensor(tensor.dtype, tensor.content).reshape(tensor.shape)
        except RuntimeError as error:
            refuse_damaged_file(where, f"impossible sizes ({error})")

    def of_bytes(self, array: Tensor, dtype: str) -> Tensor:
        return array.clone().view(getattr(torch, dtype)).squeeze(-1)

    def restrided(self, array: Tensor, strides: tuple[int, ...]) -> Tensor:
        return restride(array, strides)

    def copy(self, array: Tensor) -> Tensor:
        return array.clone()

    def assign(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def is_same(self, one: Tensor, other: Tensor) -> bool:
        return same_bits(one, other.to(one.device))

    def rows(self, array: Tensor) -> Iterable[Tensor]:
        return map(Tensor.contiguous, array.unbind())

    def stack(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(rows))

    def permuted(self, array: Tensor, order: Sequence[int]) -> Tensor:
        return array.permute(*order)

    def empty(self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=self._place)

    def contiguous_copy(self, array: Tensor) -> Tensor:
        # not `contiguous()`, which does not copy an empty tensor
        return array.clone(memory_format=torch.contiguous_format)

    # Generated code

    def operators(self, graph: Graph, where: str) -> Mapping[str, ArrayOperator]:
        found = resolve_operators(graph, where)
        return {
            name: ArrayOperator(self._function_of(name, each, where), may_return_alias(each))
            for name, each in found.items()
        }

    def _function_of(self, name: str, operator: OpOverload[..., Any], where: str) -> Callable[..., object]:
        function = function_of(name, operator)
        return function if self.device == "cpu" else placed_function(function, name, operator, self._place, where)

    def special(self, value: Special) -> object:
        # a graph is exported on the CPU, so the device `cpu` of a plan is the program's device
        return self._place if value.kind == "device" else getattr(torch, value.name)

    def opening_lines(self, call: str, names: CodeNames) -> list[str]:
        is_on = names.bind("is_on", torch.is_autocast_enabled)
        device, autocast = names.bind("device", self._place.type), names.bind("autocast", torch.autocast)
        lines = [f"if {is_on}({device}):", f" with {autocast}({device}, enabled=False): return {call}"]
        if self.device == "cpu":
            return lines
        return [f"if {names.bind('is_forked', fork_test())}(): {names.bind('refuse_fork', refuse_fork)}()", *lines]

    def dtype_test(self, dtype: str, variable: str, names: CodeNames) -> str:
        return f"{variable}.dtype is not {names.bind(dtype, getattr(torch, dtype), ('dtype', dtype))}"

    def place_tests(self, variable: str, names: CodeNames) -> list[str]:
        strided = names.bind("strided", torch.strided, "strided")
        place = f"not {variable}.is_cpu" if self.device == "cpu" else self._place_test(variable, names)
        return [place, f"{variable}.layout is not {strided}", f"{variable}.is_nested"]

    def _is_placed(self, array: Tensor) -> bool:
        return array.is_cpu if self.device == "cpu" else array.device == self._place

    def _place_test(self, variable: str, names: CodeNames) -> str:
        return f"{variable}.device != {names.bind('place', self._place, 'place')}"

    def produced_tests(self, variable: str, names: CodeNames) -> list[str]:
        # a library's operator may ignore the device of its arguments, and code of a GPU must not read such a tensor
        return [] if self.device == "cpu" else [self._place_test(variable, names)]

    def guarded(self, lines: list[str], names: CodeNames) -> list[str]:
        if self.device == "cpu":
            return lines
        error, raised = names.local("error"), names.bind("raised", Exception, "raised")
        failed = names.bind("device_failed", functools.partial(device_failed, self.device))
        return ["try:", *(f" {line}" for line in lines), f"except {raised} as {error}: {failed}({error})"]

    def clock(self) -> Callable[[], int]:
        return perf_counter_ns if self.device == "cpu" else functools.partial(synchronized_ns, self.device)

    def memory_tests(self, dtype: str, variable: str) -> list[str]:
        # for a tensor with gaps or repeated elements, `memory_reason` computes the required bytes
        needed = f"{variable}.nbytes + {variable}.storage_offset()*{DTYPES[dtype].size}"
        return [
            f"not {variable}.data_ptr()",
            f"not {variable}.is_contiguous()",
            f"{variable}.untyped_storage().nbytes() < {needed}",
        ]

    def memory_reason(self, array: Tensor) -> str:
        try:
            address, present = array.data_ptr(), array.untyped_storage().nbytes()
        except RuntimeError:
            return "a tensor inside `torch.func.vmap`, `grad` or another transformation, which has no memory"
        if array.numel() == 0:
            return ""
        steps = zip(array.shape, array.stride(), strict=True)
        last = array.storage_offset() + sum((size - 1) * step for size, step in steps)
        needed = (last + 1) * array.element_size()
        if present < needed:
            freed = "the memory was freed" if present == 0 else "a part of the memory was freed"
            return f"{freed}: sizes and strides need {needed} bytes, but only {present} are left"
        return "" if address else "a tensor without memory: zeros, or inside a transformation of `torch.func`"

    def resolve_lines(self, dtype: str, variable: str, *, of_caller: bool, in_place: bool = False) -> list[str]:
        # detached from autograd, and without lazy conjugation and negation, which native code ignores
        kind = getattr(torch, dtype)
        lines = [f"if {variable}.requires_grad: {variable} = {variable}.detach()"] if of_caller else []
        if in_place:
            return lines
        if kind.is_complex:
            lines.append(f"if {variable}.is_conj(): {variable} = {variable}.resolve_conj()")
        if kind.is_floating_point or kind.is_complex:
            lines.append(f"if {variable}.is_neg(): {variable} = {variable}.resolve_neg()")
        return lines

    def layout_lines(
        self, entry: TensorInput, variable: str, strides: Sequence[str] | None, names: CodeNames
    ) -> list[str]:
        if strides is None:
            return [f"if not {variable}.is_contiguous(): {variable} = {variable}.contiguous()"]
        wanted = tuple_code(strides)
        wrong = f"not {variable}.is_contiguous()" if is_contiguous(entry) else f"{variable}.stride() != {wanted}"
        return [f"if {wrong}: {variable} = {names.bind('restride', restride, 'restride')}({variable}, {wanted})"]

    # Values

    def plain(self, value: object) -> Tensor | None:
        # a tensor without its Python subclass; `None` for a subclass that is a wrapper without memory
        if not isinstance(value, Tensor):
            return None
        if type(value) is Tensor:
            return value
        if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
        return value.detach().as_subclass(Tensor)

    def foreign_reason(self, value: object) -> str:
        if not isinstance(value, Tensor):
            return "not a tensor"
        if value.is_nested:
            return "a nested tensor"
        return f"a tensor of the class `{type(value).__qualname__}`, which wraps other tensors and has no memory"

    def describe(self, value: object) -> str:
        if isinstance(value, Tensor) and value.is_nested:
            return f"a nested tensor of {self.dtype_name(value)}"
        return super().describe(value)

    def dtype_name(self, array: Tensor) -> str:
        return str(array.dtype).removeprefix("torch.")

    def kind_mismatch(self, entry: TensorInput, array: Tensor) -> str:
        if array.is_nested:
            return "a nested tensor"
        if not self._is_placed(array):
            return f"on the device {array.device}, which must be {'the CPU' if self.device == 'cpu' else self.device}"
        if array.layout is not torch.strided:
            return f"of the layout {str(array.layout).removeprefix('torch.')}, which must be strided"
        return "" if array.dtype is getattr(torch, entry.dtype) else f"the dtype must be {entry.dtype}"

    def layout_mismatch(self, array: Tensor, strides: tuple[int, ...]) -> str:
        if not array.is_neg() and not array.is_conj() and same_layout(array.shape, array.stride(), strides):
            return ""
        return f"strides {list(array.stride())}, which must be {list(strides)}"

    def is_special(self, value: object, wanted: Special) -> bool:
        expected = self.special(wanted)
        return type(value) is type(expected) and bool(value == expected)

    def conversion_hint(self, value: object, name: str) -> str:
        if isinstance(value, Tensor) and not self._is_placed(value):
            if self.device != "cpu":
                return f'move the tensor to the model\'s device: `{name}.to("{self.device}")`'
            if value.is_cuda:
                return f'pass `{name}.cpu()`, or load the model with `device="cuda"`'
        if isinstance(value, list | tuple):
            return 'pass `torch.tensor(...)` with the right dtype; a tokenizer makes tensors with `return_tensors="pt"`'
        if type(value).__module__.partition(".")[0] != "numpy":
            return ""
        return 'pass `torch.from_numpy(array)`, or load the model with `arrays="numpy"`, which takes NumPy\'s arrays'

    def device_of(self, array: Tensor) -> str:
        return "cpu" if array.is_cpu else str(array.device)

    def strides(self, array: Tensor) -> tuple[int, ...]:
        return array.stride()

    def clone_strides(self, shape: Sequence[int], strides: tuple[int, ...]) -> tuple[int, ...]:
        return torch.empty_strided(shape, strides, device="meta").clone().stride()


ARRAYS = TorchArrays()


def flat_tensor(dtype: str, content: memoryview) -> Tensor:
    kind = getattr(torch, dtype)
    return torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)


def synchronized_ns(device: str) -> int:
    synchronize(device)
    return perf_counter_ns()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors with the same dtype have the same shape and bits, for NaN and -0, too."""
    flat = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return one.shape == other.shape and torch.equal(*flat)


def restride(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    if same_layout(value.shape, value.stride(), strides):
        return value
    repeated = [dim for dim, stride in enumerate(strides) if stride == 0 and value.shape[dim] > 1]
    narrow = value
    for dim in repeated:
        narrow = narrow.narrow(dim, 0, 1)
    copy = torch.empty_strided(narrow.shape, strides, dtype=value.dtype, device=value.device).copy_(narrow)
    copy = copy.expand(value.shape)
    if repeated and not same_bits(copy, value):
        raise several_values(ARRAYS.describe(value), repeated)
    return copy
