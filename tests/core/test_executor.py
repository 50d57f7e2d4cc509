"""The executor on plans written by hand: no lowering is involved."""

from __future__ import annotations

import ast
import inspect
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.plans import (
    BATCH,
    Doubling,
    c,
    call,
    constant,
    delegate_entry,
    executor_of,
    graph,
    method,
    op,
    parameter,
    plan_of,
    plan_value,
    product,
    python,
    tensor_input,
    v,
)

from hatch_lower.errors import InputError, ProgramError
from hatch_lower.format.graph import PYTHON_FUNCTIONS, PYTHON_TEMPLATES
from hatch_lower.runtime.containers import Record
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.executor import execute_plan

pytestmark = pytest.mark.torch

ANY = {"min": 0, "max": None, "name": "any"}
IMAGE = tensor_input("s0", 1, 8, 8)
VECTOR = tensor_input(4)
ADD = "aten.add.Tensor"


def forward_of(value: Any, *spans: torch.Tensor, **fields: Any) -> Callable[..., Any]:
    return executor_of(value, *spans, **fields).methods["forward"]


def delegated(entry: Any = IMAGE, symbols: Any = BATCH, **fields: Any) -> dict[str, Any]:
    body = [call(0, [v(0)], [entry], 1), python("getitem", v(1), 0, out=2)]
    forward = method([entry], body, v(2), symbols=symbols, parameters=[parameter("image")], **fields)
    return plan_value(forward=forward, delegates=[delegate_entry("doubling")])


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


Corner = namedtuple("Corner", ["x", "y"])
HERE = __name__


# calls and signatures


def test_a_method_has_the_signature_of_the_exported_one() -> None:
    scale = {"kind": "literal", "value": 2}
    value = plan_value(
        forward=method(
            [IMAGE, scale],
            [op("aten.mul.Tensor", v(0), v(1), out=2)],
            v(2),
            parameters=[parameter("image"), parameter("scale", kind="keyword")],
            symbols=BATCH,
        )
    )
    executor = executor_of(value)
    forward = executor.methods["forward"]
    assert str(inspect.signature(forward)) == "(image, *, scale)"
    assert forward.__name__ == "forward"
    assert executor.signature("forward") == (
        "forward(image: float32[batch, 1, 8, 8], *, scale: the value 2); batch from 1 to 1024"
    )
    image = torch.randn(3, 1, 8, 8)
    assert torch.equal(forward(image, scale=2), image * 2)
    assert torch.equal(forward(image=image, scale=2), image * 2)


@pytest.mark.parametrize("name", ["v1", "_v1", "type", "_method", "__x", "Tensor", "größe", "_missing_1", "image"])
def test_parameters_may_have_any_name(name: str) -> None:
    entry = tensor_input("s0", 4)
    body = [op(ADD, v(0), 1, out=1), op(ADD, v(1), v(0), out=2)]
    forward = forward_of(plan_value(forward=method([entry], body, v(2), parameters=[parameter(name)], symbols=BATCH)))
    assert torch.equal(forward(**{name: torch.ones(2, 4)}), torch.full((2, 4), 3.0))


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((), {}, "no value for `image`"),
        ((1, 2), {"scale": 2}, "2 positional arguments"),
        ((1,), {}, "no value for `scale`"),
        ((1,), {"scale": 2, "size": 3}, "the unknown argument `size`"),
    ],
)
def test_a_wrong_number_of_arguments(args: Any, kwargs: Any, found: str) -> None:
    parameters = [parameter("image"), parameter("scale", kind="keyword")]
    forward = forward_of(
        plan_value(
            forward=method([VECTOR, {"kind": "literal", "value": 2}], [], v(0), parameters=parameters),
        )
    )
    with pytest.raises(InputError) as caught:
        forward(*args, **kwargs)
    assert str(caught.value) == (
        "method `forward` takes `image`, `scale=`\n"
        f"  found: {found}\n"
        "  to do: pass the arguments that were given as examples at the export, no more and no fewer"
    )


# inputs of a delegate


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (lambda: 1, "1: not a tensor"),
        (lambda: None, "None: not a tensor"),
        (lambda: torch.zeros(2, 1, 8, 8, dtype=torch.float64), "float64[2, 1, 8, 8]: the dtype must be float32"),
        (lambda: torch.zeros(1, 8, 8), "float32[1, 8, 8]: 3 dimensions, which must be 4"),
        (lambda: torch.zeros(2, 1, 8, 7), "float32[2, 1, 8, 7]: dimension 3 is 7, which must be 8"),
        (lambda: torch.zeros(2, 3, 8, 8), "float32[2, 3, 8, 8]: dimension 1 is 3, which must be 1"),
        (
            lambda: torch.zeros(1025, 1, 8, 8),
            "float32[1025, 1, 8, 8]: dimension 0 is 1025, but batch must be at most 1024",
        ),
        (lambda: torch.zeros(0, 1, 8, 8), "float32[0, 1, 8, 8]: dimension 0 is 0, but batch must be at least 1"),
        (
            lambda: torch.zeros(2, 1, 8, 8, device="meta"),
            "float32[2, 1, 8, 8]: on the device meta, which must be the CPU",
        ),
        (
            lambda: torch.zeros(2, 1, 8, 8).to_sparse(),
            "float32[2, 1, 8, 8]: of the layout sparse_coo, which must be strided",
        ),
    ],
)
def test_a_delegate_never_sees_a_wrong_input(value: Callable[[], Any], found: str) -> None:
    executor = executor_of(delegated())
    with pytest.raises(InputError) as caught:
        executor.methods["forward"](value())
    assert isinstance(caught.value, TypeError)
    assert str(caught.value) == (
        "method `forward` takes float32[batch, 1, 8, 8] for `image`, batch from 1 to 1024\n"
        f"  found: {found}\n"
        "  to do: convert the argument, or export the method for arguments of this kind"
    )
    assert executor._delegates[0].calls == []  # type: ignore[attr-defined]


def test_a_tensor_without_memory_is_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(2, 1, 8, 8)
    with pytest.raises(
        InputError, match="a tensor of the class `FakeTensor`, which wraps other tensors and has no memory"
    ):
        forward_of(delegated())(fake)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: torch.cat([x, x], 3)[..., :8],
        lambda x: torch.nn.Parameter(x),
        lambda x: x.clone().requires_grad_() * 1,
        lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
        lambda x: x.as_subclass(type("Special", (torch.Tensor,), {})),
    ],
)
def test_a_delegate_gets_plain_contiguous_memory(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    executor = executor_of(delegated())
    image = torch.randn(3, 1, 8, 8)
    result = executor.methods["forward"](make(image))
    ((seen,),) = executor._delegates[0].calls  # type: ignore[attr-defined]
    assert type(seen) is torch.Tensor
    assert seen.is_contiguous()
    assert not seen.is_neg()
    assert not seen.requires_grad
    assert torch.equal(result, image * 2)


def test_strides_as_exported() -> None:
    entry = tensor_input("s0", 3, 5, 5, stride=[75, 1, 15, 3])
    executor = executor_of(delegated(entry))
    image = torch.randn(2, 3, 5, 5)
    for each in (image, image.to(memory_format=torch.channels_last)):
        assert torch.equal(executor.methods["forward"](each), image * 2)
    for (seen,) in executor._delegates[0].calls:  # type: ignore[attr-defined]
        assert seen.stride() == (75, 1, 15, 3)


def test_strides_that_do_not_matter() -> None:
    entry = tensor_input("s0", 3, stride=[3, 1])
    executor = executor_of(delegated(entry, {"s0": {"min": 0, "max": None, "name": "s0"}}))
    one = torch.randn(8, 3)[::8]
    empty = torch.empty_strided((0, 3), (7, 5))
    for each in (one, empty):
        executor.methods["forward"](each)
    assert [seen for (seen,) in executor._delegates[0].calls] == [one, empty] or all(  # type: ignore[attr-defined]
        seen.data_ptr() == each.data_ptr()
        for (seen,), each in zip(executor._delegates[0].calls, (one, empty), strict=True)  # type: ignore[attr-defined]
    )


def test_values_that_the_export_repeated() -> None:
    """An expanded tensor has one value in memory; a delegate is given just that, whatever computes it here."""
    entry = tensor_input(3, 2, 4, stride=[1, 0, 0])
    executor = executor_of(delegated(entry, {}))
    value = torch.tensor([1.0, float("nan"), 3.0]).reshape(3, 1, 1)
    for each in (value.expand(3, 2, 4), value.repeat(1, 2, 4)):
        result = executor.methods["forward"](each)
        torch.testing.assert_close(result, value.repeat(1, 2, 4) * 2, equal_nan=True)
    for (seen,) in executor._delegates[0].calls:  # type: ignore[attr-defined]
        assert seen.stride() == (1, 0, 0)
    with pytest.raises(InputError) as caught:
        executor.methods["forward"](torch.arange(24.0).reshape(3, 2, 4))
    assert str(caught.value) == (
        "a tensor was exported with a single value repeated along a dimension, but now holds several values there\n"
        "  found: float32[3, 2, 4], dimension 1, 2\n"
        "  to do: export the method with an example input that was not expanded"
    )


def test_what_the_graph_computes_is_laid_out_for_a_delegate() -> None:
    entry = tensor_input("s0", 4)
    produced = tensor_input(4, "s0", stride=["s0", 1])
    body = [
        op("aten.permute.default", v(0), [1, 0], out=1),
        call(0, [v(1)], [produced], 2),
        python("getitem", v(2), 0, out=3),
    ]
    executor = executor_of(
        plan_value(forward=method([entry], body, v(3), symbols=BATCH), delegates=[delegate_entry("doubling")])
    )
    value = torch.randn(3, 4)
    assert torch.equal(executor.methods["forward"](value), value.T * 2)
    ((seen,),) = executor._delegates[0].calls  # type: ignore[attr-defined]
    assert seen.stride() == (3, 1)


def test_what_the_graph_computes_wrongly_never_reaches_a_delegate() -> None:
    body = [
        op("aten._to_copy.default", v(0), dtype={"dtype": "float64"}, out=1),
        call(0, [v(1)], [VECTOR], 2),
        python("getitem", v(2), 0, out=3),
    ]
    forward = forward_of(plan_value(forward=method([VECTOR], body, v(3)), delegates=[delegate_entry("doubling")]))
    with pytest.raises(ProgramError) as caught:
        forward(torch.zeros(4))
    assert str(caught.value) == (
        "a tensor for a delegate does not fit the inputs that the delegate was lowered for\n"
        "  where: delegate 0 of method `forward` was lowered for float32[4]\n"
        "  found: float64[4]\n"
        "  to do: install the torch version that the program requires, or build the wheel again"
    )


class Returning(Delegate):
    """Returns what it was told to."""

    outputs: ClassVar[list[Any]] = []

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[torch.Tensor]) -> Returning:
        return cls()

    def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        return self.outputs


def returned(monkeypatch: pytest.MonkeyPatch, *outputs: Any, expected: Sequence[Any], **fields: Any) -> Any:
    """Call a delegate that returns the outputs and should return others, with rows as the only size."""
    monkeypatch.setattr(Returning, "outputs", list(outputs))
    body = [call(0, [v(0)], [tensor_input("s0", 4)], 1, expected), python("getitem", v(1), 0, out=2)]
    forward = method(
        [tensor_input("s0", 4)], body, v(2), symbols={**BATCH, "u0": {"min": 0, "max": None, "name": "u0"}}
    )
    plan = plan_value(forward=forward, delegates=[delegate_entry("returning")])
    executor = executor_of(plan, delegates={"returning": Returning}, **fields)
    return executor.methods["forward"](torch.zeros(3, 4))


def test_a_wrong_number_of_outputs_is_an_error_of_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tensor_input("s0", 4)
    assert returned(monkeypatch, torch.ones(3, 4), 7, expected=[rows, None]).sum() == 12
    for outputs in ([torch.ones(3, 4)] * 2, []):
        with pytest.raises(ProgramError) as caught:
            returned(monkeypatch, *outputs, expected=[rows])
        assert str(caught.value) == (
            "the outputs of a delegate differ from the outputs that the delegate was lowered for\n"
            "  where: delegate 0 of method `forward`\n"
            f"  found: {len(outputs)} outputs instead of 1\n"
            "  to do: this is a fault of the backend: report it to its authors, or leave the backend out of the recipe"
        )


@pytest.mark.parametrize("checks_outputs", [False, True])
def test_outputs_that_are_no_sequence_are_an_error_of_that_call(
    monkeypatch: pytest.MonkeyPatch, checks_outputs: bool
) -> None:
    # the tensor has as many rows as outputs are expected
    for outputs in (None, 3, {0: torch.ones(3, 4)}, torch.ones(1, 3, 4)):
        monkeypatch.setattr(Returning, "run", lambda self, inputs, outputs=outputs: outputs)
        with pytest.raises(ProgramError, match="the outputs of a delegate differ") as caught:
            returned(monkeypatch, expected=[tensor_input("s0", 4)], checks_outputs=checks_outputs)
        assert caught.value.found == f"`{type(outputs).__name__}` instead of a sequence of outputs"


def test_a_delegate_that_loads_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Returning, "load", classmethod(lambda cls, blob, constants: None))
    with pytest.raises(ProgramError) as caught:
        returned(monkeypatch, torch.ones(3, 4), expected=[tensor_input("s0", 4)])
    assert caught.value.what == "the run half of the backend `returning` returns no `Delegate`"
    assert caught.value.found == "`NoneType`"


@pytest.mark.parametrize(
    ("output", "expected", "found"),
    [
        (torch.ones(3, 4).double(), tensor_input("s0", 4), "float64 on cpu instead of float32 on cpu"),
        (torch.ones(2, 4), tensor_input("s0", 4), "the shape [2, 4] instead of [3, 4]"),
        (torch.ones(3), tensor_input("u0", 4, stride=[4, 1]), "the shape [3] instead of ['u0', 4]"),
        (
            torch.ones(4, 3).T,
            tensor_input("s0", 4),
            "the strides [1, 3] instead of [4, 1] for the shape [3, 4]",
        ),
        (
            torch.ones(3, 4),
            tensor_input("s0", 4, stride=[1, "s0"]),
            "the strides [4, 1] instead of [1, 3] for the shape [3, 4]",
        ),
        (5, tensor_input("s0", 4), "`int` instead of a tensor"),
    ],
)
def test_a_wrong_output_is_found_where_outputs_are_checked(
    monkeypatch: pytest.MonkeyPatch, output: Any, expected: Any, found: str
) -> None:
    assert returned(monkeypatch, output, expected=[expected]) is output
    with pytest.raises(ProgramError) as caught:
        returned(monkeypatch, output, expected=[expected], checks_outputs=True)
    assert caught.value.where == "delegate 0 of method `forward`, output 0"
    assert caught.value.found == found


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (torch.ones(3, 4), tensor_input("s0", 4, stride=[8, 2])),  # a view's, copied
        (torch.ones(3, 4), tensor_input("s0", 4, stride=[0, 1])),  # a row, repeated
        (torch.ones(5, 4), tensor_input("u0", 4)),  # as many rows as the data say
        (torch.ones(1, 4).T.contiguous().T, tensor_input(1, 4, stride=[9, 1])),
    ],
)
def test_an_output_may_be_the_clone_of_a_view(monkeypatch: pytest.MonkeyPatch, output: Any, expected: Any) -> None:
    assert returned(monkeypatch, output, expected=[expected], checks_outputs=True) is output


def test_a_size_that_depends_on_data() -> None:
    symbols = {"u0": {"min": 0, "max": None, "name": "u0"}}
    body = [
        op("aten.nonzero.default", v(0), out=1),
        call(0, [v(1)], [tensor_input("u0", 1, dtype="int64", stride=[1, 1])], 2),
        python("getitem", v(2), 0, out=3),
    ]
    forward = forward_of(
        plan_value(forward=method([VECTOR], body, v(3), symbols=symbols), delegates=[delegate_entry("doubling")])
    )
    assert forward(torch.tensor([0.0, 1, 0, 1])).tolist() == [[2], [6]]


def test_a_method_runs_without_autocast_and_without_gradients() -> None:
    forward = forward_of(
        plan_value(forward=method([tensor_input(4, 4)], [op("aten.mm.default", v(0), v(0), out=1)], v(1)))
    )
    value = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu"):
        result = forward(value)
    assert result.dtype is torch.float32
    assert not result.requires_grad


# dynamic shapes


def test_one_symbol_in_two_inputs() -> None:
    entries = [tensor_input("s0", 4), tensor_input("s0")]
    forward = forward_of(
        plan_value(forward=method(entries, [op("aten.mv.default", v(0), v(0), out=2)], v(0), symbols=BATCH))
    )
    with pytest.raises(InputError) as caught:
        forward(torch.zeros(3, 4), torch.zeros(2))
    assert str(caught.value).startswith(
        "method `forward` takes float32[batch] for `x1`, batch from 1 to 1024\n"
        "  found: float32[2]: dimension 0 is 2, which must be batch = 3"
    )


@pytest.mark.parametrize(
    ("expression", "good", "bad", "text"),
    [
        (product(2, "s0"), 6, 7, "2*batch = 6"),
        ({"op": "add", "args": ["s0", 1]}, 1025, 1026, None),
        ({"op": "sub", "args": ["s0", 1]}, 0, 1024, None),
        ({"op": "add", "args": [product(3, "s0"), -1]}, 5, 6, "3*batch - 1 = 5"),
    ],
)
def test_a_symbol_that_has_to_be_solved_for(expression: Any, good: int, bad: int, text: str | None) -> None:
    entry = {"kind": "tensor", "dtype": "float32", "shape": [expression], "stride": [1]}
    forward = forward_of(plan_value(forward=method([entry], [], v(0), symbols=BATCH)))
    assert forward(torch.zeros(good)).shape == (good,)
    with pytest.raises(InputError) as caught:
        forward(torch.zeros(bad))
    assert text is None or f"which must be {text}" in str(caught.value)


def calls_to_load(count: int) -> int:
    """Return how many functions Python calls to load a plan whose symbols follow from each other, the first last."""
    sums = [{"op": "add", "args": [f"s{index}", f"s{index + 1}"]} for index in range(count)]
    symbols = {f"s{index}": {"min": 0, "max": None, "name": f"s{index}"} for index in range(count + 1)}
    inputs = [tensor_input(each) for each in (*sums, f"s{count}")]
    plan = plan_of(plan_value(forward=method(inputs, [], v(0), symbols=symbols)))
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        execute_plan(plan, [], {}, Path("/nowhere"))
    finally:
        sys.setprofile(before)
    return calls


def test_the_work_of_loading_grows_as_the_number_of_symbols_does() -> None:
    calls_to_load(10)  # imports
    assert calls_to_load(400) < 2.1 * calls_to_load(200)


def test_a_symbol_may_have_any_name() -> None:
    sizes = [{"op": "add", "args": ["size", "value"]}, "value"]
    forward = forward_of(
        plan_value(
            forward=method(
                [tensor_input(*sizes)], [], v(0), symbols={name: ANY | {"name": name} for name in ("size", "value")}
            )
        )
    )
    assert forward(torch.zeros(3, 2)).shape == (3, 2)
    with pytest.raises(InputError, match="dimension 0 is 1, but size must be at least 0"):
        forward(torch.zeros(1, 2))


def test_a_symbol_that_nothing_determines() -> None:
    entry = {"kind": "tensor", "dtype": "float32", "shape": [product("s0", "s0")], "stride": [1]}
    with pytest.raises(ProgramError, match="the symbol `s0` is not determined by the inputs"):
        executor_of(plan_value(forward=method([entry], [], v(0), symbols=BATCH)))


def test_arithmetic_on_sizes() -> None:
    body = [
        op("aten.sym_size.int", v(0), 0, out=1),
        python("mul", v(1), 8, out=2),
        python("floordiv", v(2), 2, out=3),
        op("aten.reshape.default", v(0), [2, v(3)], out=4),
        python("sym_float", v(1), out=5),
        python("sqrt", v(5), out=6),
        python("ge", v(1), 3, out=7),
        python("sym_ite", v(7), 10, 20, out=8),
        python("sym_max", v(8), v(1), out=9),
    ]
    forward = forward_of(
        plan_value(
            forward=method(
                [tensor_input("s0", 8)], body, v(4), v(6), v(9), symbols=BATCH, tree={"tuple": ["*", "*", "*"]}
            )
        )
    )
    value = torch.arange(32.0).reshape(4, 8)
    reshaped, root, chosen = forward(value)
    assert torch.equal(reshaped, value.reshape(2, 16))
    assert (root, chosen) == (2.0, 10)
    assert forward(torch.zeros(1, 8))[2] == 20


def test_a_python_operation_has_a_single_form_of_code() -> None:
    assert not set(PYTHON_TEMPLATES) & set(PYTHON_FUNCTIONS)


def test_negative_literals_keep_their_sign() -> None:
    body = [python("pow", -2, 2, out=1), python("neg", -3, out=2), python("sub", v(1), -1, out=3)]
    forward = forward_of(plan_value(forward=method([VECTOR], body, v(1), v(2), v(3), tree={"tuple": ["*", "*", "*"]})))
    assert forward(torch.zeros(4)) == (4, 3, 5)


class Sizes(Delegate):
    """Returns 0-d tensors for sizes, as native code does."""

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[torch.Tensor]) -> Sizes:
        return cls()

    def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        return [torch.tensor(inputs[0].shape[0]), torch.tensor(True), torch.tensor(0.5)]


def test_sizes_from_a_delegate_become_numbers() -> None:
    body = [
        call(0, [v(0)], [tensor_input("s0", 4)], 1, [None, None, None]),
        *(python("getitem", v(1), index, out=2 + index) for index in range(3)),
        python("item_int", v(2), out=5),
        python("item_bool", v(3), out=6),
        python("item_float", v(4), out=7),
        python("add", v(5), 1, out=8),
    ]
    forward = forward_of(
        plan_value(
            forward=method(
                [tensor_input("s0", 4)], body, v(8), v(6), v(7), symbols=BATCH, tree={"tuple": ["*", "*", "*"]}
            ),
            delegates=[delegate_entry("sizes")],
        ),
        delegates={"sizes": Sizes},
    )
    result = forward(torch.zeros(3, 4))
    assert result == (4, True, 0.5)
    assert [type(each) for each in result] == [int, bool, float]


# literals and containers


LITERALS: dict[str, tuple[Any, Any]] = {
    "1": (1, 1),
    "True": (True, True),
    "1.0": (1.0, 1.0),
    "-5": (-5, -5),
    "text": ("sum", "sum"),
    "None": (None, None),
    "nan": ({"float": "nan"}, float("nan")),
    "-inf": ({"float": "-inf"}, float("-inf")),
    "complex": ({"complex": [1, 2]}, 1 + 2j),
    "dtype": ({"dtype": "float32"}, torch.float32),
    "device": ({"device": "cpu"}, torch.device("cpu")),
}


@pytest.mark.parametrize("exported", LITERALS)
@pytest.mark.parametrize("passed", LITERALS)
def test_literal_inputs_are_compared_strictly(exported: str, passed: str) -> None:
    literal = {"kind": "literal", "value": LITERALS[exported][0]}
    forward = forward_of(plan_value(forward=method([VECTOR, literal], [], v(0))))
    if exported == passed:
        forward(torch.zeros(4), LITERALS[passed][1])
        return
    with pytest.raises(InputError, match="a value that the graph was not exported for"):
        forward(torch.zeros(4), LITERALS[passed][1])


def test_a_list_is_no_tensor() -> None:
    executor = executor_of(delegated())
    with pytest.raises(InputError) as caught:
        executor.methods["forward"]([torch.zeros(2, 1, 8, 8)])
    assert str(caught.value) == (
        "method `forward` takes float32[batch, 1, 8, 8] for `image`, batch from 1 to 1024\n"
        "  found: list: not a tensor\n"
        '  to do: pass `torch.tensor(...)` with the right dtype; a tokenizer makes tensors with `return_tensors="pt"`'
    )


def test_a_refused_literal_names_the_exported_value() -> None:
    forward = forward_of(plan_value(forward=method([VECTOR, {"kind": "literal", "value": 1}], [], v(0))))
    with pytest.raises(InputError) as caught:
        forward(torch.zeros(4), True)
    assert str(caught.value) == (
        "method `forward` takes the value 1 for `x1`\n"
        "  found: True: a value that the graph was not exported for\n"
        "  to do: convert the argument, or export the method for arguments of this kind"
    )


def test_integers_that_vary() -> None:
    entries = [VECTOR, {"kind": "symbol", "expr": "s0"}]
    forward = forward_of(plan_value(forward=method(entries, [op(ADD, v(0), v(1), out=2)], v(2), symbols=BATCH)))
    assert forward(torch.zeros(4), 3).tolist() == [3.0] * 4
    for bad, text in [(True, "not an int"), (2000, "batch must be at most 1024"), (1.0, "not an int")]:
        with pytest.raises(InputError, match=text):
            forward(torch.zeros(4), bad)


TREES = {
    "dict": ({"dict": [["image", "*"], [0, "*"]]}, lambda a, b: {"image": a, 0: b}),
    "tuple": ({"tuple": ["*", {"list": ["*"]}]}, lambda a, b: (a, [b])),
    "namedtuple": (
        {"namedtuple": f"{HERE}:Corner", "fields": ["x", "y"], "children": ["*", "*"]},
        lambda a, b: Corner(a, b),
    ),
    "object": (
        {"object": f"{HERE}:Pair", "keys": ["left", "right"], "children": ["*", {"tuple": ["*", None]}]},
        lambda a, b: Pair(a, (b, None)),  # type: ignore[arg-type]
    ),
}


def model_output() -> Any:
    return pytest.importorskip("transformers.modeling_outputs").BaseModelOutput


INSTALLED = {
    "namedtuple": (
        {
            "namedtuple": "torch.return_types:max",
            "distribution": "torch",
            "fields": ["values", "indices"],
            "children": ["*", "*"],
        },
        lambda a, b: torch.return_types.max((a, b)),
    ),
    "object": (
        {
            "object": "transformers.modeling_outputs:BaseModelOutput",
            "distribution": "transformers",
            "keys": ["last_hidden_state", "attentions"],
            "children": ["*", {"tuple": ["*", None]}],
        },
        lambda a, b: model_output()(a, attentions=(b, None)),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_nested_containers_go_in_and_out(name: str) -> None:
    tree, make = (TREES | INSTALLED)[name]
    if tree.get("distribution") == "transformers":
        model_output()  # skips where it is missing
    value = plan_value(
        forward=method([VECTOR, VECTOR], [], v(1), v(0), parameters=[parameter("batch", tree)], tree=tree)
    )
    forward = forward_of(value)
    a, b = torch.zeros(4), torch.ones(4)
    result = forward(make(a, b))
    assert result == make(b, a)
    assert type(result) is type(make(a, b))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dict", {"image": 1}, "method `forward` takes a dict of \"image\", 0 for `batch`\n  found: dict of 'image'"),
        ("dict", [1, 2], 'method `forward` takes a dict of "image", 0 for `batch`\n  found: list of 2 items'),
        (
            "dict",
            {"image": 1, 0: 2},
            'method `forward` takes float32[4] for `batch["image"]`\n  found: 1: not a tensor',
        ),
        ("tuple", (1, (2,)), "method `forward` takes a list of 1 item for `batch[1]`\n  found: tuple of 1 items"),
        ("tuple", None, "method `forward` takes a tuple of 2 items for `batch`\n  found: None"),
        (
            "namedtuple",
            (1, 2),
            "method `forward` takes a named tuple of `x`, `y` for `batch`\n  found: tuple of 2 items",
        ),
        ("object", 7, "method `forward` takes a `Pair` with `left`, `right` for `batch`\n  found: a value of type int"),
        (
            "object",
            Pair(1, (2, 3)),  # type: ignore[arg-type]
            "method `forward` takes None for `batch.right[1]`\n  found: a value of type int",
        ),
    ],
)
def test_wrong_containers(name: str, value: Any, message: str) -> None:
    tree, _ = TREES[name]
    forward = forward_of(plan_value(forward=method([VECTOR, VECTOR], [], v(1), parameters=[parameter("batch", tree)])))
    with pytest.raises(InputError) as caught:
        forward(value)
    assert str(caught.value).startswith(message)


def test_outputs_whose_classes_are_not_installed() -> None:
    tree = {
        "object": "no_such_package:Output",
        "keys": ["logits", "corner"],
        "children": ["*", {"namedtuple": "no_such_package:Corner", "fields": ["x", "y"], "children": ["*", "*"]}],
    }
    value = plan_value(
        forward=method([VECTOR], [], v(0), 1, None, tree=tree),
        methods=None,
    )
    result = forward_of(value)(torch.zeros(4))
    assert isinstance(result, Record)
    assert torch.equal(result.logits, torch.zeros(4))
    assert result["logits"] is result.logits is result[0]
    assert list(result) == ["logits", "corner"]
    assert (result.corner.x, result.corner.y) == (1, None)
    assert repr(result).startswith("Output(logits=tensor(")
    with pytest.raises(AttributeError, match="`other` is no field of this Record"):
        result.other  # noqa: B018


def test_a_field_of_a_record_comes_before_a_method_of_mappings() -> None:
    record = Record("shapes:Scores", {"values": 1, "_fields": 2, "__class__": 3, "_x": 4})
    assert (record.values, record._x, record["_fields"]) == (1, 4, 2)
    assert isinstance(record, Record)


def test_what_a_record_came_from_can_be_passed_again() -> None:
    tree = {"object": "no_such_package:Cache", "keys": ["keys"], "children": ["*"]}
    forward = forward_of(
        plan_value(forward=method([VECTOR], [], v(0), parameters=[parameter("cache", tree)], tree=tree))
    )
    first = forward(Record("no_such_package:Cache", {"keys": torch.ones(4)}))
    assert torch.equal(forward(first)["keys"], torch.ones(4))


def test_a_method_without_inputs_and_outputs() -> None:
    assert forward_of(plan_value(forward=method([], [], tree=None)))() is None
    assert forward_of(plan_value(forward=method([], [], tree={"tuple": []})))() == ()
    forward = forward_of(plan_value(forward=method([], [], tree=None, parameters=[parameter("mask", None)])))
    assert forward(None) is None
    with pytest.raises(InputError, match="takes None for `mask`"):
        forward(1)


# operators


def test_operators_take_every_kind_of_argument() -> None:
    body = [
        op(
            "aten.full.default",
            [2, 3],
            {"float": "inf"},
            dtype={"dtype": "float64"},
            device={"device": "cpu"},
            layout={"layout": "strided"},
            pin_memory=False,
            out=1,
        ),
        op("aten.clone.default", v(1), memory_format={"memory_format": "contiguous_format"}, out=2),
        op("aten.cat.default", [v(1), v(2)], -1, out=3),
        op("aten.random.from", v(0), 3, 4, out=4),
        op("aten.slice.Tensor", v(3), 1, None, None, 2, out=5),
        op("aten.mul.Scalar", v(0), {"complex": [0, 1]}, out=6),
        op("aten.div.Tensor_mode", v(0), 2, rounding_mode="floor", out=7),
    ]
    forward = forward_of(plan_value(forward=method([VECTOR], body, v(5), v(6), v(7), tree={"list": ["*", "*", "*"]})))
    sliced, imaginary, halves = forward(torch.ones(4))
    assert torch.equal(sliced, torch.full((2, 3), float("inf"), dtype=torch.float64))
    assert torch.equal(imaginary, torch.ones(4) * 1j)
    assert halves.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "name",
    [
        "aten.no_such_op.default",
        "no_such_library.op.default",
        "aten.add.__class__",
        "aten.__file__.default",
        "aten.manual_seed.default",
        "aten.len.Tensor",
        "prim.Print.default",
    ],
)
def test_an_operator_that_torch_does_not_have(name: str) -> None:
    with pytest.raises(ProgramError) as caught:
        executor_of(plan_value(forward=method([VECTOR], [op(name, v(0), out=1)], v(1))))
    assert str(caught.value) == (
        "the program calls an operator that torch does not have here\n"
        "  where: method `forward`\n"
        f"  found: {name}\n"
        "  to do: install the torch version that the program requires; if a library registers the operator, name its "
        "module in the setting `imports` and build the wheel again; until then, import the module before loading"
    )


def addressing() -> list[Any]:
    """Return torch's operators that take sizes and strides for a tensor's memory."""
    found = []
    for each in torch._C._jit_get_all_schemas():
        names = {argument.name for argument in each.arguments}
        given = {"size", "shape", "sizes"} & names and {"stride", "strides"} & names
        is_known = torch._C._dispatch_has_kernel(f"{each.name}.{each.overload_name}".rstrip("."))
        if given and is_known and "out" not in names and str(each.arguments[0].type) == "Tensor":
            found.append(each)
    return found


@pytest.mark.parametrize("schema", addressing(), ids=lambda each: f"{each.name}.{each.overload_name}")
@pytest.mark.parametrize(("size", "stride"), [([10**6], [1]), ([2], [10**6]), ([2], [-10])])
def test_no_operator_reads_outside_of_its_arguments(schema: Any, size: list[int], stride: list[int]) -> None:
    given: dict[str, Any] = {"size": size, "shape": size, "sizes": size, "stride": stride, "strides": stride}
    args: list[Any] = []
    for each in schema.arguments:
        if each.name in given or each.kwarg_only or str(each.type).startswith("Optional"):
            args.append(given.get(each.name))
        else:
            args.append(v(0) if str(each.type) == "Tensor" else 6 if each.name == "dtype" else 0)
    count = sum(not each.kwarg_only for each in schema.arguments)
    name = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
    memory = torch.frombuffer(bytearray(16), dtype=torch.float32)
    try:
        forward = forward_of(plan_value(forward=method([VECTOR], [op(name, *args[:count], out=1)], v(1))))
        result = forward(memory)
    except Exception:  # refused, in whatever words
        return
    if result is not None:
        ends = [(n - 1) * step for n, step in zip(result.shape, result.stride(), strict=True)]
        assert result.storage_offset() + sum(ends) < result.untyped_storage().nbytes() // result.itemsize


def test_a_view_within_its_storage_is_given() -> None:
    view = op("aten._reshape_alias.default", v(0), [2, 2], [1, 2], out=1)
    assert forward_of(plan_value(forward=method([VECTOR], [view], v(1))))(torch.arange(4.0)).tolist() == [
        [0, 2],
        [1, 3],
    ]
    empty = op("aten._reshape_alias.default", v(0), [0, 2], [9, 9], out=1)
    assert forward_of(plan_value(forward=method([VECTOR], [empty], v(1))))(torch.zeros(4)).shape == (0, 2)


@pytest.mark.parametrize("name", ["_reshape_alias", "_reshape_alias_copy"])
def test_a_view_out_of_its_storage_is_an_error_of_that_call(name: str) -> None:
    alias = op(f"aten.{name}.default", v(0), stride=[1], size=[10**9], out=1)
    with pytest.raises(ProgramError) as caught:
        forward_of(plan_value(forward=method([VECTOR], [alias], v(1))))(torch.zeros(4))
    assert caught.value.what == "the program would have read memory outside of a tensor"
    assert caught.value.found == "sizes [1000000000] and strides [1], where there is room for 4 elements"


@pytest.mark.parametrize(
    "name",
    [
        "aten._sparse_coo_tensor_unsafe.default",
        "aten._sparse_coo_tensor_with_dims_and_tensors.default",
        "aten._nested_view_from_buffer.default",
        "aten.set_.source_Tensor_storage_offset",
        "inductor._reinterpret_tensor.default",
    ],
)
def test_an_operator_that_checks_nothing_is_refused(name: str) -> None:
    with pytest.raises(ProgramError, match="an operator that may read memory outside of its arguments"):
        executor_of(plan_value(forward=method([VECTOR], [op(name, v(0), out=1)], v(1))))


def test_the_indices_of_a_sparse_tensor_are_compared_with_its_sizes() -> None:
    make = op("aten.sparse_coo_tensor.indices_size", v(0), v(1), [4], out=2)
    body = [make, op("aten._to_dense.default", v(2), out=3)]
    forward = forward_of(plan_value(forward=method([tensor_input(1, 1, dtype="int64"), tensor_input(1)], body, v(3))))
    assert forward(torch.tensor([[2]]), torch.ones(1)).tolist() == [0, 0, 1, 0]
    with pytest.raises(RuntimeError, match="found index 3000000"):
        forward(torch.tensor([[3000000]]), torch.ones(1))


@pytest.mark.parametrize(
    "instruction",
    [
        op("aten.neg.default", v(0), 1, out=1),
        op("aten.neg.default", v(0), alpha=2, out=1),
        op("aten.neg.default", v(0), self=v(0), out=1),
    ],
)
def test_an_operator_with_wrong_arguments(instruction: Any) -> None:
    with pytest.raises(
        ProgramError, match="the program calls an operator with arguments that the operator does not have"
    ):
        executor_of(plan_value(forward=method([VECTOR], [instruction], v(1))))


def test_values_are_freed_after_their_last_use() -> None:
    source = executor_of(
        plan_value(
            forward=method([VECTOR], [op(ADD, v(0), 1, out=1), op(ADD, v(1), 1, out=2), op(ADD, v(2), 1, out=3)], v(3))
        )
    ).source("forward")
    assert [line.strip() for line in source.splitlines() if "del " in line] == ["del x0", "del _v1", "del _v2"]


def test_generated_code_names_nothing_that_is_not_bound() -> None:
    executor = executor_of(delegated())
    tree = ast.parse(executor.source("forward"))
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    stored |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    bound = executor.methods["forward"].__globals__.keys() | stored | {"image", "_rest", "_extra", "_again"}
    assert loaded <= bound - {"__builtins__"}
    assert {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} <= {0, 1, 4, 8, 1024}


# control flow


def test_cond() -> None:
    yes = graph(1, [op(ADD, v(0), c("w"), out=1)], v(1), v(0))
    no = graph(1, [op("aten.sub.Tensor", v(0), 1, out=5)], v(5), v(0))
    body = [
        op("aten.sum.default", v(0), out=1),
        op("aten.gt.Scalar", v(1), 0, out=2),
        {"kind": "cond", "predicate": v(2), "true": yes, "false": no, "args": [v(0)], "out": 3},
        python("getitem", v(3), 0, out=4),
    ]
    forward = forward_of(
        plan_value(
            forward=method([VECTOR], body, v(4)),
            storages=[("w", "float32", 4)],
            constants={"w": constant(0, 4)},
        ),
        torch.full((4,), 10.0),
    )
    assert forward(torch.ones(4)).tolist() == [11.0] * 4
    assert forward(-torch.ones(4)).tolist() == [-2.0] * 4


def test_a_delegate_inside_a_branch_knows_the_symbols() -> None:
    entry = tensor_input("s0", 4)
    produced = tensor_input(4, "s0", stride=["s0", 1])
    yes = graph(
        1,
        [
            op("aten.permute.default", v(0), [1, 0], out=1),
            call(0, [v(1)], [produced], 2),
            python("getitem", v(2), 0, out=3),
        ],
        v(3),
    )
    no = graph(1, [op("aten.permute.default", v(0), [1, 0], out=1)], v(1))
    body = [
        op("aten.sym_size.int", v(0), 0, out=1),
        python("gt", v(1), 2, out=2),
        {"kind": "cond", "predicate": v(2), "true": yes, "false": no, "args": [v(0)], "out": 3},
        python("getitem", v(3), 0, out=4),
    ]
    executor = executor_of(
        plan_value(forward=method([entry], body, v(4), symbols=BATCH), delegates=[delegate_entry("doubling")])
    )
    value = torch.randn(3, 4)
    assert torch.equal(executor.methods["forward"](value), value.T * 2)
    assert torch.equal(executor.methods["forward"](value[:2]), value[:2].T)
    ((seen,),) = executor._delegates[0].calls  # type: ignore[attr-defined]
    assert seen.stride() == (3, 1)


def test_while() -> None:
    condition = graph(3, [op("aten.lt.Tensor", v(0), v(2), out=3)], v(3))
    step = graph(3, [op(ADD, v(0), 1, out=3), op("aten.mul.Tensor", v(1), 2, out=4)], v(3), v(4))
    loop = {
        "kind": "while",
        "condition": condition,
        "body": step,
        "args": [v(0), v(1)],
        "extra": [v(2)],
        "out": 3,
    }
    scalar = tensor_input(dtype="int64")
    body = [loop, python("getitem", v(3), 0, out=4), python("getitem", v(3), 1, out=5)]
    forward = forward_of(
        plan_value(forward=method([scalar, VECTOR, scalar], body, v(4), v(5), tree={"tuple": ["*", "*"]}))
    )
    count, value = forward(torch.tensor(0), torch.ones(4), torch.tensor(3))
    assert (count.item(), value.tolist()) == (3, [8.0] * 4)
    assert forward(torch.tensor(5), torch.ones(4), torch.tensor(3))[0].item() == 5


MATRIX = tensor_input("s0", 4)


def rows_value(instruction: Any, *inputs: Any, results: int) -> dict[str, Any]:
    """Return a plan with one loop over rows, whose results are the method's."""
    items = [python("getitem", v(9), index, out=10 + index) for index in range(results)]
    outputs = [v(10 + index) for index in range(results)]
    return plan_value(
        forward=method(inputs, [instruction, *items], *outputs, symbols=BATCH, tree={"tuple": ["*"] * results}),
        storages=[("w", "float32", 4)],
        constants={"w": constant(0, 4)},
        delegates=[delegate_entry("doubling")],
    )


def test_map() -> None:
    body = graph(
        3,
        [op("aten.mul.Tensor", v(0), v(2), out=3), op(ADD, v(3), c("w"), out=4), op("aten.sum.default", v(1), out=5)],
        *(v(4), v(5), None, v(0)),
    )
    instruction = {"kind": "map", "body": body, "args": [v(0), v(1)], "extra": [3], "out": 9}
    forward = forward_of(rows_value(instruction, MATRIX, MATRIX, results=4), torch.ones(4))
    for count in (1, 5):
        x, y = torch.randn(count, 4), torch.randn(count, 4)
        result, sums, nothing, same = forward(x, y)
        assert torch.equal(result, x * 3 + 1)
        torch.testing.assert_close(sums, y.sum(1))
        assert nothing is None
        assert torch.equal(same, x)
        assert same.data_ptr() != x.data_ptr()


def test_scan() -> None:
    body = graph(
        3,
        [op(ADD, v(0), v(1), out=3), op("aten.mul.Tensor", v(0), v(2), out=4)],
        *(v(3), v(4), v(1)),
    )
    instruction = {"kind": "scan", "body": body, "args": [v(0)], "rows": [v(1)], "extra": [c("w")], "out": 9}
    forward = forward_of(rows_value(instruction, VECTOR, MATRIX, results=3), torch.full((4,), 2.0))
    for count in (1, 5):
        start, x = torch.randn(4), torch.randn(count, 4)
        last, products, rows = forward(start, x)
        sums = torch.cat([start[None], x]).cumsum(0)
        torch.testing.assert_close(last, sums[-1])
        torch.testing.assert_close(products, sums[:-1] * 2)
        assert torch.equal(rows, x)


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(0, 4), (0, 4)], "tensors of shape [0, 4], [0, 4]"),
        ([(2, 4), (3, 4)], "tensors of shape [2, 4], [3, 4]"),
    ],
)
def test_rows_that_are_missing(shapes: list[tuple[int, int]], found: str) -> None:
    other = tensor_input("s1", 4)
    body = graph(2, [op(ADD, v(0), v(1), out=2)], v(2))
    instruction = {"kind": "map", "body": body, "args": [v(0), v(1)], "extra": [], "out": 9}
    value = rows_value(instruction, MATRIX, other, results=1)
    value["methods"]["forward"]["symbols"] = {name: {"min": 0, "max": None, "name": name} for name in ("s0", "s1")}
    with pytest.raises(InputError) as caught:
        forward_of(value, torch.ones(4))(*map(torch.zeros, shapes))
    assert str(caught.value) == (
        "the method loops over the rows of tensors, which need at least one row and equal numbers of rows\n"
        "  where: method `forward`\n"
        f"  found: {found}\n"
        "  to do: pass larger tensors; the eager module refuses these tensors, too"
    )


@pytest.mark.parametrize("kind", ["map", "scan"])
def test_a_delegate_that_is_called_for_each_row(kind: str) -> None:
    produced = tensor_input(4, "s0", stride=["s0", 1])
    body = graph(
        2,
        [
            op("aten.permute.default", v(1), [1, 0], out=2),
            op("aten.mul.Tensor", v(2), v(0), out=3),
            call(0, [v(3)], [produced], 4),
            python("getitem", v(4), 0, out=5),
        ],
        v(5),
    )
    rows = {"args": [v(0)], "extra": [v(1)]}
    if kind == "scan":
        body["outputs"] = [v(0), v(5)]
        body["inputs"] = [7, 0, 1]
        body["outputs"] = [v(7), v(5)]
        rows = {"args": [v(0)], "rows": [v(0)], "extra": [v(1)]}
    instruction = {"kind": kind, "body": body, **rows, "out": 9}
    results = 1 if kind == "map" else 2
    executor = executor_of(rows_value(instruction, tensor_input(3), MATRIX, results=results), torch.ones(4))
    factors, value = torch.randn(3), torch.randn(5, 4)
    result = executor.methods["forward"](factors, value)[-1]
    torch.testing.assert_close(result, torch.stack([value.T * each * 2 for each in factors]))
    seen = executor._delegates[0].calls  # type: ignore[attr-defined]
    assert [given.stride() for (given,) in seen] == [(5, 1)] * 3


def test_what_a_loop_over_rows_returns_shares_no_memory_with_constants() -> None:
    """The last carried value may be what the loop began with; stacked outputs are copies."""
    body = graph(2, [], v(0), v(1))
    instruction = {"kind": "scan", "body": body, "args": [c("w")], "rows": [v(0)], "extra": [], "out": 9}
    executor = executor_of(rows_value(instruction, MATRIX, results=2), torch.ones(4))
    last, _ = executor.methods["forward"](torch.zeros(2, 4))
    last.fill_(7)
    assert executor._constants["w"].tolist() == [1.0] * 4


# constants, state, aliasing

COUNTER: dict[str, Any] = {
    "storages": [("count", "float32", 4), ("w", "float32", 4)],
    "constants": {"count": constant(0, 4, mutable=True), "w": constant(1, 4)},
}


def counter_spans() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4), torch.ones(4)


def test_constants_are_views_of_their_storages() -> None:
    value = plan_value(
        forward=method([], [op("aten.mm.default", c("t"), c("w"), out=0)], v(0)),
        storages=[("k", "float32", 6), ("z", "float32", 4)],
        constants={
            "w": constant(0, 2, 3),
            "t": constant(0, 3, 2, stride=(1, 3)),
            "z": constant(1, 2, dtype="complex64"),
        },
    )
    span = torch.arange(6.0)
    assert torch.equal(forward_of(value, span, torch.zeros(4))(), span.reshape(2, 3).T @ span.reshape(2, 3))


def test_state_is_kept_cloned_and_reset() -> None:
    spans = counter_spans()
    value = plan_value(
        forward=method([], [op(ADD, c("count"), c("w"), out=0)], v(0), mutations=[("count", v(0))]), **COUNTER
    )
    executor = executor_of(value, *spans)
    assert [executor.methods["forward"]()[0].item() for _ in range(3)] == [1, 2, 3]
    other = executor.clone()
    assert other.methods["forward"]()[0].item() == 4
    assert executor.methods["forward"]()[0].item() == 4
    other.reset()
    assert other.methods["forward"]()[0].item() == 1
    assert executor.methods["forward"]()[0].item() == 5
    assert spans[0].tolist() == [0.0] * 4


def test_state_can_be_changed_in_inference_mode_and_outside() -> None:
    value = plan_value(
        forward=method([], [op(ADD, c("count"), c("w"), out=0)], v(0), mutations=[("count", v(0))]), **COUNTER
    )
    with torch.inference_mode():
        executor = executor_of(value, *counter_spans())
        executor.methods["forward"]()
        other = executor.clone()
    other.methods["forward"]()
    executor.reset()
    assert other.methods["forward"]()[0].item() == 3


def test_tied_state_is_one_tensor() -> None:
    value = plan_value(
        {
            "forward": method([], [op(ADD, c("a"), 1, out=0)], v(0), mutations=[("a", v(0))]),
            "read": method([], [op(ADD, c("b"), 0, out=0)], v(0)),
        },
        storages=[("k", "float32", 4)],
        constants={"a": constant(0, 4, mutable=True), "b": constant(0, 2, offset=2)},
    )
    executor = executor_of(value, torch.zeros(4))
    executor.methods["forward"]()
    assert executor.methods["read"]().tolist() == [1.0, 1.0]
    other = executor.clone()
    executor.methods["forward"]()
    assert other.methods["read"]().tolist() == [1.0, 1.0]


def test_a_delegate_bound_to_state_is_loaded_for_each_instance() -> None:
    body = [call(0, [v(0)], [VECTOR], 1), call(1, [v(0)], [VECTOR], 2), python("getitem", v(1), 0, out=3)]
    value = plan_value(
        forward=method([VECTOR], body, v(3)),
        delegates=[delegate_entry("doubling", "w", "count"), delegate_entry("doubling", "w")],
        **COUNTER,
    )
    spans = counter_spans()
    executor = executor_of(value, *spans)
    other = executor.clone()
    bound, shared = executor._delegates
    assert other._delegates[0] is not bound
    assert other._delegates[1] is shared
    assert bound.constants[0].data_ptr() == spans[1].data_ptr()  # type: ignore[attr-defined]
    pointers = {each._delegates[0].constants[1].data_ptr() for each in (executor, other)}  # type: ignore[attr-defined]
    assert len(pointers | {spans[0].data_ptr()}) == 3


class Own(Doubling):
    """Keeps a count for itself."""

    count = 0

    def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        self.count += 1
        return [inputs[0] * 0 + self.count]


def test_a_delegate_with_state_of_its_own() -> None:
    value = delegated(VECTOR, {})
    value["delegates"][0] |= {"info": {"stateful": True}}
    executor = executor_of(value, delegates={"doubling": Own})
    forward = executor.methods["forward"]
    assert [forward(torch.zeros(4))[0].item() for _ in range(2)] == [1, 2]
    assert executor.clone().methods["forward"](torch.zeros(4))[0].item() == 1
    executor.reset()
    assert forward(torch.zeros(4))[0].item() == 1


def test_an_old_view_of_the_state_keeps_its_value() -> None:
    body = [op("aten.select.int", c("count"), 0, 0, out=0), op(ADD, c("count"), 1, out=1)]
    value = plan_value(
        forward=method([], body, v(0), c("count"), tree={"tuple": ["*", "*"]}, mutations=[("count", v(1))]), **COUNTER
    )
    forward = forward_of(value, *counter_spans())
    first = forward()
    assert (first[0].item(), first[1].tolist()) == (0.0, [0.0] * 4)
    assert forward()[0].item() == 1.0
    assert first[0].item() == 0.0


def test_buffers_that_are_exchanged() -> None:
    value = plan_value(
        forward=method([], [], mutations=[("a", c("b")), ("b", c("a"))], tree=None),
        storages=[("a", "float32", 1), ("b", "float32", 1)],
        constants={"a": constant(0, 1, mutable=True), "b": constant(1, 1, mutable=True)},
    )
    executor = executor_of(value, torch.tensor([1.0]), torch.tensor([2.0]))
    executor.methods["forward"]()
    assert [each.item() for each in executor._constants.values()] == [2.0, 1.0]


def test_a_buffer_that_becomes_a_view_of_itself() -> None:
    value = plan_value(
        forward=method([], [op("aten.permute.default", c("a"), [1, 0], out=0)], tree=None, mutations=[("a", v(0))]),
        storages=[("a", "float32", 9)],
        constants={"a": constant(0, 3, 3, mutable=True)},
    )
    executor = executor_of(value, torch.arange(9.0))
    executor.methods["forward"]()
    assert torch.equal(executor._constants["a"], torch.arange(9.0).reshape(3, 3).T)


def test_outputs_never_share_memory_with_constants() -> None:
    body = [op("aten.view.default", c("w"), [2, 2], out=0), op("aten.dropout.default", c("w"), 0.5, False, out=1)]
    outputs = [v(0), v(1), c("w"), c("count")]
    value = plan_value(forward=method([], body, *outputs, tree={"list": ["*"] * 4}), **COUNTER)
    executor = executor_of(value, *counter_spans())
    for each in executor.methods["forward"]():
        each.fill_(7)
    assert executor._constants["w"].tolist() == [1.0] * 4
    assert executor._constants["count"].tolist() == [0.0] * 4


def test_outputs_may_be_inputs() -> None:
    body = [op("aten.view.default", v(0), [2, 2], out=1)]
    forward = forward_of(plan_value(forward=method([VECTOR], body, v(0), v(1), tree={"tuple": ["*", "*"]})))
    value = torch.zeros(4)
    same, view = forward(value)
    assert same is value
    assert view.data_ptr() == value.data_ptr()


def test_inputs_that_are_changed_in_place() -> None:
    body = [op(ADD, v(0), 1, out=1), op("aten.view.default", v(0), [2, 2], out=2)]
    value = plan_value(
        forward=method([VECTOR], body, v(1), v(2), tree={"tuple": ["*", "*"]}, input_mutations=[(0, v(1))])
    )
    forward = forward_of(value)
    tensor = torch.zeros(4, requires_grad=True)
    new, old = forward(tensor)
    assert tensor.tolist() == new.tolist() == [1.0] * 4
    assert old.tolist() == [[0.0, 0.0]] * 2
    with pytest.raises(InputError) as caught:
        forward(torch.zeros(8)[::2])
    assert "strides [2], which must be [1]: the method changes this tensor in place" in str(caught.value)


def test_a_model_with_state_runs_one_call_at_a_time() -> None:
    class Watching(Doubling):
        inside: ClassVar[list[int]] = []
        seen: ClassVar[set[int]] = set()

        def run(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
            self.inside.append(1)
            self.seen.add(len(self.inside))
            threading.Event().wait(0.002)
            self.inside.pop()
            return inputs

    body = [call(0, [v(0)], [VECTOR], 1), python("getitem", v(1), 0, out=2), op(ADD, c("count"), 1, out=3)]
    value = plan_value(
        forward=method([VECTOR], body, v(2), mutations=[("count", v(3))]),
        delegates=[delegate_entry("doubling")],
        **COUNTER,
    )
    executor = executor_of(value, *counter_spans(), delegates={"doubling": Watching})
    threads = [
        threading.Thread(target=lambda: [executor.methods["forward"](torch.zeros(4)) for _ in range(5)])
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert Watching.seen == {1}
    assert executor._constants["count"][0].item() == 20


# delegates that cannot be loaded


def test_a_delegate_that_is_not_there() -> None:
    with pytest.raises(ProgramError) as caught:
        executor_of(delegated(), delegates={"doublin": Doubling})
    assert str(caught.value) == (
        "the program needs the delegate `doubling`, which is not installed\n"
        "  where: digits/delegates/blob.bin\n"
        "  found: did you mean `doublin`? known: `doublin`\n"
        "  to do: install the package that provides the delegate"
    )


def test_a_delegate_that_fails_to_load() -> None:
    class Failing(Doubling):
        @classmethod
        def load(cls, blob: DelegateBlob, constants: Sequence[torch.Tensor]) -> Doubling:
            raise OSError("wrong ELF class")

    with pytest.raises(ProgramError) as caught:
        executor_of(delegated(), delegates={"doubling": Failing})
    assert str(caught.value) == (
        "the delegate `doubling` cannot load its program\n"
        "  where: digits/delegates/blob.bin\n"
        "  found: OSError: wrong ELF class\n"
        "  to do: install the versions that the program requires, or build the wheel again"
    )
