"""A lowered program becomes a folder that loads, without a wheel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.backends import BoundBackend, BoundDelegate, TagBy
from support.loading import load_folder

import hatch_lower
from hatch_lower.errors import EdgeError, PackageError
from hatch_lower.exir.backend.backend_api import to_backend
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.program._program import EdgeProgramManager, lowered_modules, to_edge_transform_and_lower
from hatch_lower.format.constants import data_name
from hatch_lower.pipeline.save import save_program

pytestmark = pytest.mark.torch


class Step(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return torch.relu(x @ self.weight) * scale + self.total


@pytest.mark.parametrize("backends", [[], [AllNodePartitioner("reference", [])]])
def test_what_was_saved_computes_what_the_module_does(tmp_path: Path, backends: list[AllNodePartitioner]) -> None:
    module = Step()
    x, scale = torch.randn(2, 3), torch.randn(3)
    program = torch.export.export(module, (x,), {"scale": scale}, strict=False)
    constants = {"width": 3, "table": torch.arange(4.0)}
    lowered = to_edge_transform_and_lower(program, partitioner=backends, constant_methods=constants)
    folder = save_program(lowered.to_executorch(), tmp_path / "out")
    loaded = hatch_lower.load(folder)
    for _ in range(2):
        torch.testing.assert_close(loaded(x, scale=scale), module(x, scale=scale))
    assert loaded.width() == 3
    torch.testing.assert_close(loaded.table(), torch.arange(4.0))
    manifest = hatch_lower.load(folder, verify=True)
    torch.testing.assert_close(manifest(x, scale=scale), Step.forward(reset(module), x, scale=scale))


def reset(module: Step) -> Step:
    module.total.zero_()
    return module


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    program = torch.export.export(Step(), (torch.randn(2, 3),), {"scale": torch.randn(3)}, strict=False)
    with pytest.raises(PackageError) as caught:
        save_program(to_edge_transform_and_lower(program).to_executorch(), tmp_path)
    assert str(caught.value) == (
        "a lowered program is saved into an empty folder only\n"
        f"  where: {tmp_path}\n"
        "  found: `notes.txt`\n"
        "  to do: name a folder that does not exist"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_no_file_has_a_suffix_that_is_taken_for_a_pickle() -> None:
    pickles = {"bin", "ckpt", "dat", "data", "dill", "joblib", "npy", "pickle", "pkl", "pt", "pth"}
    assert not {PreprocessResult().suffix, data_name("0123").partition(".")[2]} & pickles


# lowered modules inside of a model that is exported again


class Scaled(torch.nn.Module):
    """Calls a function with its weight."""

    def __init__(self, compute: Callable[..., Any], weight: float = 3.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), weight))
        self.compute = compute

    def forward(self, *args: Any) -> Any:
        return self.compute(self.weight, *args)


class Around(Scaled):
    """Has a lowered module inside, and a weight of the same name as that has."""

    def __init__(self, compute: Callable[..., Any], *lowered: LoweredBackendModule) -> None:
        super().__init__(compute, 100.0)
        self.lowered = torch.nn.ModuleList(lowered)

    def forward(self, *args: Any) -> Any:
        return self.compute(self, *args)


def lowered(compute: Callable[..., Any], *args: Any, backend: str = "reference") -> LoweredBackendModule:
    return to_backend(backend, to_edge(torch.export.export(Scaled(compute), args, strict=False)), [])


def edge_again(module: torch.nn.Module, *args: torch.Tensor) -> EdgeProgramManager:
    return to_edge_transform_and_lower(torch.export.export(module, args, strict=False))


X, Y = torch.arange(3.0), torch.full((3,), 2.0)


@pytest.mark.parametrize(
    ("inner", "given", "outer"),
    [
        (lambda w, x: x * w, (X,), lambda self, x, y: self.lowered[0](x)),
        (lambda w, x: x * w, (X,), lambda self, x, y: self.lowered[0](x) + 1),
        (lambda w, x: x * w, (X,), lambda self, x, y: self.lowered[0](self.lowered[0](x)) + self.weight),
        (lambda w, x: (x * w, x + 1), (X,), lambda self, x, y: self.lowered[0](x)[1] + 1),
        (lambda w, x: {"b": x * w, "a": x - 1}, (X,), lambda self, x, y: self.lowered[0](x)),
        (lambda w, x: {"b": (x * w, [x - 2])}, (X,), lambda self, x, y: self.lowered[0](x)["b"][1][0] * 2),
        (lambda w, xs: xs[0] * w - xs[1], ([X, Y],), lambda self, x, y: self.lowered[0]([x, y])),
        (
            lambda w, xs: xs["b"] * w - xs["a"],
            ({"b": X, "a": Y},),
            lambda self, x, y: self.lowered[0]({"b": x, "a": y}),
        ),
        (lambda w, x, n: x * w + n, (X, 2), lambda self, x, y: self.lowered[0](x, 2)),
    ],
    ids=["tensor", "used", "twice", "tuple", "dict", "nested", "list argument", "dict argument", "literal"],
)
def test_a_lowered_module_in_a_model_that_is_exported_computes_what_it_did(
    tmp_path: Path, inner: Callable[..., Any], given: tuple[Any, ...], outer: Callable[..., Any]
) -> None:
    module = Around(outer, lowered(inner, *given))
    expected = module(X, Y)
    manager = edge_again(module, X, Y)
    torch.testing.assert_close(manager.exported_program().module()(X, Y), expected)
    torch.testing.assert_close(
        hatch_lower.load(save_program(manager.to_executorch(), tmp_path / "out"))(X, Y), expected
    )


def test_constants_that_are_bound_to_lowered_modules_stay_apart_whatever_their_names(tmp_path: Path) -> None:
    first = lowered(lambda weight, x: x * weight, X, backend="BoundBackend")
    second = lowered(lambda weight, x: x - weight, X, backend="BoundBackend")
    second.original_module.state_dict["weight"].data.fill_(7.0)
    module = Around(lambda self, x: self.lowered[0](x) + self.lowered[1](x) + self.weight, first, second)
    folder = save_program(edge_again(module, X).to_executorch(), tmp_path / "out")
    loaded = load_folder(folder, delegates={BoundBackend.__name__: BoundDelegate})
    torch.testing.assert_close(loaded(X), X * 3 + X - 7 + 100)


def test_a_lowered_module_and_the_program_around_it_have_debug_handles_of_their_own(tmp_path: Path) -> None:
    module = Around(
        lambda self, x: torch.cos(self.lowered[0](torch.sin(x))), lowered(lambda w, x: torch.tanh(x * w), X)
    )
    manager = edge_again(module, X).to_backend(TagBy(lambda node: "cos" if "cos" in str(node.target) else None))
    program = manager.exported_program()
    own = {node.meta["debug_handle"] for node in program.graph.nodes if node.op == "call_function"}
    (inner, _) = lowered_modules(program)
    assert inner.meta is not None
    mapped = {handle for handles in inner.meta["debug_handle_map"].values() for handle in handles}
    assert len(mapped) == 2
    assert not mapped & own
    folder = save_program(manager.to_executorch(), tmp_path / "out")
    debug = (folder / "model" / "default.debug.json").read_text()
    assert all(f'"op":"aten.{name}.' in debug for name in ("sin", "mul", "tanh", "cos"))


def test_a_lowered_module_that_is_called_with_other_containers_is_refused() -> None:
    inner = lowered(lambda w, xs: xs[0] * w, [X])
    program = torch.export.export(Around(lambda self, x: self.lowered[0]([x]), inner), (X,), strict=False)
    (call,) = (node for node in program.graph.nodes if "delegate" in node.name)
    call.args = (call.args[0], (*call.args[1], *call.args[1]))
    with pytest.raises(EdgeError):
        to_edge(program)
