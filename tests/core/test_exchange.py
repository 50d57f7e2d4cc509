"""Programs whose delegates compute with arrays of the other library."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.plans import (
    BATCH,
    Doubling,
    Noting,
    call,
    constant,
    delegate_entry,
    executor_of,
    method,
    op,
    plan_value,
    python,
    tensor_input,
    v,
)

from hatch_lower.errors import CallError, ProgramError

pytestmark = pytest.mark.torch

INDEX, OTHER = "look at the values of the arguments: an index", "call another recipe with the same arguments"


class Keeping(Noting):
    arrays: ClassVar[str] = "numpy"


def value_of(entry: Any, backend: str, *constants: str, **fields: Any) -> dict[str, Any]:
    """Return a plan that hands its input to a delegate and returns what that returns."""
    body = [call(0, [v(0)], [entry], 1), python("getitem", v(1), 0, out=2)]
    forward = method([entry], body, v(2), symbols=BATCH)
    return plan_value(forward=forward, delegates=[delegate_entry(backend, *constants)], **fields)


def kept(dtype: str, *spans: Any, **fields: Any) -> Any:
    entry = tensor_input("s0", 4, dtype=dtype)
    value = value_of(entry, "keeping", *fields.get("constants", {}), **fields)
    return executor_of(value, *spans, delegates={"keeping": Keeping}, checks_outputs=True)


@pytest.mark.parametrize("has_ml_dtypes", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "uint16", "bfloat16"])
def test_a_delegate_of_arrays_sees_the_memory_of_tensors(
    monkeypatch: pytest.MonkeyPatch, dtype: str, has_ml_dtypes: bool
) -> None:
    if has_ml_dtypes:
        pytest.importorskip("ml_dtypes")
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    executor = kept(dtype)
    tensor = torch.tensor([[0, 1, 2, 3]]).to(getattr(torch, dtype))
    result = executor.methods["forward"](tensor)
    ((array,),) = executor._delegates[0].calls
    assert type(array) is np.ndarray
    assert str(array.dtype) == ("|V2" if dtype == "bfloat16" and not has_ml_dtypes else dtype)
    assert array.ctypes.data == tensor.data_ptr() == result.data_ptr()
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex32"])
def test_dtypes_that_numpy_lacks_come_back_as_they_went(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensor = torch.ones(1, 4).to(getattr(torch, dtype))
    result = kept(dtype).methods["forward"](tensor)
    assert result.dtype == tensor.dtype
    assert result.data_ptr() == tensor.data_ptr()


def test_constants_are_handed_over_without_a_copy() -> None:
    span = torch.arange(8.0)
    fields: dict[str, Any] = {
        "storages": [("w", "float32", 8), ("b", "bfloat16", 2)],
        "constants": {"w": constant(0, 4, 2, stride=[1, 4]), "b": constant(1, 2, dtype="bfloat16")},
    }
    half = torch.ones(2, dtype=torch.bfloat16)
    weight, other = kept("float32", span, half, **fields)._delegates[0].constants
    assert weight.ctypes.data == span.data_ptr()
    assert weight.tolist() == span.view(2, 4).t().tolist()
    assert other.ctypes.data == half.data_ptr()


def test_what_an_operator_computes_goes_to_a_delegate_of_arrays() -> None:
    entry = tensor_input("s0", 4)
    body = [
        op("aten.mul.Tensor", v(0), v(0), out=1),
        call(0, [v(1)], [entry], 2),
        python("getitem", v(2), 0, out=3),
        op("aten.add.Tensor", v(3), 1, out=4),
    ]
    value = plan_value(forward=method([entry], body, v(4), symbols=BATCH), delegates=[delegate_entry("keeping")])
    executor = executor_of(value, delegates={"keeping": Keeping})
    given = torch.arange(8.0).view(2, 4).requires_grad_()
    for recording in (True, False):
        with torch.set_grad_enabled(recording), torch.inference_mode(not recording):
            result = executor.methods["forward"](given)
        assert torch.equal(result, given.detach() ** 2 + 1)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
@pytest.mark.parametrize("is_writable", [True, False])
def test_a_delegate_of_tensors_runs_in_a_program_of_arrays(dtype: str, is_writable: bool) -> None:
    kind: Any = np.dtype(dtype) if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16
    value = value_of(tensor_input("s0", 4, dtype=dtype), "doubling")
    executor = executor_of(value, arrays="numpy", checks_outputs=True)
    given = np.arange(4).astype(kind).reshape(1, 4)
    given.flags.writeable = is_writable
    result = executor.methods["forward"](given)
    assert type(result) is np.ndarray
    assert result.dtype == kind
    assert result.astype(int).tolist() == [[0, 2, 4, 6]]
    ((tensor,),) = executor._delegates[0].calls  # type: ignore[attr-defined]
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert (tensor.data_ptr() == given.ctypes.data) is is_writable


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_every_sequence_is_converted_and_all_else_is_refused(library: str) -> None:
    base: Any = Keeping if library == "torch" else Doubling

    class Returning(base):  # type: ignore[misc]
        result: Any = None

        def run(self, inputs: list[Any]) -> Any:
            return self.result(inputs)

    value = value_of(tensor_input("s0", 4), "returning")
    given: Any = torch.zeros(1, 4) if library == "torch" else np.zeros((1, 4), np.float32)
    executor = executor_of(value, delegates={"returning": Returning}, arrays=library)
    Returning.result = staticmethod(tuple)
    assert type(executor.methods["forward"](given)) is type(given)
    for wrong, found in ((lambda _: 5, "`int` instead of a sequence of outputs"), (lambda _: [], "0 outputs")):
        Returning.result = staticmethod(wrong)
        with pytest.raises(ProgramError, match="the outputs of a delegate differ") as caught:
            executor.methods["forward"](given)
        assert found in caught.value.found


def test_an_array_that_is_no_tensor_is_an_error_of_that_call() -> None:
    class Backward(Keeping):
        def run(self, inputs: list[Any]) -> Any:
            return [inputs[0][:, ::-1]]

    executor = executor_of(value_of(tensor_input("s0", 4), "backward"), delegates={"backward": Backward})
    with pytest.raises(CallError, match="the delegate `backward` failed in a call") as caught:
        executor.methods["forward"](torch.zeros(1, 4))
    assert "negative" in caught.value.found


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (IndexError("index out of range in self"), INDEX),
        (IndexError("index 12 is out of bounds for dimension 0 with size 10"), INDEX),
        (RuntimeError("index out of bounds: 0 <= tmp0 < 10"), INDEX),
        (
            RuntimeError("Non-zero status code: indices element out of data bounds, idx=12 must be within [-10,9]"),
            INDEX,
        ),
        (RuntimeError("GatherElements op: Out of range value in index tensor"), INDEX),
        (RuntimeError("Failed to allocate memory for requested buffer of size 99"), "give the process more memory"),
        (RuntimeError("std::bad_alloc"), "give the process more memory"),
        (RuntimeError("[CPUAllocator] DefaultCPUAllocator: not enough memory"), "give the process more memory"),
        (IndexError("list index out of range"), OTHER),
        (IndexError("tuple index out of range"), OTHER),
        (RuntimeError("Incompatible dimensions for matrix multiplication"), OTHER),
        (RuntimeError("Eltwise shape infer input shapes dim index: 1 mismatch"), OTHER),
        (ValueError(""), OTHER),
    ],
)
def test_a_failed_call_speaks_of_an_index_only_where_the_engine_does(error: Exception, hint: str) -> None:
    class Failing(Keeping):
        def run(self, inputs: list[Any]) -> Any:
            raise error

    executor = executor_of(value_of(tensor_input("s0", 4), "failing"), delegates={"failing": Failing})
    with pytest.raises(CallError, match="the delegate `failing` failed in a call") as caught:
        executor.methods["forward"](torch.zeros(1, 4))
    assert caught.value.hint.startswith(hint)
    assert caught.value.found == f"{type(error).__name__}: {error}"


def test_arrays_of_an_unknown_library_are_a_fault_of_the_backend() -> None:
    class Other(Doubling):
        arrays: ClassVar[str] = "jax"

    with pytest.raises(ProgramError) as caught:
        executor_of(value_of(tensor_input("s0", 4), "other"), delegates={"other": Other})
    assert str(caught.value) == (
        "the backend `other` computes with arrays of an unknown library\n"
        "  where: digits/delegates/blob.bin\n"
        "  found: `arrays` of its run half is 'jax'\n"
        "  to do: this is a fault of the backend: report it to its authors"
    )
