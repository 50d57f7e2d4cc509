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

from hatch_lower.cache.store import Store
from hatch_lower.errors import CacheError
from hatch_lower.exir.backend.backend_api import DelegatedMethod, lower_methods
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import DelegationSpec, PartitionResult
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.graph.tensors import combined_digest, tensor_digests
from hatch_lower.exir.lowered_backend_module import get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge

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


class JointBackend(BackendDetails):
    """Each blob names what all methods have, so any of them may be told by it."""

    given: ClassVar[list[dict[str, int]]] = []

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        raise AssertionError

    @classmethod
    def preprocess_multimethod(cls, edge_programs: Any, compile_specs: Any) -> dict[str, list[PreprocessResult]]:
        cls.given.append({method: len(programs) for method, programs in edge_programs.items()})
        texts = {method: [str(program.graph) for program in programs] for method, programs in edge_programs.items()}
        return {
            method: [PreprocessResult(f"{method} {index} of {texts}".encode()) for index in range(len(programs))]
            for method, programs in edge_programs.items()
        }


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
    JointBackend.given.clear()
    yield
    made.clear()


@pytest.fixture
def lower(tmp_path: Path) -> Callable[..., DelegatedMethod]:
    """Lowers a program by layers; what was made is in `made`."""

    def run(
        program: ExportedProgram,
        backend: str = "GraphBackend",
        odd: str = "",
        *,
        mode: str = "on",
        warn: Callable[[str], Any] = pytest.fail,
    ) -> DelegatedMethod:
        made.clear()
        store = Store(tmp_path / "cache", mode, warn)
        lowered = lower_methods({"forward": program}, {"forward": ByLayer(backend, odd)}, store=store)["forward"]
        assert lowered.partitions == LAYERS
        assert lowered.reused == LAYERS - len(made), "it is said how many were reused"
        return lowered

    return run


def edge(module: torch.nn.Module) -> ExportedProgram:
    return to_edge(torch.export.export(module.eval(), (torch.zeros(2, WIDTH),), strict=False))


def stack(seeds: Sequence[int] = range(LAYERS), activations: Mapping[int, Activation] | None = None) -> ExportedProgram:
    """Return the program of layers with weights of their own, and the same activation with exceptions."""
    others = activations or {}
    return edge(Stack([Layer(seed, others.get(i, RELU)) for i, seed in enumerate(seeds)]))


@pytest.fixture(scope="module")
def plain() -> ExportedProgram:
    """Layers of equal structure, each with weights of its own."""
    return stack()


@pytest.fixture(scope="module")
def one_tanh() -> ExportedProgram:
    """The same with another activation in the layer 3."""
    return stack(activations={3: torch.tanh})


def blobs(lowered: DelegatedMethod) -> list[bytes]:
    return [each.processed_bytes for each in get_lowered_backend_modules(lowered.program.graph_module)]


# equal layers


def test_layers_of_equal_structure_are_lowered_once_if_the_weights_are_not_in_the_blob(
    lower: Callable[..., DelegatedMethod], plain: ExportedProgram
) -> None:
    first = lower(plain)
    assert made == ["GraphBackend"]
    second = lower(plain, mode="frozen")
    assert made == []
    assert blobs(second) == blobs(first)


def test_layers_of_equal_structure_with_other_weights_are_not_equal_if_the_weights_are_in_the_blob(
    lower: Callable[..., DelegatedMethod], plain: ExportedProgram
) -> None:
    assert len(set(blobs(lower(plain, "WeightsBackend")))) == LAYERS
    assert len(made) == LAYERS


def test_layers_with_equal_weights_too_are_lowered_once(lower: Callable[..., DelegatedMethod]) -> None:
    lower(stack(seeds=[0] * LAYERS), "WeightsBackend")
    assert made == ["WeightsBackend"]


def test_layers_of_equal_structure_in_several_methods_are_lowered_once(plain: ExportedProgram) -> None:
    lowered = lower_methods({"a": plain, "b": plain}, {"a": ByLayer("GraphBackend"), "b": ByLayer("GraphBackend")})
    assert made == ["GraphBackend"]
    assert {name: each.reused for name, each in lowered.items()} == {"a": LAYERS - 1, "b": LAYERS}


# one change


@pytest.mark.parametrize(
    ("backend", "changed"), [("GraphBackend", 0), ("WeightsBackend", 5), ("GraphBackend", LAYERS - 1)]
)
def test_another_activation_in_one_layer_costs_one_partition(
    lower: Callable[..., DelegatedMethod], backend: str, changed: int, plain: ExportedProgram
) -> None:
    before = blobs(lower(plain, backend))
    after = blobs(lower(stack(activations={changed: torch.tanh}), backend))
    assert made == [backend]
    kept = range(LAYERS) if backend == "WeightsBackend" else [i for i in range(LAYERS) if i != changed]
    assert [after[i] for i in kept] == [before[i] for i in kept]
    lower(plain, backend)
    assert made == [], "both states are known"


def test_other_weights_in_one_layer_cost_one_partition_if_the_weights_are_in_the_blob(
    lower: Callable[..., DelegatedMethod], plain: ExportedProgram
) -> None:
    before = blobs(lower(plain, "WeightsBackend"))
    after = blobs(lower(stack(seeds=[100 if i == 7 else i for i in range(LAYERS)]), "WeightsBackend"))
    assert made == ["WeightsBackend"]
    assert [i for i in range(LAYERS) if before[i] != after[i]] == [7]


def test_other_weights_in_all_layers_cost_nothing_if_the_weights_are_not_in_the_blob(
    lower: Callable[..., DelegatedMethod], plain: ExportedProgram
) -> None:
    lower(plain)
    lower(stack(seeds=range(100, 100 + LAYERS)), mode="frozen")
    assert made == []


@pytest.mark.parametrize("backend", ["GraphBackend", "WeightsBackend"])
def test_other_names_of_modules_parameters_and_variables_cost_nothing(
    lower: Callable[..., DelegatedMethod], backend: str, plain: ExportedProgram
) -> None:
    first = lower(plain, backend)
    renamed = edge(RenamedStack([RenamedLayer(i, RELU) for i in range(LAYERS)]))
    second = lower(renamed, backend, mode="frozen")
    assert made == []
    assert blobs(second) == blobs(first)


def test_another_compiler_of_one_backend_costs_its_partitions_only(
    lower: Callable[..., DelegatedMethod], monkeypatch: pytest.MonkeyPatch
) -> None:
    different = stack(activations={i: Bounded(float(i + 1)) for i in range(LAYERS)})
    lower(different, "GraphBackend", odd="WeightsBackend")
    assert made == ["GraphBackend"] * (LAYERS // 2) + ["WeightsBackend"] * (LAYERS // 2)
    monkeypatch.setattr(GraphBackend, "version", "2")
    lower(different, "GraphBackend", odd="WeightsBackend")
    assert made == ["GraphBackend"] * (LAYERS // 2)
    monkeypatch.setattr(GraphBackend, "version", "1")
    lower(different, "GraphBackend", odd="WeightsBackend", mode="frozen")
    assert made == [], "both versions are known"


class Bounded(torch.nn.Module):
    """An activation with a number of its own."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, 0.0, self.bound)


# results that share things


def lower_jointly(folder: Path, mode: str = "on", **programs: ExportedProgram) -> dict[str, list[bytes]]:
    """Return the blobs of each method."""
    store = Store(folder, mode, lambda line: None)
    lowered = lower_methods(programs, dict.fromkeys(programs, ByLayer("JointBackend")), store=store)
    reused = {each.reused for each in lowered.values()}
    assert reused == ({0} if JointBackend.given else {LAYERS})
    return {method: blobs(each) for method, each in lowered.items()}


def test_a_backend_that_lowers_jointly_is_given_all_partitions_equal_ones_too(
    tmp_path: Path, plain: ExportedProgram
) -> None:
    found = lower_jointly(tmp_path, prefill=plain, decode=plain)
    assert JointBackend.given == [{"prefill": LAYERS, "decode": LAYERS}]
    for method in ("prefill", "decode"):
        assert [each.split()[:2] for each in found[method]] == [[method.encode(), b"%d" % i] for i in range(LAYERS)]


def test_a_change_of_one_method_lowers_the_joint_partitions_of_all_methods_again(
    tmp_path: Path, plain: ExportedProgram, one_tanh: ExportedProgram
) -> None:
    before = lower_jointly(tmp_path, prefill=plain, decode=plain)
    after = lower_jointly(tmp_path, prefill=plain, decode=one_tanh)
    assert len(JointBackend.given) == 2
    assert all(b"tanh" in blob for blob in after["prefill"])
    assert after == lower_jointly(tmp_path / "clean", prefill=plain, decode=one_tanh)
    JointBackend.given.clear()
    assert lower_jointly(tmp_path, "frozen", prefill=plain, decode=plain) == before
    assert lower_jointly(tmp_path, "frozen", prefill=plain, decode=one_tanh) == after
    with pytest.raises(CacheError, match="all partitions for the backend `JointBackend`"):
        lower_jointly(tmp_path, "frozen", prefill=one_tanh, decode=plain)


def test_joint_partitions_are_found_as_one_or_made_as_one(tmp_path: Path, plain: ExportedProgram) -> None:
    before = lower_jointly(tmp_path, prefill=plain, decode=plain)
    lost = [each for each in (tmp_path / "blobs").glob("*/*") if each.read_bytes() == before["decode"][3]]
    lost[0].unlink()
    JointBackend.given.clear()
    assert lower_jointly(tmp_path, prefill=plain, decode=plain) == before
    assert JointBackend.given == [{"prefill": LAYERS, "decode": LAYERS}]


# what goes wrong


def test_a_failure_is_not_kept(
    lower: Callable[..., DelegatedMethod], monkeypatch: pytest.MonkeyPatch, one_tanh: ExportedProgram
) -> None:
    monkeypatch.setattr(GraphBackend, "refused", "tanh")
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="tanh is not for me"):
            lower(one_tanh)
        assert made == ["GraphBackend"] * 2, "it is asked again"
    monkeypatch.setattr(GraphBackend, "refused", None)
    assert b"tanh" in blobs(lower(one_tanh))[3]


def test_what_one_backend_made_is_kept_though_another_fails(
    lower: Callable[..., DelegatedMethod], monkeypatch: pytest.MonkeyPatch, one_tanh: ExportedProgram
) -> None:
    monkeypatch.setattr(GraphBackend, "refused", "tanh")
    with pytest.raises(NotImplementedError):
        lower(one_tanh, "WeightsBackend", odd="GraphBackend")
    assert made.count("WeightsBackend") == LAYERS // 2
    with pytest.raises(NotImplementedError):
        lower(one_tanh, "WeightsBackend", odd="GraphBackend")
    assert made.count("WeightsBackend") == 0


@pytest.mark.parametrize("damage", ["contents", "absence"])
def test_a_damaged_blob_costs_its_partition_only(
    lower: Callable[..., DelegatedMethod], tmp_path: Path, damage: str, plain: ExportedProgram
) -> None:
    first = lower(plain, "WeightsBackend")
    wanted = blobs(first)[4]
    (path,) = [each for each in (tmp_path / "cache" / "blobs").glob("*/*") if each.read_bytes() == wanted]
    if damage == "contents":
        path.write_bytes(wanted[:-1] + b"?")
    else:
        path.unlink()
    warnings: list[str] = []
    second = lower(plain, "WeightsBackend", warn=warnings.append)
    assert made == ["WeightsBackend"]
    assert blobs(second) == blobs(first)
    if damage == "contents":
        (warning,) = warnings
        assert re.fullmatch(r"the cache entry .*\.json was damaged; it is built again", warning)
    else:
        assert warnings == [], "a trim may have removed it"
    lower(plain, "WeightsBackend", mode="frozen")
    assert made == []


def test_a_frozen_cache_names_what_it_lacks_and_lowers_nothing(
    lower: Callable[..., DelegatedMethod], plain: ExportedProgram
) -> None:
    lower(plain, "WeightsBackend")
    with pytest.raises(CacheError) as raised:
        lower(stack(seeds=[100 if i == 2 else i for i in range(LAYERS)]), "WeightsBackend", mode="frozen")
    assert made == []
    message = str(raised.value)
    assert "the cache is frozen and lacks a result that this build needs" in message
    assert "a partition of `forward` for the backend `WeightsBackend`" in message
    assert "build once with `HATCH_LOWER_CACHE=on`" in message
