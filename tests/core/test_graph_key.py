"""What is known of an exported method beyond its canonical form, and what has no digest."""

from __future__ import annotations

import functools
import io
import json
import warnings
import zlib
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kept_events import Events
from torch.export import Dim, ExportedProgram
from torch.fx.traceback import annotate, preserve_node_meta

from hatch_lower.cache.key import NoKeyError
from hatch_lower.exir.graph.tensors import tensor_digest
from hatch_lower.model import Method, Model
from hatch_lower.pipeline.capture import CapturedMethod, capture_model
from hatch_lower.pipeline.graph_key import describe_method, form_bytes, named_constants, sharing_of

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", ["left", "right"])


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def captured(function: Callable[..., Any], x: Any = None, shapes: Any = None) -> CapturedMethod:
    example = torch.ones(4, 6) if x is None else x
    model = Model(Function(function), {"forward": Method((example,), dynamic_shapes=shapes)})
    return capture_model("m", model, Events()).methods[0]


def ready(program: ExportedProgram) -> CapturedMethod:
    return capture_model("m", {"forward": program}, Events()).methods[0]


def test_one_export_has_one_description() -> None:
    first, second = (describe_method(captured(lambda x: {"a": x + 1})) for _ in range(2))
    assert first == second


def test_ranges_of_expressions_are_in_the_names() -> None:
    def halved(most: int) -> Any:
        half = Dim("half", min=1, max=most)
        return describe_method(captured(lambda x: x.sin(), shapes={"x": {0: 2 * half}}))

    assert halved(16) != halved(17)
    assert halved(16) == halved(16)


def test_notes_at_nodes_are_in_the_names() -> None:
    def noted(note: dict[str, Any]) -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            with annotate(note):
                return x.sin()

        with preserve_node_meta():
            return describe_method(captured(function))

    assert noted({"stage": 1}).graph == noted({"stage": 2}).graph
    assert noted({"stage": 1}).names != noted({"stage": 2}).names
    assert noted({"stage": 1}).names == noted({"stage": 1}).names
    assert noted({"stage": 1}).names != noted({"stage": True}).names


def test_a_note_of_an_unknown_kind_has_no_digest() -> None:
    method = captured(lambda x: x.sin())
    for value in (object(), lambda: None, {"deep": [io.BytesIO()]}, functools.partial(print)):
        node = next(node for node in method.program.graph.nodes if node.op == "call_function")
        node.meta["mark"] = value
        with pytest.raises(NoKeyError, match=r"node `sin` has metadata of the type"):
            describe_method(method)


def test_modules_of_nodes_are_in_the_names() -> None:
    def of(path: str) -> Any:
        method = captured(lambda x: x.sin())
        node = next(node for node in method.program.graph.nodes if node.op == "call_function")
        node.meta["nn_module_stack"] = {"key": (path, "torch.nn.Linear")}
        return describe_method(method)

    assert of("first").graph == of("second").graph
    assert of("first").names != of("second").names


def test_which_nodes_have_one_ancestor_is_in_the_names() -> None:
    program = torch.export.export(Function(lambda x: torch.nn.functional.silu(x)), (torch.ones(3),))
    decomposed = program.run_decompositions()
    first = describe_method(ready(decomposed))
    assert describe_method(ready(program.run_decompositions())) == first
    for node in decomposed.graph.nodes:
        node.meta.pop("from_node", None)
    second = describe_method(ready(decomposed))
    assert second.graph == first.graph
    assert second.names != first.names


def test_tensors_in_metadata_are_told_apart_by_contents() -> None:
    def names(value: torch.Tensor) -> str:
        program = torch.export.export(Function(torch.sin), (torch.ones(3),))
        next(node for node in program.graph.nodes if node.op == "call_function").meta["custom"] = {"scale": value}
        return describe_method(ready(program)).names

    tensors = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor([1.0]), torch.tensor(1)]
    assert len({names(tensor) for tensor in tensors}) == len(tensors)
    assert names(torch.tensor(1.0)) == names(torch.tensor(1.0))
    released = torch.ones(4)
    released.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once in a process that these tensors are deprecated
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    for tensor in (torch.ones(2, device="meta"), torch._efficientzerotensor(2), released, quantized):
        with pytest.raises(NoKeyError, match="metadata of the type"):
            names(tensor)


def test_containers_are_told_apart() -> None:
    returns: list[Callable[[torch.Tensor], Any]] = [
        lambda x: (x + 1, x + 2),
        lambda x: [x + 1, x + 2],
        lambda x: {"a": x + 1, "b": x + 2},
        lambda x: {"b": x + 1, "a": x + 2},
        lambda x: {1: x + 1, 2: x + 2},
        lambda x: {"1": x + 1, "2": x + 2},
        lambda x: Pair(x + 1, x + 2),
    ]
    found = [describe_method(captured(each)) for each in returns]
    assert len({each.graph for each in found}) == 1
    assert len({each.names for each in found}) == len(returns)


EXAMPLES: list[Any] = [
    torch.ones(4, 6),
    torch.zeros(4, 6),
    torch.full((4, 6), -0.0),
    torch.ones(6, 4).t(),
    torch.ones(4, 6, dtype=torch.float64),
    torch.ones(4, 6, requires_grad=True),
]


def test_examples_are_told_apart_by_layout_and_contents() -> None:
    found = [describe_method(captured(lambda x: x + 1, example)).examples for example in EXAMPLES]
    assert len(set(found)) == len(EXAMPLES)
    numbers = [describe_method(captured(lambda x: torch.ones(3) * x, number)).examples for number in (1, 1.0, True, 2)]
    assert len(set(numbers)) == 4


def test_a_ready_program_without_examples_is_another() -> None:
    program = torch.export.export(Function(torch.sin), (torch.ones(3),))
    before = describe_method(ready(program))
    program.example_inputs = None
    method = capture_model("m", {"forward": program}, Events(), examples_needed=False).methods[0]
    assert describe_method(method).examples != before.examples


def test_tensors_that_are_no_plain_memory_have_no_digest() -> None:
    class Holder(torch.nn.Module):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("table", table)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table

    conjugate = torch.ones(3, dtype=torch.complex64).conj()
    program = torch.export.export(Holder(torch.ones(3, dtype=torch.complex64)), (torch.ones(3),))
    describe_method(ready(program))
    program.state_dict["table"] = conjugate
    with pytest.raises(NoKeyError, match="`table` is not a plain tensor"):
        describe_method(ready(program))
    with pytest.raises(NoKeyError, match="an example input is not a plain tensor"):
        describe_method(captured(lambda x: x + 1, torch.ones(3, dtype=torch.complex64).conj()))


def test_constants_of_nested_graphs_and_unused_ones_count() -> None:
    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("table", torch.ones(3), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda a: a + self.table, lambda a: a + torch.tensor([1.0, 2.0, 3.0]), (x,))

    program = torch.export.export(Held(), (torch.ones(3),), strict=False)
    found = {name: tensor.tolist() for name, tensor in named_constants(program)}
    assert found["unused"] == [1.0, 1.0]
    assert found["table"] == [1.0, 1.0, 1.0]
    assert [1.0, 2.0, 3.0] in found.values()


def test_constants_of_two_methods_that_overlap() -> None:
    def program(table: torch.Tensor) -> ExportedProgram:
        module = Function(lambda x: x)
        module.register_buffer("table", table)
        return torch.export.export(module, (torch.ones(3),))

    whole = torch.arange(8.0)
    apart = sharing_of([program(whole), program(whole[2:5].clone())])
    assert sharing_of([program(whole), program(whole[2:5])]) != apart
    assert sharing_of([program(whole), program(whole[2:5])]) != sharing_of([program(whole), program(whole[3:6])])
    assert sharing_of([program(whole), program(torch.zeros(3))]) == apart
    assert sharing_of([program(whole[:4]), program(whole[5:])]) != sharing_of(
        [program(whole[:4]), program(torch.ones(3))]
    )


def test_the_stored_form_names_constants_and_arguments_and_holds_no_path() -> None:
    method = captured(lambda x: torch.clamp(x, 0, 6))
    described = describe_method(method)
    data = form_bytes(method, described.form, ["", "net.py:3", ""])
    value = json.loads(zlib.decompress(data))
    assert value["form"] == json.loads(json.dumps(described.form))
    assert value["sources"] == ["", "net.py:3", ""]
    assert value["names"] == ["x"]
    assert [names for operator, names in value["arguments"].items() if "clamp" in operator] == [["self", "min", "max"]]
    assert str(Path(__file__).parent) not in zlib.decompress(data).decode()


def test_a_pending_conjugation_or_negation_is_contents() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    negated = tensor.conj().imag
    assert negated.is_neg()
    assert tensor_digest(tensor.conj()) != tensor_digest(tensor)
    assert tensor_digest(tensor.conj()) == tensor_digest(tensor.conj().resolve_conj())
    assert negated.stride() == tensor.imag.stride()
    assert tensor_digest(negated) != tensor_digest(tensor.imag)
