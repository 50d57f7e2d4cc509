"""Capturing methods: the programs, and a whole sentence for what cannot be captured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.older import DERIVED_SIZES
from torch.export import Dim
from torch.export.graph_signature import InputKind

from hatch_lower.errors import CaptureError
from hatch_lower.events import Event, NullReporter
from hatch_lower.exir.graph.canonical import canonical_form
from hatch_lower.exir.lowering.process_state import arithmetic_settings
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel, capture_model
from hatch_lower.pipeline.sandbox import export_guard
from hatch_lower.runtime.torch_private.operators import OpOverload

pytestmark = pytest.mark.torch

ROOTS = (Path(__file__).parent,)
PAIR = torch.zeros(2, 4)


class Net(torch.nn.Module):
    """Methods that can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.linear(image)

    def embed(self, image: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.count += 1
        return self.linear(image) * scale

    def gather(self, image: torch.Tensor, *rest: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return image + sum(rest) + sum(named.values())

    def pair(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one + 2 * other

    def nested(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]]) -> torch.Tensor:
        return pair[0] + pair[1]["b"]


class Bad(torch.nn.Module):
    """Methods that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(4)
        self.size = 3

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy())

    def shape(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 4)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        return self.total + 1

    def recipe(self, x: torch.Tensor) -> torch.Tensor:
        return x


def capture(module: torch.nn.Module, **methods: Method) -> CapturedModel:
    return capture_model("net", Model(module, methods), NullReporter(), roots=ROOTS)


def only(model: CapturedModel) -> CapturedMethod:
    (method,) = model.methods
    return method


def refuse(module: torch.nn.Module, **methods: Method) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(module, **methods)
    return str(caught.value)


def line_of(text: str) -> int:
    """Return the number of the only line of this file that ends with `text`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(text)]
    return number


def parameter_names(method: CapturedMethod) -> list[str | None]:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    return [spec.target for spec in method.program.graph_signature.input_specs if spec.kind in kinds]


def test_methods_share_the_modules_names_and_tensors() -> None:
    net = Net().eval()
    model = capture(net, forward=Method((PAIR,)), embed=Method((PAIR,), {"scale": 2.0}))
    assert [method.name for method in model.methods] == ["forward", "embed"]
    assert model.attributes == {"forward": "forward", "embed": "embed"}
    for method in model.methods:
        assert parameter_names(method) == ["linear.weight", "linear.bias", "count"]
        assert method.parameters == ("image",)
        assert method.program.state_dict["linear.weight"] is net.linear.weight
        assert method.program.state_dict["count"] is net.count
    assert model.methods[1].kwargs == {"scale": 2.0}


def test_exporting_leaves_the_module_as_it_was() -> None:
    net = Net().eval()
    model = capture(net, run=Method((PAIR,), attribute="embed"))
    assert model.eager is net
    assert model.attributes == {"run": "embed"}
    assert net.count == 0
    assert "forward" not in vars(net)
    assert net(PAIR).shape == (2, 3)


def test_a_module_with_a_forward_of_its_own_keeps_it() -> None:
    net = Net().eval()
    net.forward = own = net.embed  # type: ignore[method-assign]
    capture(net, nested=Method(((PAIR, {"b": PAIR}),)))
    assert vars(net)["forward"] is own


class Sentences(torch.nn.Module):
    """Methods that call `forward`, in the two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
        self.scale = torch.full((4,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).relu()

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).relu()


@pytest.mark.parametrize("strict", [False, True])
def test_a_method_may_call_forward(strict: bool) -> None:
    net, x = Sentences().eval(), torch.randn(2, 4)
    model = capture(net, embed=Method((PAIR,), strict=strict), classify=Method((PAIR,), strict=strict))
    for method in model.methods:
        assert torch.equal(method.program.module()(x), net.embed(x))
        assert parameter_names(method) == ["layers.0.weight", "layers.0.bias"]
        assert list(method.program.constants) == ["scale"]
        stacks = [
            [*node.meta["nn_module_stack"].values()]
            for node in method.program.graph.nodes
            if node.op == "call_function"
        ]
        assert [stack[-1][0] for stack in stacks][:3] == ["layers.0", "", ""]


def test_a_method_is_exported_where_the_module_has_a_forward_of_its_own() -> None:
    net = Sentences().eval()
    net.forward = net.forward  # type: ignore[method-assign]
    method = only(capture(net, embed=Method((PAIR,))))
    assert torch.equal(method.program.module()(PAIR - 1), net.embed(PAIR - 1))


def test_a_submodule_is_a_method_that_calls_it() -> None:
    method = only(capture(Net(), encode=Method((PAIR,), attribute="linear")))
    assert parameter_names(method)[:2] == ["linear.weight", "linear.bias"]
    assert method.parameters == ("input",)


def test_variadic_parameters() -> None:
    method = only(capture(Net(), gather=Method((PAIR, PAIR, PAIR), {"last": PAIR})))
    assert method.parameters == ("image", "rest_0", "rest_1")


def test_dynamic_dimensions_keep_their_names() -> None:
    batch, rest = Dim("batch", max=64), Dim("rest", max=64)
    shapes = {"image": {0: batch}, "rest": ({0: rest},), "last": {0: 2 * batch}}
    net = Net()
    net.gather = lambda image, *rest, last=None: (image, rest, last)  # type: ignore[method-assign]
    method = only(capture(net, gather=Method((PAIR, torch.zeros(3)), {"last": torch.zeros(4)}, dynamic_shapes=shapes)))
    assert sorted(method.dimensions.values()) == ["batch", "rest"]
    assert only(capture(net, gather=Method((PAIR,), dynamic_shapes=({0: batch},)))).dimensions
    computed = only(capture(net, gather=Method((torch.zeros(6),), dynamic_shapes=({0: 2 * batch},))))
    assert list(computed.dimensions.values()) == ["batch"]  # and no symbol of torch's
    automatic = only(capture(net, gather=Method((PAIR,), dynamic_shapes=({0: Dim.AUTO},))))
    assert automatic.dimensions == {}


def test_dynamic_dimensions_in_containers() -> None:
    batch = Dim("batch", max=64)
    shapes = {"pair": ({0: batch}, {"b": {0: batch}})}
    method = only(capture(Net(), nested=Method(((PAIR, {"b": PAIR}),), dynamic_shapes=shapes)))
    assert list(method.dimensions.values()) == ["batch"]


def test_dynamic_dimensions_of_variadic_parameters() -> None:
    size = Dim("size", max=64)
    net = Net()
    net.gather = lambda *inputs, **options: (inputs, options)  # type: ignore[method-assign]
    pairs, declared = (PAIR, torch.zeros(2)), {0: size}
    for shapes in (((declared, declared),), [(declared, None)], {"inputs": (declared, declared)}):
        method = only(capture(net, gather=Method(pairs, dynamic_shapes=shapes)))
        assert set(method.dimensions.values()) == {"size"}
        assert method.parameters == ("inputs_0", "inputs_1")
    named = {"last": PAIR, "listed": [torch.zeros(2)]}
    for shapes in (
        ((declared, declared), {"last": declared, "listed": [declared]}),
        {"inputs": (None, None), "options": {"last": declared, "listed": [None]}},
    ):
        method = only(capture(net, gather=Method(pairs, named, dynamic_shapes=shapes)))
        assert list(method.dimensions.values()) == ["size"]
        assert method.program.call_spec.in_spec.child(1).context == ["last", "listed"]


def test_shapes_that_torch_collects() -> None:
    shapes = torch.export.ShapesCollection()
    shapes[PAIR] = {0: Dim("size", max=64)}
    assert only(capture(Net(), gather=Method((PAIR,), dynamic_shapes=shapes))).program.range_constraints


def test_each_method_is_reported() -> None:
    events: list[Event] = []

    class Recorder(NullReporter):
        def report(self, event: Event) -> None:
            events.append(event)

    capture_model("net", Model(Net(), {"forward": Method((PAIR,))}), Recorder())
    assert [(event.stage, event.state, event.subject()) for event in events] == [
        ("export", "start", "net.forward"),
        ("export", "end", "net.forward"),
    ]


def test_ready_programs() -> None:
    net = Net().eval()
    program = torch.export.export(net, (PAIR,))
    other = torch.export.export(net, (torch.zeros(5, 4),))
    model = capture_model("net", {"forward": program, "five": other}, NullReporter())
    assert model.eager is None
    assert [method.parameters for method in model.methods] == [("image",), ("image",)]
    assert [method.args[0].shape[0] for method in model.methods] == [2, 5]
    assert model.methods[0].program is program


def test_ready_programs_with_equal_weights_share_them() -> None:
    net, same = Net(), Net()
    same.load_state_dict(net.state_dict())
    one, other = torch.export.export(net, (PAIR,)), torch.export.export(same, (PAIR,))
    capture_model("net", {"one": one, "other": other}, NullReporter())
    assert other.state_dict["linear.weight"] is one.state_dict["linear.weight"]


def ready_program(weight: float) -> torch.export.ExportedProgram:
    net = Net()
    for parameter in net.parameters():
        torch.nn.init.constant_(parameter, weight)
    return torch.export.export(net, (PAIR,))


def test_ready_programs_with_equal_weights_that_are_no_numbers_share_them() -> None:
    one, other = ready_program(float("nan")), ready_program(float("nan"))
    capture_model("net", {"one": one, "other": other}, NullReporter())
    assert other.state_dict["linear.weight"] is one.state_dict["linear.weight"]


def test_ready_programs_whose_zeros_differ_in_sign_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"different tensors under the name `linear\.weight`"):
        capture_model("net", {"one": ready_program(0.0), "other": ready_program(-0.0)}, NullReporter())


def test_ready_programs_with_different_weights_are_refused() -> None:
    one, other = torch.export.export(Net(), (PAIR,)), torch.export.export(Net(), (PAIR,))
    with pytest.raises(CaptureError) as caught:
        capture_model("net", {"one": one, "other": other}, NullReporter())
    assert str(caught.value) == (
        "methods `one` and `other` have different tensors under the name `linear.weight`\n"
        "  where: model `net`\n"
        "  found: float32[3, 4] and float32[3, 4]\n"
        "  to do: export both methods from the same module, or declare two models"
    )


def test_a_ready_program_without_example_inputs() -> None:
    program = torch.export.export(Net(), (PAIR,))
    program.example_inputs = None
    with pytest.raises(CaptureError) as caught:
        capture_model("net", {"forward": program}, NullReporter())
    assert str(caught.value) == (
        "the exported program has no example inputs, so the lowered program cannot be verified\n"
        "  where: model `net`, method `forward`\n"
        "  to do: export the program with `torch.export.export`, which keeps the example inputs, or set"
        " `verify = false` for every recipe of the model and `check-megabytes = 0`"
    )
    method = only(capture_model("net", {"forward": program}, NullReporter(), examples_needed=False))
    assert not method.has_examples


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("not a name", "a method's name must be a Python identifier", "rename the method"),
        ("class", "a method's name must be a Python identifier", "rename the method"),
        (
            "recipe",
            "`recipe` is already an attribute of every loaded model",
            'rename it: `"run_recipe": Method(attribute="recipe", …)`',
        ),
        (
            "_run",
            "a method's name must not begin with an underscore",
            'rename it: `"run_run": Method(attribute="_run", …)`',
        ),
    ],
)
def test_a_name_that_cannot_be_a_method(name: str, what: str, hint: str) -> None:
    message = f"{what}\n  where: model `net`, method `{name}`\n  to do: {hint}"
    assert refuse(Bad(), **{name: Method((PAIR,))}) == message


def test_a_method_that_the_module_does_not_have() -> None:
    assert refuse(Net(), embedd=Method((PAIR,))) == (
        "`Net` has no method `embedd`\n"
        "  where: model `net`, method `embedd`\n"
        "  to do: did you mean `embed`? known: `embed`, `forward`, `gather`, `nested`, `pair`"
    )


def test_an_attribute_that_is_no_method() -> None:
    assert refuse(Bad(), size=Method((PAIR,))) == (
        "`Bad.size` is not a method\n"
        "  where: model `net`, method `size`\n"
        "  found: a value of type `int`\n"
        "  to do: name a method of the module with `Method(attribute=…)`"
    )


def words_of(call: Callable[[], object]) -> str:
    # torch's own differ from version to version
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("args", "line", "found"),
    [
        (
            (torch.zeros(2, 5),),
            f", test_capture.py:{line_of('return self.linear(image)')}",
            f"RuntimeError: {words_of(lambda: Net()(torch.zeros(2, 5)))}",
        ),
        ((), "", "TypeError: Net.forward() missing 1 required positional argument: 'image'"),
        ((PAIR, PAIR), "", "TypeError: Net.forward() takes 2 positional arguments but 3 were given"),
    ],
)
def test_example_inputs_that_do_not_fit(args: tuple[Any, ...], line: str, found: str) -> None:
    assert refuse(Net(), forward=Method(args)) == (
        "method `forward` does not run with its example inputs\n"
        f"  where: model `net`, method `forward`{line}\n"
        f"  found: {found}\n"
        "  to do: correct `args` and `kwargs` of the `hatch_lower.Method`; the parameters are `image`"
    )


def test_the_line_of_a_library_s_class_is_named_without_a_line_of_the_project() -> None:
    with pytest.raises(CaptureError) as error:
        capture_model("net", Model(Bad(), {"branch": Method((PAIR,))}), NullReporter())
    line = line_of("if x.sum() > 0:")
    assert error.value.where == f"model `net`, method `branch`, {Bad.__module__.replace('.', '/')}.py:{line}"


def test_a_branch_on_data() -> None:
    assert refuse(Bad(), branch=Method((PAIR,))) == (
        "torch.export cannot capture method `branch`\n"
        f"  where: model `net`, method `branch`, test_capture.py:{line_of('if x.sum() > 0:')}\n"
        "  found: GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)"
        " (unhinted: Eq(u0, 1)).  (Size-like symbols: none)\n"
        "  to do: the line depends on the values in a tensor; use `torch.cond`, `torch.where` or `torch._check` there"
    )


def test_a_check_that_torch_cannot_export_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "Unknown symbol zuf0 created by constraints solver"

    def fail(*_: object, **named: object) -> None:
        raise AssertionError(problem)

    monkeypatch.setattr(torch.export, "export", fail)
    assert refuse(Net(), forward=Method((PAIR,))) == (
        "torch.export cannot capture method `forward`\n"
        f"  where: model `net`, method `forward`, test_capture.py:{line_of('raise AssertionError(problem)')}\n"
        f"  found: AssertionError: {problem}\n"
        "  to do: leave out the check of a floating-point number from a tensor (`torch._check(x.sum().item() > 0)`), or"
        " build with torch 2.13 or later"
    )


def test_code_that_leaves_torch() -> None:
    assert refuse(Bad(), leave=Method((PAIR,))) == (
        "torch.export cannot capture method `leave`\n"
        f"  where: model `net`, method `leave`, test_capture.py:{line_of('return torch.from_numpy(x.numpy())')}\n"
        "  found: RuntimeError: .numpy() is not supported for tensor subclasses.\n"
        "  to do: rewrite the line with torch operations; `torch.export.draft_export` lists every obstacle"
    )


@dataclass
class Batch:
    image: torch.Tensor


@pytest.mark.parametrize(
    ("run", "given"),
    [(lambda self, batch: batch.image + 1, Batch(PAIR)), (lambda self, image: Batch(image + 1), PAIR)],
)
def test_a_class_that_torch_does_not_know(run: Callable[..., Any], given: Any) -> None:
    message = refuse(type("Net", (torch.nn.Module,), {"forward": run})(), forward=Method((given,)))
    assert "test_capture.Batch`" in message
    assert message.endswith(
        "to do: use tensors, tuples and dictionaries; call `torch.export.register_dataclass` for a dataclass"
    )


def test_a_dynamic_dimension_that_the_code_fixes() -> None:
    method = Method((PAIR,), dynamic_shapes={"x": {0: Dim("rows", max=64)}})
    message = refuse(Bad(), shape=method)
    assert message.startswith(
        "the dynamic shapes of method `shape` do not hold\n"
        "  where: model `net`, method `shape`\n"
        "  found: Constraints violated (rows)!"
    )
    assert "Suggested fixes:\n      rows = 2\n" in message
    assert "TORCH_LOGS" not in message
    assert message.endswith(
        "  to do: declare `dynamic_shapes` as torch suggests, or omit the dimension to keep the size fixed; the"
        " parameters are `x`"
    )


def test_dynamic_shapes_of_an_unknown_parameter() -> None:
    message = refuse(Net(), forward=Method((PAIR,), dynamic_shapes={"x": {0: Dim("batch")}}))
    assert message.startswith("the dynamic shapes of method `forward` do not hold\n")
    assert "but here they are ['x']" in message
    assert message.endswith(
        "  to do: correct `dynamic_shapes`, or omit the dimension to keep the size fixed; the parameters are `image`"
    )


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Sum(torch.nn.Module):
    def forward(self, pair: Pair) -> torch.Tensor:
        return pair.left + pair.right


def test_dynamic_shapes_of_a_named_tuple_without_its_class() -> None:
    rows, example = Dim("rows", min=2, max=64), Pair(PAIR, PAIR)
    message = refuse(Sum(), forward=Method((example,), dynamic_shapes={"pair": ({0: rows}, {0: rows})}))
    assert "`inputs['pair']` is a `namedtuple`, but `dynamic_shapes['pair']` is a `tuple`" in message
    assert "write the named tuple's class in `dynamic_shapes`, as in `Pair({0: batch}, None)`" in message


def test_a_tensor_that_changes_and_is_no_buffer() -> None:
    assert refuse(Bad(), add=Method((PAIR,))) == (
        "method `add` changes `total`, which is not a buffer\n"
        "  where: model `net`\n"
        "  to do: register the tensor with `register_buffer`, so that a loaded model can keep its state: `total`"
    )


class Cache:
    """Holds a tensor, and is no module."""

    def __init__(self) -> None:
        self.keys = torch.zeros(4)


class Decoder(torch.nn.Module):
    """Registers what its cache holds as a buffer, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.register_buffer("keys", self.cache.keys)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.keys.add_(x.sum(0))
        return self.cache.keys * 2

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) + 1


def test_a_buffer_that_is_reached_through_another_object() -> None:
    assert refuse(Decoder(), forward=Method((PAIR,))) == (
        "method `forward` changes the buffer `keys` through an object that is not a module\n"
        "  where: model `net`\n"
        "  to do: export the method with `Method(…, strict=True)`, which recognizes the buffer"
    )


def test_a_strict_export_finds_the_buffer() -> None:
    decoder = Decoder()
    model = capture(decoder, forward=Method((PAIR,), strict=True), prefill=Method((PAIR,), strict=True))
    for method in model.methods:
        assert parameter_names(method) == ["keys"]
        assert method.program.state_dict["keys"] is decoder.keys
        assert list(method.program.run_decompositions({}).graph_signature.buffers_to_mutate.values()) == ["keys"]


def test_a_module_that_was_never_given_memory() -> None:
    with torch.device("meta"):
        net = Net()
    assert refuse(net, forward=Method((PAIR,))) == (
        "`linear.weight` is on the device `meta`; models are lowered on the CPU\n"
        "  where: model `net`\n"
        "  to do: load the weights before exporting; `to_empty` alone leaves weights unset"
    )


def test_a_sparse_buffer_and_a_sparse_input() -> None:
    net = Net()
    net.register_buffer("adjacency", torch.eye(3).to_sparse())
    assert refuse(net, forward=Method((PAIR,))) == (
        "`adjacency` has the layout `torch.sparse_coo`; models are lowered with dense tensors\n"
        "  where: model `net`\n"
        "  to do: make the tensor dense: `.to_dense()`, or pass its indices and values as two tensors"
    )
    assert refuse(Net(), forward=Method((torch.eye(3).to_sparse(),))).startswith("`args[0]` has the layout")


def test_example_inputs_without_memory() -> None:
    message = refuse(Net(), forward=Method(((PAIR, {"b": PAIR.to("meta")}),)))
    assert message.startswith("`args[0][1]['b']` is on the device `meta`; models are lowered on the CPU\n")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            "`torch.set_default_dtype`: torch.float64, before torch.float32",
        ),
        (lambda: torch.autocast("cpu", torch.bfloat16).__enter__(), "`torch.autocast`: torch.bfloat16, before off"),
        (lambda: torch.set_flush_denormal(True), "`torch.set_flush_denormal`: True, before False"),
        (lambda: torch.set_default_device("meta"), "`torch.set_default_device`: meta, before cpu"),
    ],
)
def test_an_export_that_leaves_torchs_arithmetic_changed_is_refused(change: Callable[[], Any], found: str) -> None:
    before = arithmetic_settings()
    with pytest.raises(CaptureError) as caught, export_guard("net"):
        change()
    assert str(caught.value).startswith(
        "the model's code leaves a setting of torch changed, and a process that loads the model lacks the change\n"
        f"  where: model `net`\n  found: {found}\n  to do: restore the setting before the entry point returns"
    )
    assert arithmetic_settings() == before
    assert torch._C._len_torch_function_stack() == 0, "a mode would keep eager from torch's fast paths"


def test_other_settings_of_torch_are_put_back_after_an_export() -> None:
    precision = torch.get_float32_matmul_precision()
    with export_guard("net"):
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("medium")
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == precision


def test_what_an_export_exchanges_of_the_standard_library_is_put_back() -> None:
    def exchange() -> None:
        json.dumps = lambda *_, **__: "{}"
        json.JSONEncoder.default = None  # type: ignore[method-assign,assignment]
        os.path.exists = lambda _: True
        os.added_by_the_model = 1  # type: ignore[attr-defined]
        del os.write
        raise ValueError("no weights")

    originals = json.dumps, json.JSONEncoder.default, os.write, os.path.exists
    with pytest.raises(ValueError, match="no weights"), export_guard("net"):
        exchange()
    assert (json.dumps, json.JSONEncoder.default, os.write, os.path.exists) == originals
    assert os.added_by_the_model == 1  # type: ignore[attr-defined]
    del os.added_by_the_model  # type: ignore[attr-defined]


def test_a_tensor_that_stands_twice_among_the_examples_is_two_inputs() -> None:
    a = torch.ones(3)
    method = only(capture(Net(), pair=Method(args=(a, a))))
    assert method.args[0] is a
    one, other = torch.rand(3), torch.rand(3)
    assert torch.equal(method.program.module()(one, other), Net().pair(one, other))


def test_a_ready_program_whose_inputs_were_one_tensor_is_refused() -> None:
    a = torch.ones(3)

    class Pair(torch.nn.Module):
        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return one + 2 * other

    program = torch.export.export(Pair(), (a, a))
    with pytest.raises(CaptureError) as caught:
        capture_model("net", {"forward": program}, NullReporter())
    assert str(caught.value) == (
        "the same tensor appears twice in the example inputs of the exported program; torch.export merges such inputs\n"
        "  where: model `net`, method `forward`\n"
        "  found: `args[0]`, `args[1]`\n"
        "  to do: export the program with a separate tensor for each input: `x.clone()`"
    )


class Keeping(torch.nn.Module):
    """Keeps its last result, as some attention layers do for plots."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Module()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.last = {"scores": x * 2}
        return self.inner.last["scores"] + 1


def test_a_result_that_a_method_keeps_in_the_module_is_refused() -> None:
    assert refuse(Keeping(), forward=Method(args=(torch.ones(2),))) == (
        "method `forward` stores a computed tensor in `inner.last`, which a program cannot do\n"
        "  where: model `net`\n"
        "  to do: return the tensor, or if later calls need the value, register a buffer and copy into the buffer:"
        ' `self.register_buffer("last", …)`'
    )


def test_memory_that_ran_out_is_not_the_methods_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(MemoryError):
        capture(Net(), forward=Method((PAIR,)))


class Counting(torch.nn.Module):
    """Counts in Python; says how many rows it saw last, which changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.rows = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls

    def harmless(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = len(x)
        return x * 2


def test_a_counter_of_python() -> None:
    net = torch.nn.Sequential(Counting())
    assert refuse(net, forward=Method((PAIR,))) == (
        "method `forward` changes `0.calls`, a Python value that influences the results\n"
        "  where: model `net`\n"
        "  found: 0 before a call and 1 after the call; a program keeps the first value\n"
        "  to do: keep the value in a buffer, and change the buffer in place:"
        ' `self.register_buffer("calls", torch.tensor(0))`, `self.calls.add_(1)`'
    )
    assert net[0].calls == 0
    assert only(capture(Counting(), harmless=Method((PAIR,)))).program


def test_modules_that_have_no_contents_yet() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3))
    assert refuse(lazy, forward=Method((PAIR,))) == (
        "`0.weight` has no shape and no contents yet\n"
        "  where: model `net`\n"
        "  found: a `LazyLinear` that was never called\n"
        "  to do: call the module once in the entry point, before the return: `module(*example_args)`"
    )
    bare = torch.nn.Module()
    bare.register_buffer("table", torch.nn.UninitializedBuffer())
    assert "found: an `UninitializedBuffer`" in refuse(bare, forward=Method((PAIR,)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript() -> None:
    traced = torch.jit.trace(torch.nn.Linear(PAIR.shape[-1], 2), PAIR)
    for module in (traced, torch.nn.Sequential(traced)):
        assert "is TorchScript, whose Python code torch.export cannot see" in refuse(module, forward=Method((PAIR,)))


@pytest.mark.parametrize(
    ("rows", "declared", "found"),
    [
        (1, Dim("rows", max=8), "dimension 0 of `input` is 1 in the example, and torch.export treats a size of 0 or 1"),
        (1, Dim.DYNAMIC, "dimension 0 of `input` is 1 in the example, and torch.export treats a size of 0 or 1"),
        (2, Dim("rows", max=1), "dimension 0 of `input` is 2 in the example, which is above max = 1 of `rows`"),
        (2, Dim("rows", min=4), "dimension 0 of `input` is 2 in the example, which is below min = 4 of `rows`"),
    ],
)
def test_examples_that_do_not_fit_the_declared_sizes(rows: int, declared: Any, found: str) -> None:
    method = Method((torch.zeros(rows, 4),), dynamic_shapes=({0: declared},))
    assert found in refuse(torch.nn.Linear(4, 3), forward=method)


def test_a_declared_dimension_that_the_example_lacks() -> None:
    method = Method((torch.zeros(3, 4),), dynamic_shapes=({2: Dim("rows")},))
    assert "`input` has no dimension 2" in refuse(torch.nn.Linear(4, 3), forward=method)


class Derived(torch.nn.Module):
    """Computes derivatives that torch.export cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def jacobian(self, x: torch.Tensor) -> Any:
        return {"jacobian": torch.func.vmap(torch.func.jacrev(self.layers))(x), "rows": len(x)}

    def hessian(self, x: torch.Tensor, *, scale: float = 1.0) -> Any:
        return torch.func.hessian(lambda row: self.layers(row).sum() * scale)(x[0])

    def gradient(self, x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.layers(x).sum(), [x])[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_derivatives_for_inputs_of_fixed_sizes() -> None:
    net, x = Derived(), torch.linspace(-1, 1, 6).reshape(2, 3)
    methods = {"jacobian": Method((x,)), "hessian": Method((x,), {"scale": 2.0}), "gradient": Method((x,))}
    for method in capture(net, **methods).methods:
        expected = getattr(net, method.name)(x, **method.kwargs)
        with torch.no_grad():
            found = method.program.module()(x, **method.kwargs)
        torch.testing.assert_close(found, expected)
        assert set(method.program.state_dict) == set(net.state_dict())


@DERIVED_SIZES
def test_derivatives_for_inputs_of_dynamic_sizes() -> None:
    method = Method((torch.ones(2, 3),), dynamic_shapes=({0: Dim("rows", max=8)},))
    refusal = refuse(Derived(), jacobian=method)
    assert refusal.startswith("torch.export cannot trace derivatives or vectorized maps in method `jacobian`")
    assert "are supported for inputs of fixed sizes" in refusal


# Patches and sizes for the export alone


class PerSample(torch.nn.Module):
    """A layer for each sample, by `torch.vmap`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda sample: self.layer(sample).relu())(x)


def test_a_vectorized_map_is_captured_as_operators_on_batches() -> None:
    sizes = {"x": {0: Dim("batch", max=64)}}
    (method,) = capture(net := PerSample(), forward=Method((torch.ones(3, 4),), dynamic_shapes=sizes)).methods
    assert {type(node.target) for node in method.program.graph.nodes if node.op == "call_function"} == {OpOverload}
    assert canonical_form(method.program)
    given = torch.randn(5, 4)
    torch.testing.assert_close(method.program.module()(given), net(given))


def test_a_vectorized_map_that_torch_traces_for_fixed_sizes_only() -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda column: column.cumsum(0), in_dims=1, out_dims=1)(x)

    assert capture(Sums(), forward=Method((torch.ones(3, 4),))).methods
    message = refuse(Sums(), forward=Method((torch.ones(3, 4),), dynamic_shapes={"x": {0: Dim("rows", max=64)}}))
    assert message.startswith("torch.export cannot trace derivatives or vectorized maps in method `forward`")
    assert "vectorized maps of `torch.func`" in message


def test_each_method_is_exported_in_the_context_of_its_model() -> None:
    entered: list[str] = []

    class Patched(torch.nn.Module):
        sign = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.sign * x

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.sign * x

    @contextmanager
    def negative() -> Iterator[None]:
        entered.append("in")
        Patched.sign = -1.0
        yield
        Patched.sign = 1.0

    methods = {"forward": Method((PAIR,)), "twice": Method((PAIR,))}
    found = capture_model("net", Model(Patched(), methods, exporting=negative), NullReporter())
    x = torch.ones(2, 4)
    assert [float(each.program.module()(x)[0, 0]) for each in found.methods] == [-1.0, -2.0]
    assert len(entered) == 2
    assert Patched.sign == 1.0


def test_a_condition_that_is_not_proven_is_checked_in_each_call_if_deferred() -> None:
    class Quotient(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            frames = x.shape[0] // 20 - 1
            return x * 2 if frames * frames > 1 else x

    sizes = {"x": {0: Dim("samples", min=100, max=4000)}}
    with pytest.raises(CaptureError, match="the dynamic shapes of method `forward` do not hold"):
        capture(Quotient(), forward=Method((torch.ones(400),), dynamic_shapes=sizes))
    (method,) = capture(Quotient(), forward=Method((torch.ones(400),), dynamic_shapes=sizes, defer_guards=True)).methods
    assert method.program.module()(torch.ones(100)).sum() == 200
    assert set(method.dimensions.values()) == {"samples"}


def test_a_condition_that_torch_does_not_prove_is_said_to_be_deferrable() -> None:
    class Spectrum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stft(x, 16, 4, window=torch.ones(16), return_complex=True).abs()

    message = refuse(Spectrum(), forward=Method((torch.ones(64),), dynamic_shapes={"x": {0: Dim("samples", min=32)}}))
    assert "  to do: check the condition in each call (`defer_guards=True` of the `hatch_lower.Method`)" in message


@pytest.mark.parametrize("nested", [False, True])
def test_sizes_of_keyword_arguments_are_dynamic_by_either_name(nested: bool) -> None:
    class Named(torch.nn.Module):
        def forward(self, **named: torch.Tensor) -> torch.Tensor:
            return named["x"] * 2

    own = {"x": {0: Dim("rows", min=1, max=9)}}
    sizes = {"named": own} if nested else own
    (method,) = capture(Named(), forward=Method(kwargs={"x": PAIR}, dynamic_shapes=sizes)).methods
    assert set(method.dimensions.values()) == {"rows"}
    assert method.program.module()(x=torch.ones(5, 4)).shape == (5, 4)
