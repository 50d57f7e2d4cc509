"""A compiled library holds no constant: changing any, of any kind, changes the output to eager's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import hatch_lower
from hatch_lower.backends.aoti.compile import AotiBackend
from hatch_lower.backends.aoti.configuration import ISAS, inductor_isolated
from hatch_lower.backends.aoti.library import choose_compiler
from hatch_lower.backends.aoti.prepare import AotiCopy
from hatch_lower.backends.aoti.record import generate
from hatch_lower.backends.aoti.run import AotiDelegate
from hatch_lower.errors import ProgramError
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.program._program import to_edge_transform_and_lower
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import DelegateBlob

pytestmark = [
    pytest.mark.torch,
    # torch 2.13 warns about its own copies in `run_decompositions`.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]


class Constants(nn.Module):
    """One constant of each kind, each in an output of its own."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        self.weight = nn.Parameter(random(6, 6))
        self.tied = self.weight
        self.transposed = nn.Parameter(random(6, 4).t())
        self.register_buffer("expanded", random(1, 6).expand(4, 6))
        self.register_buffer("strided", random(8, 12)[::2, ::2])
        memory = random(12)
        self.register_buffer("first_half", memory[:8])
        self.register_buffer("second_half", memory[4:])
        self.register_buffer("scalar", torch.tensor(1.5))
        self.register_buffer("gate", torch.tensor([0.3]))
        self.register_buffer("tiny", random(4))
        self.register_buffer("indices", torch.tensor([3, 0, 2, 1]))
        self.register_buffer("mask", torch.tensor([True, False, True, False, True, True]))
        self.register_buffer("wide", torch.tensor([0.1, 0.2], dtype=torch.float64))
        self.register_buffer("narrow", random(6).half())
        self.register_buffer("counter", torch.tensor([2.0]))
        self.register_buffer("cache", torch.zeros(4, 6))
        self.register_buffer("hidden", random(6), persistent=False)
        self.plain = random(6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.counter.add_(1)
        self.cache.copy_(torch.roll(self.cache, 1, 0) + x)
        return (
            nn.functional.linear(x, self.weight) + x @ self.tied,
            x @ self.transposed.t(),
            x * self.expanded,
            x + self.strided,
            x.sum() + self.first_half,
            x.sum() * self.second_half,
            x * self.scalar,
            x * torch.sigmoid(self.gate),
            x.t() + self.tiny,
            x[self.indices] * 2,
            torch.where(self.mask, x, -x),
            x.double().square().sum() * self.wide,
            x.half() * self.narrow,
            x * self.counter,
            self.cache.sum(0),
            x - self.hidden,
            x - self.plain,
            x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        )


@dataclass(frozen=True)
class Compiled:
    program: ExportedProgram
    blob: DelegateBlob
    names: tuple[str, ...]
    constants: tuple[Tensor, ...]

    def eager(self, constants: Sequence[Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the values written to buffers, and the outputs."""
        results = self.program.graph_module(*(copied(each) for each in constants), x)
        written = len(self.program.graph_signature.buffers_to_mutate)
        return list(results[:written]), list(results[written:])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    program = torch.export.export(Constants(), (torch.ones(4, 6),)).run_decompositions({})
    result = AotiBackend.preprocess(program, AotiBackend.partitioner({"isa": "x86-64-v3"}).options.to_specs())
    path = tmp_path_factory.mktemp("constants") / "blob.so"
    path.write_bytes(result.processed_bytes)
    specs = constant_specs(program)
    constants = tuple(constant_of(program, spec).detach() for spec in specs)
    return Compiled(program, DelegateBlob(path, result.info), tuple(str(spec.target) for spec in specs), constants)


def copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides in memory of its own."""
    if 0 in tensor.stride():
        return tensor[:1].clone().expand(tensor.shape)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def changed(tensor: Tensor) -> Tensor:
    """Return other contents in the same layout."""
    if 0 in tensor.stride():
        return (tensor[:1] * 2 + 1).expand(tensor.shape)
    if tensor.dtype is torch.bool:
        return copied(tensor).logical_not_()
    if tensor.dtype is torch.int64:
        return copied(tensor).copy_(tensor.flip(0))
    return copied(tensor).mul_(2).add_(1)


KINDS = (
    "cache",
    "counter",
    "expanded",
    "first_half",
    "gate",
    "hidden",
    "indices",
    "lifted_tensor_0",
    "mask",
    "narrow",
    "plain",
    "scalar",
    "second_half",
    "strided",
    "tiny",
    "transposed",
    "weight",
    "wide",
)


def test_all_kinds_are_constants(compiled: Compiled) -> None:
    assert sorted({*compiled.names} - {"tied"}) == list(KINDS)


@pytest.mark.parametrize("kind", ["nothing", *KINDS])
def test_changing_a_constant_changes_the_output_to_eagers(compiled: Compiled, kind: str) -> None:
    constants = [copied(each) for each in compiled.constants]
    touched = [index for index, name in enumerate(compiled.names) if is_kind(name, kind)]
    if kind != "nothing":
        assert touched
        replaced = changed(compiled.constants[touched[0]])
        for index in touched:
            constants[index] = replaced
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    before = compiled.eager(compiled.constants, x)
    written, outputs = compiled.eager(constants, x)
    results = AotiDelegate.load(compiled.blob, constants).run([x])
    torch.testing.assert_close(list(results), outputs)
    different = [not torch.equal(old, new) for old, new in zip(before[1], outputs, strict=True)]
    assert any(different) == (kind != "nothing")
    mutated = [constants[index] for index, name in enumerate(compiled.names) if name in ("counter", "cache")]
    torch.testing.assert_close(mutated, written)


def is_kind(name: str, kind: str) -> bool:
    """Return whether a constant is of the kind; tied names change together."""
    return name in ("weight", "tied") if kind == "weight" else name == kind


def test_state_is_kept_in_the_bound_tensors_and_outputs_do_not_alias_it(compiled: Compiled) -> None:
    constants = [copied(each) for each in compiled.constants]
    other = [copied(each) for each in compiled.constants]
    delegate, second = AotiDelegate.load(compiled.blob, constants), AotiDelegate.load(compiled.blob, other)
    index = compiled.names.index("counter")
    x = torch.ones(4, 6)
    first = delegate.run([x])
    copies = [each.clone() for each in first]
    delegate.run([x])
    assert constants[index].item() == 4.0
    assert other[index].item() == 2.0
    second.run([x])
    assert other[index].item() == 3.0
    torch.testing.assert_close(list(first), copies, rtol=0, atol=0)
    constants[index].fill_(7.0)
    assert delegate.run([x])[13][0, 0].item() == 8.0


def test_immutable_constants_are_bound_without_a_copy_and_may_be_read_only(compiled: Compiled, tmp_path: Path) -> None:
    constants = [copied(each) for each in compiled.constants]
    index = compiled.names.index("plain")
    file = tmp_path / "plain"
    file.write_bytes(compiled.constants[index].numpy().tobytes())
    constants[index] = torch.from_file(str(file), shared=False, size=6)
    delegate = AotiDelegate.load(compiled.blob, constants)
    x = torch.ones(4, 6)
    before = delegate.run([x])[16]
    constants[index].add_(1)
    torch.testing.assert_close(delegate.run([x])[16], before - 1)


def test_another_number_of_constants_is_refused(compiled: Compiled) -> None:
    count = len(compiled.constants)
    with pytest.raises(ProgramError) as caught:
        AotiDelegate.load(compiled.blob, compiled.constants[:-1])
    assert caught.value.what == "the plan does not describe a partition of the backend `aoti`"
    assert caught.value.found == f"{count - 1} constants for a partition with {count}"


def test_other_names_of_constants_are_refused(compiled: Compiled) -> None:
    blob = DelegateBlob(compiled.blob.path, {**compiled.blob.info, "bound": compiled.blob.info["bound"][1:]})
    with pytest.raises(ProgramError) as caught:
        AotiDelegate.load(blob, compiled.constants)
    assert caught.value.what == "a compiled partition and its plan disagree about the constants to bind"
    assert caught.value.found == f"the library has ['c{compiled.blob.info['bound'][0]}'] more and [] less"


def test_inductor_fills_no_memory_for_constants(tmp_path: Path) -> None:
    """Neither parameters nor buffers: 512 MiB of memory that nothing has touched stay untouched."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(8192, 8192))
            self.register_buffer("table", torch.empty(8192, 8192))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).relu() + self.table[0]

    def measured(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))

    program = torch.export.export(Large(), (torch.ones(2, 8192),)).run_decompositions({})
    isa = ISAS["x86-64-v3"]
    with inductor_isolated(isa, choose_compiler(isa).program, tmp_path):
        generate(AotiCopy(program))  # what inductor imports is in memory from here on
        before = measured("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        generated = generate(AotiCopy(program))
    assert len(generated.bound) == 2
    assert measured("VmHWM") - before < 128 << 10


class Before(nn.Module):
    """State whose contents before a change are returned, and copied into other state."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("first", "second", "last", "fixed"):
            self.register_buffer(name, torch.arange(6.0))

    def forward(self, x: Tensor) -> list[Tensor]:
        rows = self.second.view(2, 3)
        results = [self.first.clone(), torch.cat([self.second]), self.second.repeat(1), rows.clone()[1]]
        given = self.first.clone()
        self.first.copy_(self.last * 2)
        self.last.copy_(given)
        self.second.add_(x)
        return [*results, self.last + x, self.fixed.clone()]


def test_a_copy_of_state_has_the_contents_before_a_change(tmp_path: Path) -> None:
    x = torch.arange(6.0)
    program = torch.export.export(Before(), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[AotiBackend.partitioner({})]).to_executorch()
    assert not lowered.reasons["forward"]
    model, eager = hatch_lower.load(save_program(lowered, tmp_path / "out")), Before()
    for step in range(3):
        results, expected = model(x + step), eager(x + step)
        for result, other in zip(results, expected, strict=True):
            assert torch.equal(result, other)
        results[-1].add_(1)  # the copy of a constant belongs to the caller
