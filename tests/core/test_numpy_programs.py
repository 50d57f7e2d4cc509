"""Programs on NumPy's arrays: what they take, what they return, and what they keep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from support.plans import (
    BATCH,
    Noting,
    c,
    call,
    constant,
    delegate_entry,
    executor_of,
    graph,
    method,
    op,
    parameter,
    plan_value,
    python,
    tensor_input,
    v,
)

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.numpy_arrays import element_dtype

Array = np.ndarray[Any, Any]
ROWS = tensor_input("s0", 4)
VECTOR = tensor_input(4)
VIEW = "aten.view.default"


class Adding(Noting):
    """Adds an array, by default one, to its inputs."""

    arrays: ClassVar[str] = "numpy"

    def output_of(self, value: Array) -> Array:
        return np.asarray(value + (self.constants[0] if self.constants else 1)).astype(value.dtype)


def adding(*inputs: Any, **fields: Any) -> dict[str, Any]:
    """Return a plan that adds one to each of its inputs."""
    inputs = inputs or (ROWS,)
    count = len(inputs)
    taken = [python("getitem", v(count), index, out=count + 1 + index) for index in range(count)]
    body = [call(0, [v(index) for index in range(count)], inputs, count), *taken]
    outputs = [v(count + 1 + index) for index in range(count)]
    names = {size for each in inputs for size in each["shape"] if isinstance(size, str)}
    symbols = dict.fromkeys(names, BATCH["s0"])
    tree = "*" if count == 1 else {"tuple": ["*"] * count}
    forward = method(inputs, body, *outputs, symbols=symbols, tree=tree, **fields)
    return plan_value(forward=forward, delegates=[delegate_entry("adding")])


def executor(value: Any, *spans: Array, **kinds: type[Delegate]) -> Any:
    return executor_of(value, *spans, delegates={"adding": Adding, **kinds}, arrays="numpy", checks_outputs=True)


def seen_by(program: Any) -> Array:
    """Return what the delegate was given last, alone."""
    (seen,) = program._delegates[0].calls[-1]
    assert type(seen) is np.ndarray
    return seen


# What goes in.


class OfDlpack:
    """An array of another library."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


def misaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    moved: Array = memory[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


def read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def in_records(array: Array) -> Array:
    records = np.zeros(array.shape, np.dtype([("value", array.dtype), ("more", np.uint8)]))
    records["value"] = array
    return records["value"]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        np.asfortranarray,
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.concatenate([x, x], 1)[:, 4:],
        read_only,
        misaligned,
        in_records,
        lambda x: x.view(np.matrix),
        OfDlpack,
        lambda x: OfDlpack(read_only(x)),
    ],
    ids=["plain", "Fortran", "backward", "gaps", "read-only", "misaligned", "records", "subclass", "DLPack", "both"],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_delegate_gets_plain_contiguous_aligned_memory(make: Callable[[Array], Any]) -> None:
    program, image = executor(adding()), np.arange(12, dtype=np.float32).reshape(3, 4)
    result = program.methods["forward"](make(image))
    assert type(result) is np.ndarray
    assert np.array_equal(result, image + 1)
    seen = seen_by(program)
    assert seen.flags.c_contiguous
    assert seen.flags.aligned


def test_what_need_not_be_copied_is_handed_through() -> None:
    program = executor(adding())
    for given in (np.zeros((3, 4), np.float32), read_only(np.zeros((3, 4), np.float32))):
        program.methods["forward"](given)
        assert seen_by(program) is given
    program.methods["forward"](OfDlpack(given := np.ones((2, 4), np.float32)))
    assert np.shares_memory(seen_by(program), given)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool"])
def test_a_tensor_is_taken_as_the_array_that_it_is(dtype: str) -> None:
    import torch

    program = executor(adding(tensor_input("s0", 2, dtype=dtype)))
    tensor = torch.tensor([[0, 1], [3, 2]]).to(getattr(torch, dtype))
    wanted: Any = tensor.conj() if dtype == "complex64" else tensor
    if tensor.is_floating_point():
        wanted = tensor.clone().requires_grad_()
    result = program.methods["forward"](wanted)
    assert result.dtype == element_dtype(dtype)
    assert np.array_equal(
        result.astype(np.complex64), (wanted.detach() + 1).to(tensor.dtype).to(torch.complex64).resolve_conj().numpy()
    )


UNREADABLE = "a tensor that NumPy cannot read: only dense tensors on the CPU with a dtype of NumPy are possible"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "dtype": (lambda: np.zeros((3, 4)), "float64[3, 4]: the dtype must be float32"),
    "byte order": (
        lambda: np.zeros((3, 4), np.dtype(np.float32).newbyteorder()),
        ": the byte order is another machine's: pass `array.astype('float32')`",
    ),
    "records": (lambda: np.zeros((3, 4), [("x", "f4")]), "[3, 4]: the dtype must be float32"),
    "objects": (lambda: np.zeros((3, 4), object), "object[3, 4]: the dtype must be float32"),
    "masked": (lambda: np.ma.zeros((3, 4), np.float32), "float32[3, 4]: an array of which some values are masked"),
    "rank": (lambda: np.zeros(4, np.float32), "float32[4]: 1 dimensions, which must be 2"),
    "size": (lambda: np.zeros((3, 5), np.float32), "float32[3, 5]: dimension 1 is 5, which must be 4"),
    "range": (
        lambda: np.broadcast_to(np.float32(0), (1025, 4)),
        "float32[1025, 4]: dimension 0 is 1025, but batch must be at most 1024",
    ),
    "list": (lambda: [[0.0] * 4], "list: not an array"),
    "number": (lambda: 1.0, "1.0: not an array"),
    "None": (lambda: None, "None: not an array"),
    "scalar": (lambda: np.float32(1), "float32[]: 0 dimensions, which must be 2"),
    "device": (lambda: OfDlpack(np.zeros((3, 4), np.float32), 2), f"OfDlpack: {UNREADABLE}"),
    "exporter": (lambda: OfDlpack(np.zeros((3, 4), ">f4")), f"OfDlpack: {UNREADABLE}"),
}


@pytest.mark.parametrize(("make", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_argument_is_refused(make: Callable[[], Any], found: str) -> None:
    program = executor(adding())
    with pytest.raises(InputError) as caught:
        program.methods["forward"](make())
    assert caught.value.found.endswith(found)
    assert caught.value.what == "method `forward` takes float32[batch, 4] for `x0`, batch from 1 to 1024"
    assert program._delegates[0].calls == []


@pytest.mark.torch
def test_a_tensor_that_is_no_array_is_refused() -> None:
    import torch

    for tensor in (torch.zeros(3, 4, device="meta"), torch.zeros(3, 4).to_sparse()):
        with pytest.raises(InputError) as caught:
            executor(adding()).methods["forward"](tensor)
        assert caught.value.found == f"Tensor: {UNREADABLE}"


def test_a_list_is_to_be_made_an_array() -> None:
    with pytest.raises(InputError) as caught:
        executor(adding()).methods["forward"]([[0.0] * 4])
    assert "pass `numpy.asarray(...)` with the right dtype" in caught.value.hint
    assert '`return_tensors="np"`' in caught.value.hint


@pytest.mark.torch
def test_a_program_of_tensors_names_what_takes_arrays() -> None:
    with pytest.raises(InputError) as caught:
        executor_of(adding(), delegates={"adding": Adding}).methods["forward"](np.zeros((3, 4), np.float32))
    assert caught.value.found == "ndarray: not a tensor"
    assert caught.value.hint == (
        'pass `torch.from_numpy(array)`, or load the model with `arrays="numpy"`, which takes NumPy\'s arrays'
    )


def test_a_number_without_dimensions_may_be_a_scalar_of_numpy() -> None:
    program = executor(adding(tensor_input()))
    for given in (np.float32(2), np.array(2, np.float32)):
        result = program.methods["forward"](given)
        assert type(result) is np.ndarray
        assert (result.shape, result) == ((), 3)


@pytest.mark.parametrize("order", ["strided", "repeated"])
def test_strides_are_as_exported(order: str) -> None:
    strides = [75, 1, 15, 3] if order == "strided" else [1, 0, 0, 0]
    program = executor(adding(tensor_input(2, 3, 5, 5, stride=strides)))
    image = np.random.default_rng(0).random((2, 3, 5, 5), np.float32)
    if order == "repeated":
        image = np.broadcast_to(image[:, :1, :1, :1], image.shape).copy()
    for each in (image, image.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
        assert np.array_equal(program.methods["forward"](each), image + 1)
        assert [step // 4 for step in seen_by(program).strides] == strides
    if order == "repeated":
        image[0, 0, 0, 1] += 1
        with pytest.raises(InputError, match="a single value repeated along a dimension, but now holds several"):
            program.methods["forward"](image)


@pytest.mark.parametrize("dtype", ["bool", "complex128", "float16", "float64", "int64", "int8", "uint16", "uint64"])
def test_every_dtype_of_numpy_goes_in_and_out(dtype: str) -> None:
    given = np.zeros((3, 4), dtype)
    result = executor(adding(tensor_input("s0", 4, dtype=dtype))).methods["forward"](given)
    assert (result.dtype, result.shape) == (given.dtype, given.shape)


def test_literals_and_integers_are_compared_strictly() -> None:
    inputs = [{"kind": "literal", "value": 2}, {"kind": "symbol", "expr": "s0"}, ROWS]
    body = [call(0, [v(2)], [ROWS], 3), python("getitem", v(3), 0, out=4)]
    value = plan_value(forward=method(inputs, body, v(4), symbols=BATCH), delegates=[delegate_entry("adding")])
    forward, rows = executor(value).methods["forward"], np.zeros((3, 4), np.float32)
    assert np.array_equal(forward(2, 3, rows), rows + 1)
    for wrong in ((2.0, 3, rows), (np.int64(2), 3, rows), (2, np.int64(3), rows), (2, 4, rows)):
        with pytest.raises(InputError):
            forward(*wrong)


# What comes out.


def test_views_and_sizes_run_between_partitions() -> None:
    inner = tensor_input(4, "s0")
    body = [
        call(0, [v(0)], [ROWS], 1),
        python("getitem", v(1), 0, out=2),
        op("aten.sym_size.int", v(2), 0, out=3),
        op("aten.permute.default", v(2), [1, 0], out=4),
        call(0, [v(4)], [inner], 5),
        python("getitem", v(5), 0, out=6),
        python("mul", v(3), 2, out=7),
        op(VIEW, v(6), [v(7), 2], out=8),
    ]
    tree = {"dict": [["view", "*"], ["rows", "*"]]}
    value = plan_value(
        forward=method([ROWS], body, v(8), v(3), symbols=BATCH, tree=tree), delegates=[delegate_entry("adding")]
    )
    program, rows = executor(value), np.arange(12, dtype=np.float32).reshape(3, 4)
    found = program.methods["forward"](rows)
    assert np.array_equal(found["view"], (rows.T + 2).reshape(6, 2))
    assert found["rows"] == 3
    assert seen_by(program).flags.c_contiguous


def test_what_a_delegate_returns_wrongly_is_an_error() -> None:
    class Wrong(Adding):
        def run(self, inputs: list[Array]) -> Sequence[Any]:
            return [inputs[0].astype(np.float64)]

    with pytest.raises(ProgramError) as caught:
        executor(adding(), adding=Wrong).methods["forward"](np.zeros((3, 4), np.float32))
    assert caught.value.found == "float64 on cpu instead of float32 on cpu"


def test_containers_go_in_and_out() -> None:
    tree = {"dict": [["a", "*"], ["b", {"list": ["*"]}]]}
    inputs = [VECTOR, VECTOR]
    body = [op(VIEW, v(0), [2, 2], out=2)]
    forward = method(inputs, body, v(2), v(1), parameters=[parameter("x", tree)], tree=tree)
    one, other = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    found = executor(plan_value(forward=forward)).methods["forward"]({"a": one, "b": [other]})
    assert found["a"].tolist() == [[0, 1], [2, 3]]
    assert found["b"][0] is other


# What is kept.

STATE: dict[str, Any] = {
    "storages": [("s", "float32", 4), ("w", "float32", 6)],
    "constants": {
        "state": constant(0, 4, mutable=True),
        "tail": constant(0, 2, offset=2, mutable=True),
        "w": constant(1, 3, 2, stride=[1, 3]),
    },
}


def spans() -> tuple[Array, Array]:
    return np.zeros(4, np.float32).view(np.uint8), np.arange(6, dtype=np.float32).view(np.uint8)


def counting() -> dict[str, Any]:
    """Return a plan that adds its input to the state, and returns a view of the state and of a constant."""
    body = [
        call(0, [v(0)], [VECTOR], 1),
        python("getitem", v(1), 0, out=2),
        op("aten.permute.default", c("w"), [1, 0], out=3),
    ]
    tree = {"tuple": ["*", "*", "*"]}
    forward = method([VECTOR], body, v(2), c("tail"), v(3), mutations=[("state", v(2))], tree=tree)
    return plan_value(forward=forward, delegates=[delegate_entry("adding", "state")], **STATE)


def test_state_is_kept_cloned_and_reset() -> None:
    first = executor(counting(), *spans())
    forward, ones = first.methods["forward"], np.ones(4, np.float32)
    assert not first.has_changed()
    assert forward(ones)[0].tolist() == [1, 1, 1, 1]
    assert first.has_changed()
    second = first.clone()
    assert forward(ones)[0].tolist() == [2, 2, 2, 2]
    assert second.methods["forward"](ones * 5)[0].tolist() == [6, 6, 6, 6]
    assert forward(ones)[1].tolist() == [2, 2], "a view of the state, before the call"
    first.reset()
    assert not first.has_changed()
    assert forward(ones)[0].tolist() == [1, 1, 1, 1]


def test_outputs_never_share_memory_with_constants() -> None:
    program = executor(counting(), *spans())
    for _ in range(2):
        _, tail, turned = program.methods["forward"](np.zeros(4, np.float32))
        assert tail.tolist() == [0, 0]
        assert turned.tolist() == [[0, 1, 2], [3, 4, 5]]
        tail += 7
        turned += 7


def test_constants_are_views_of_their_storages() -> None:
    value = plan_value(
        forward=method([], [], c("turned"), c("wide"), c("none"), tree={"tuple": ["*"] * 3}),
        storages=[("w", "int16", 6), ("e", "float32", 0)],
        constants={
            "turned": constant(0, 3, 2, stride=[1, 3], dtype="int16"),
            "wide": constant(0, 2, dtype="int32", offset=1),
            "none": constant(1, 0, 3),
        },
    )
    data = np.arange(6, dtype=np.int16)
    turned, wide, none = executor(value, data.view(np.uint8), np.empty(0, np.uint8)).methods["forward"]()
    assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert np.array_equal(wide, data.view(np.int32)[1:])
    assert (none.shape, none.dtype) == ((0, 3), np.float32)


def changing(entry: Any) -> Callable[..., Any]:
    """Return a method that adds one to its input in place."""
    body = [call(0, [v(0)], [entry], 1), python("getitem", v(1), 0, out=2)]
    forward = method([entry], body, v(2), input_mutations=[(0, v(2))])
    found: Callable[..., Any] = executor(plan_value(forward=forward, delegates=[delegate_entry("adding")])).methods[
        "forward"
    ]
    return found


def test_inputs_are_changed_in_place() -> None:
    for given in (np.zeros(4, np.float32), np.zeros((), np.float32), np.zeros((4, 4), np.float32).T):
        steps = [step // 4 for step in given.strides]
        result = changing(tensor_input(*given.shape, stride=steps))(given)
        assert np.array_equal(given, np.ones(given.shape))
        assert np.array_equal(result, given)
    changing(VECTOR)(OfDlpack(cache := np.zeros(4, np.float32)))
    assert cache.tolist() == [1] * 4


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (read_only, "read-only memory"),
        (misaligned, "memory that is not at a multiple of 4 bytes"),
        (lambda x: np.repeat(x, 2)[::2], "strides [2], which must be [1]"),
        (lambda x: x[::-1], "strides [-1], which must be [1]"),
        (lambda x: OfDlpack(read_only(x)), "read-only memory"),
    ],
)
def test_what_cannot_be_changed_in_place_is_refused(make: Callable[[Array], Any], found: str) -> None:
    with pytest.raises(InputError) as caught:
        changing(VECTOR)(make(np.zeros(4, np.float32)))
    assert f"{found}: the method changes this tensor in place" in caught.value.found


@pytest.mark.torch
def test_a_tensor_is_changed_in_place() -> None:
    import torch

    tensor = torch.zeros(4).requires_grad_()
    changing(VECTOR)(tensor)
    assert tensor.tolist() == [1] * 4
    with pytest.raises(InputError, match="read-only memory: the method changes this tensor in place"):
        changing(VECTOR)(torch.complex(torch.zeros(4), -torch.zeros(4)).conj().imag)


def test_a_scalar_cannot_be_changed_in_place() -> None:
    with pytest.raises(InputError, match="read-only memory"):
        changing(tensor_input())(np.float32(1))


# Control flow.


def test_branches_and_loops_run() -> None:
    yes = graph(1, [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)], v(2))
    no = graph(1, [op("aten.clone.default", v(0), out=1)], v(1))
    branch = {"kind": "cond", "predicate": v(1), "true": yes, "false": no, "args": [v(0)], "out": 2}
    value = plan_value(
        forward=method([VECTOR, tensor_input(dtype="bool")], [branch, python("getitem", v(2), 0, out=3)], v(3)),
        delegates=[delegate_entry("adding")],
    )
    forward, ones = executor(value).methods["forward"], np.ones(4, np.float32)
    assert forward(ones, np.array(True)).tolist() == [2] * 4
    assert forward(ones, np.array(False)).tolist() == [1] * 4


@pytest.mark.parametrize("kind", ["map", "scan"])
def test_loops_over_rows_run(kind: str) -> None:
    step = [call(0, [v(0)], [VECTOR], 1 + (kind == "scan")), python("getitem", v(1 + (kind == "scan")), 0, out=5)]
    if kind == "map":
        loop: dict[str, Any] = {"kind": "map", "body": graph(1, step, v(5)), "args": [v(0)], "extra": [], "out": 1}
    else:
        body = graph(2, [call(0, [v(1)], [VECTOR], 2), step[1]], v(0), v(5))
        loop = {"kind": "scan", "body": body, "args": [v(0)], "rows": [v(0)], "extra": [], "out": 1}
    body_of_method = [loop, python("getitem", v(1), int(kind == "scan"), out=2)]
    value = plan_value(
        forward=method([ROWS], body_of_method, v(2), symbols=BATCH), delegates=[delegate_entry("adding")]
    )
    program, rows = executor(value), np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert np.array_equal(program.methods["forward"](rows), rows + 1)
    assert seen_by(program).flags.c_contiguous


def test_an_operator_that_numpy_does_not_have_is_named() -> None:
    value = plan_value(forward=method([VECTOR], [op("aten.sin.default", v(0), out=1)], v(1)))
    with pytest.raises(ProgramError) as caught:
        executor(value)
    assert str(caught.value) == (
        "the program needs torch for operators between its partitions\n"
        "  where: method `forward`\n"
        "  found: a call of `aten.sin.default`\n"
        '  to do: install torch and load the model with `arrays="torch"`, or load another recipe'
    )


# Dtypes that NumPy lacks.


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_dtypes_of_ml_dtypes_go_in_and_out(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    given = np.ones((3, 4), getattr(ml_dtypes, dtype))
    result = executor(adding(tensor_input("s0", 4, dtype=dtype))).methods["forward"](given)
    assert result.dtype == given.dtype
    assert np.array_equal(result.astype(np.float32), given.astype(np.float32) + 1)
    with pytest.raises(InputError, match=f"the dtype must be {dtype}"):
        executor(adding(tensor_input("s0", 4, dtype=dtype))).methods["forward"](given.view(f"u{given.itemsize}"))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bfloat16", "the program takes bfloat16, which NumPy has from the package `ml_dtypes`"),
        ("complex32", "the program takes complex32, which NumPy does not have"),
    ],
)
def test_a_dtype_that_is_not_to_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch, dtype: str, message: str) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ProgramError) as caught:
        executor(adding(tensor_input("s0", 4, dtype=dtype)))
    assert caught.value.what == message
    assert 'load the model with `arrays="torch"`' in caught.value.hint


@pytest.mark.parametrize("has_it", [True, False])
def test_constants_need_no_ml_dtypes(monkeypatch: pytest.MonkeyPatch, has_it: bool) -> None:
    if has_it:
        pytest.importorskip("ml_dtypes")
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2)]
    value = plan_value(
        forward=method([VECTOR], body, v(2)),
        storages=[("w", "bfloat16", 3)],
        constants={"w": constant(0, 2, dtype="bfloat16", offset=1)},
        delegates=[delegate_entry("adding", "w")],
    )
    data = np.arange(6, dtype=np.uint8)
    program = executor(value, data)
    (given,) = program._delegates[0].constants
    assert given.tobytes() == bytes([2, 3, 4, 5])
    assert str(given.dtype) == ("bfloat16" if has_it else "|V2")
