"""How many partitions are lowered again after a change: those that it changes, and equal ones once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.backends import TagBy
from torch.export import ExportedProgram

from hatch_lower.backend.api import BackendDetails, CompileSpec, DelegationSpec, PartitionResult, PreprocessResult
from hatch_lower.cache.store import Store
from hatch_lower.edge.convert import to_edge
from hatch_lower.errors import CacheError
from hatch_lower.graph.state import constant_of, constant_specs
from hatch_lower.graph.tensors import combined_digest, tensor_digests
from hatch_lower.lowering.inspect import get_lowered_backend_modules
from hatch_lower.lowering.lower import Lowered, lower_methods

pytestmark = pytest.mark.torch

LAYERS = 12
RELU = torch.nn.functional.relu
WIDTH = 4

Activation = Callable[[torch.Tensor], torch.Tensor]

made: list[str] = []


class GraphBackend(BackendDetails):
    """Its blob is the text of the graph, without the weights."""

    weight_free = True
    version: ClassVar[str] = "1"
    refused: ClassVar[str | None] = None

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        text = str(edge_program.graph)
        made.append("GraphBackend")
        if cls.refused is not None and cls.refused in text:
            msg = f"{cls.refused} is not for me"
            raise NotImplementedError(msg)
        return PreprocessResult(text.encode())

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        return {"compiler": cls.version}


class WeightsBackend(BackendDetails):
    """Its blob names the weights' contents."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        made.append("WeightsBackend")
        constants = [constant_of(edge_program, spec) for spec in constant_specs(edge_program)]
        return PreprocessResult(combined_digest(tensor_digests(constants)).encode())


class Layer(torch.nn.Module):
    def __init__(self, seed: int, activation: Activation) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator))
        self.bias = torch.nn.Parameter(torch.randn(WIDTH, generator=generator))
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(torch.nn.functional.linear(x, self.weight, self.bias))


class RenamedLayer(Layer):
    """`Layer` in other words."""

    def __init__(self, seed: int, activation: Activation) -> None:
        super().__init__(seed, activation)
        self.kernel, self.offset = self.weight, self.bias
        del self.weight, self.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        product = torch.nn.functional.linear(hidden, self.kernel, self.offset)
        return self.activation(product)


class Stack(torch.nn.Module):
    def __init__(self, layers: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class RenamedStack(torch.nn.Module):
    """`Stack` in other words."""

    def __init__(self, layers: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleDict({f"block_{number}": each for number, each in enumerate(layers)})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            tokens = block(tokens)
        return tokens


class ByLayer(TagBy):
    """A partition for each layer; those with an odd number may be another backend's."""

    def __init__(self, backend_id: str, odd: str = "") -> None:
        super().__init__(layer_of, backend_id)
        self.odd = DelegationSpec(odd or backend_id, [])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = super().partition(exported_program)
        tags = {tag: self.odd if int(tag) % 2 else spec for tag, spec in result.partition_tags.items()}
        return PartitionResult(exported_program, tags)


def layer_of(node: torch.fx.Node) -> str:
    """Return the number of the layer that an operation comes from."""
    path, _ = list(node.meta["nn_module_stack"].values())[-1]
    number = re.search(r"\d+", path)
    assert number is not None
    return number[0]


@pytest.fixture(autouse=True)
def nothing_made_yet() -> Iterator[None]:
    made.clear()
    yield
    made.clear()


@pytest.fixture
def lower(tmp_path: Path) -> Callable[..., Lowered]:
    """Lowers a module by layers; what was made is in `made`."""

    def run(
        module: torch.nn.Module,
        backend: str = "GraphBackend",
        odd: str = "",
        *,
        mode: str = "on",
        warn: Callable[[str], Any] = pytest.fail,
    ) -> Lowered:
        made.clear()
        program = to_edge(torch.export.export(module.eval(), (torch.zeros(2, WIDTH),), strict=False))
        store = Store(tmp_path / "cache", mode, warn)
        lowered = lower_methods({"forward": program}, {"forward": ByLayer(backend, odd)}, store=store)["forward"]
        assert lowered.partitions == LAYERS
        assert lowered.reused == LAYERS - len(made), "it is said how many were reused"
        return lowered

    return run


def stack(
    seeds: Mapping[int, int] | None = None, activations: Mapping[int, Activation] | None = None, *, equal: bool = False
) -> Stack:
    """Return a stack of layers, each with weights of its own unless they shall be `equal`, with exceptions."""
    changed, others = seeds or {}, activations or {}
    return Stack(
        [Layer(changed.get(i, 0 if equal else i), others.get(i, RELU)) for i in range(LAYERS)]
    )


def blobs(lowered: Lowered) -> list[bytes]:
    return [each.processed_bytes for each in get_lowered_backend_modules(lowered.program.graph_module)]


# equal layers


def test_layers_of_equal_structure_are_lowered_once_if_the_weights_are_not_in_the_blob(
    lower: Callable[..., Lowered],
) -> None:
    first = lower(stack())
    assert made == ["GraphBackend"]
    second = lower(stack(), mode="frozen")
    assert made == []
    assert blobs(second) == blobs(first)


def test_layers_of_equal_structure_with_other_weights_are_not_equal_if_the_weights_are_in_the_blob(
    lower: Callable[..., Lowered],
) -> None:
    assert len(set(blobs(lower(stack(), "WeightsBackend")))) == LAYERS
    assert len(made) == LAYERS


def test_layers_with_equal_weights_too_are_lowered_once(lower: Callable[..., Lowered]) -> None:
    lower(stack(equal=True), "WeightsBackend")
    assert made == ["WeightsBackend"]


def test_layers_of_equal_structure_in_several_methods_are_lowered_once() -> None:
    programs = {
        name: to_edge(torch.export.export(stack(), (torch.zeros(2, WIDTH),), strict=False)) for name in ("a", "b")
    }
    lowered = lower_methods(programs, {"a": ByLayer("GraphBackend"), "b": ByLayer("GraphBackend")})
    assert made == ["GraphBackend"]
    assert {name: each.reused for name, each in lowered.items()} == {"a": LAYERS - 1, "b": LAYERS}


# one change


@pytest.mark.parametrize("backend", ["GraphBackend", "WeightsBackend"])
@pytest.mark.parametrize("changed", [0, 5, LAYERS - 1])
def test_another_activation_in_one_layer_costs_one_partition(
    lower: Callable[..., Lowered], backend: str, changed: int
) -> None:
    before = blobs(lower(stack(), backend))
    after = blobs(lower(stack(activations={changed: torch.tanh}), backend))
    assert made == [backend]
    kept = range(LAYERS) if backend == "WeightsBackend" else [i for i in range(LAYERS) if i != changed]
    assert [after[i] for i in kept] == [before[i] for i in kept]
    lower(stack(), backend)
    assert made == [], "both states are known"


def test_other_weights_in_one_layer_cost_one_partition_if_the_weights_are_in_the_blob(
    lower: Callable[..., Lowered],
) -> None:
    before = blobs(lower(stack(), "WeightsBackend"))
    after = blobs(lower(stack(seeds={7: 100}), "WeightsBackend"))
    assert made == ["WeightsBackend"]
    assert [i for i in range(LAYERS) if before[i] != after[i]] == [7]


def test_other_weights_in_all_layers_cost_nothing_if_the_weights_are_not_in_the_blob(
    lower: Callable[..., Lowered],
) -> None:
    lower(stack())
    lower(stack(seeds={i: 100 + i for i in range(LAYERS)}), mode="frozen")
    assert made == []


@pytest.mark.parametrize("backend", ["GraphBackend", "WeightsBackend"])
def test_other_names_of_modules_parameters_and_variables_cost_nothing(
    lower: Callable[..., Lowered], backend: str
) -> None:
    first = lower(stack(), backend)
    renamed = RenamedStack([RenamedLayer(i, RELU) for i in range(LAYERS)])
    second = lower(renamed, backend, mode="frozen")
    assert made == []
    assert blobs(second) == blobs(first)


def test_another_compiler_of_one_backend_costs_its_partitions_only(
    lower: Callable[..., Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    different = {i: Bounded(float(i + 1)) for i in range(LAYERS)}
    lower(stack(activations=different), "GraphBackend", odd="WeightsBackend")
    assert made == ["GraphBackend"] * (LAYERS // 2) + ["WeightsBackend"] * (LAYERS // 2)
    monkeypatch.setattr(GraphBackend, "version", "2")
    lower(stack(activations=different), "GraphBackend", odd="WeightsBackend")
    assert made == ["GraphBackend"] * (LAYERS // 2)
    monkeypatch.setattr(GraphBackend, "version", "1")
    lower(stack(activations=different), "GraphBackend", odd="WeightsBackend", mode="frozen")
    assert made == [], "both versions are known"


class Bounded(torch.nn.Module):
    """An activation with a number of its own."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, 0.0, self.bound)


# what goes wrong


def test_a_failure_is_not_kept(lower: Callable[..., Lowered], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphBackend, "refused", "tanh")
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="tanh is not for me"):
            lower(stack(activations={3: torch.tanh}))
        assert made == ["GraphBackend"] * 2, "it is asked again"
    monkeypatch.setattr(GraphBackend, "refused", None)
    assert b"tanh" in blobs(lower(stack(activations={3: torch.tanh})))[3]


def test_what_one_backend_made_is_kept_though_another_fails(
    lower: Callable[..., Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphBackend, "refused", "tanh")
    model = stack(activations={3: torch.tanh})
    with pytest.raises(NotImplementedError):
        lower(model, "WeightsBackend", odd="GraphBackend")
    assert made.count("WeightsBackend") == LAYERS // 2
    with pytest.raises(NotImplementedError):
        lower(model, "WeightsBackend", odd="GraphBackend")
    assert made.count("WeightsBackend") == 0


@pytest.mark.parametrize("damage", ["contents", "absence"])
def test_a_damaged_blob_costs_its_partition_only(
    lower: Callable[..., Lowered], tmp_path: Path, damage: str
) -> None:
    first = lower(stack(), "WeightsBackend")
    wanted = blobs(first)[4]
    (path,) = [each for each in (tmp_path / "cache" / "blobs").glob("*/*") if each.read_bytes() == wanted]
    if damage == "contents":
        path.write_bytes(wanted[:-1] + b"?")
    else:
        path.unlink()
    warnings: list[str] = []
    second = lower(stack(), "WeightsBackend", warn=warnings.append)
    assert made == ["WeightsBackend"]
    assert blobs(second) == blobs(first)
    if damage == "contents":
        (warning,) = warnings
        assert re.fullmatch(r"the cache entry .*\.json was damaged; it is built again", warning)
    else:
        assert warnings == [], "a trim may have removed it"
    lower(stack(), "WeightsBackend", mode="frozen")
    assert made == []


def test_a_frozen_cache_names_what_it_lacks_and_lowers_nothing(lower: Callable[..., Lowered]) -> None:
    lower(stack(), "WeightsBackend")
    with pytest.raises(CacheError) as raised:
        lower(stack(seeds={2: 100}), "WeightsBackend", mode="frozen")
    assert made == []
    message = str(raised.value)
    assert "the cache is frozen and does not hold what this build needs" in message
    assert "a partition of `forward` for the backend `WeightsBackend`" in message
    assert "build once with `HATCH_LOWER_CACHE=on`" in message
