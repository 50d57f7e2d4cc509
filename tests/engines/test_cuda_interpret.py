"""Libraries for GPUs, executed on the CPU with interpreted kernels, compute as eager does."""

from __future__ import annotations

import importlib.util
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elftools.elf.elffile import ELFFile
from support.exports import Workshop, settings_of
from support.modules import Call
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from hatch_lower.backends.aoti.record import GeneratedCode
from hatch_lower.backends.cuda.compile import CudaBackend
from hatch_lower.backends.cuda.emulator import write_emulator
from hatch_lower.backends.cuda.images import with_images
from hatch_lower.backends.cuda.interpret import Interpreter, interpreting
from hatch_lower.backends.cuda.options import CudaOptions
from hatch_lower.backends.cuda.texts import SECTION, read_texts
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.graph.state import constant_of, constant_specs
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.pipeline.verify import INTERPRETED
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.torch_private.convolution_layouts import layout_on_gpu
from hatch_lower.runtime.torch_private.kernel_interpreter import KernelArrays

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]
compiles = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.split, self.join, self.causal = nn.Linear(32, 96), nn.Linear(32, 32), causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.split(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=self.causal)
        return self.join(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.first, self.second = Attention(), nn.LayerNorm(32), nn.LayerNorm(32)
        self.inner = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.first(x + self.attention(x, mask))
        return self.second(x + self.inner(x))


class Encoder(nn.Module):
    """Two layers of BERT's kind."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(50, 32), nn.Embedding(16, 32), nn.LayerNorm(32)
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(32, 50)

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(words) + self.places(torch.arange(words.shape[1])))
        for block in self.blocks:
            x = block(x, mask[:, None, None, :])
        return self.head(x), x.mean(1)


class Decoder(nn.Module):
    """A step with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.split = nn.RMSNorm(32), nn.Linear(32, 96)
        self.register_buffer("keys", torch.zeros(1, 4, 16, 8))
        self.register_buffer("values", torch.zeros(1, 4, 16, 8))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        query, key, value = self.split(self.norm(x)).view(1, 1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, place, key)
        self.values.index_copy_(2, place, value)
        mask = (torch.arange(16) <= place)[None, None, None, :]
        mixed = functional.scaled_dot_product_attention(query, self.keys, self.values, mask)
        return x + mixed.transpose(1, 2).reshape(1, 1, 32)


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([normalized(outside), normalized(outside)])
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.short(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner, self.norm = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        outer = functional.silu(self.down(x))
        inner = functional.silu(self.norm(self.inner(outer)))
        pooled = functional.interpolate(functional.max_pool2d(inner, 2), scale_factor=2, mode="bilinear")
        return torch.sigmoid(self.last(torch.cat([outer, self.up(inner + pooled)], 1)))


class Alike(nn.Module):
    """Constants of one shape with other contents, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Parameter(torch.randn(8)) for _ in range(3))
        self.register_buffer("twin", self.one.detach().clone())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls.add_(1)
        self.mean.mul_(0.5).add_(x.mean(0))
        norm = functional.layer_norm(x, (8,), self.three, self.one)
        return x * self.one + self.two, norm * self.twin, x - self.mean, self.calls * 2


def normalized(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    norm.running_mean, norm.running_var = torch.rand(channels), torch.rand(channels) + 0.5
    return norm


def numbers(x: Tensor) -> tuple[Tensor, ...]:
    reduced = (
        x.sum(),
        x.mean(0),
        x.var(1),
        x.amax(1),
        x.amin((0, 2)),
        x.argmax(1),
        x.prod(1),
        torch.any(x > 2),
        x.max(2)[1],
    )
    scans = x.cumsum(1), torch.softmax(x, -1), torch.logsumexp(x, 1), functional.layer_norm(x, (5,))
    rounded = x.floor(), x.round(), x % 0.7, x // 0.7, torch.fmod(x, 0.7), x.abs().pow(1.3), torch.atan2(x, x + 1)
    rounded = *rounded, x.atan(), x.max(2)[1]
    return *reduced, *scans, *rounded, functional.gelu(x), functional.gelu(x, approximate="tanh"), torch.erf(x)


def integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    large = x.to(torch.int32) * 100_000
    return x @ y, x // 3, x % -3, x << 2, x >> 1, x & 5, ~x, x.sum(), x.max(), x / 2, x.clamp(-2, 2), large * large


def indices(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    wide = index[:, None].expand(-1, 8)
    added = torch.zeros(6, 8).scatter_add(0, wide, x[:4]), torch.zeros(6, 8).index_add(0, index, x[:4])
    ordered = torch.sort(x, 1), torch.topk(x, 3, 1)
    parts = x.index_select(0, index), x[index], x.gather(0, wide), x.index_put((index,), x[:4]), x.flip(1), x.tril()
    return *added, *parts, *(each for pair in ordered for each in pair)


def halves(x: Tensor) -> tuple[Tensor, ...]:
    return functional.gelu(x), functional.silu(x) * x, x + x * 2, torch.softmax(x, -1), x.sum(0)


def doubles(x: Tensor) -> tuple[Tensor, ...]:
    return functional.gelu(x), x @ x.T, torch.softmax(x, -1), x.var(), x.sin(), torch.erf(x), x.cumsum(0)


@dataclass(frozen=True)
class Case:
    module: nn.Module
    calls: Sequence[tuple[Tensor, ...]]
    dynamic: Any = None
    tolerance: float = 1e-4
    results: dict[str, PreprocessResult] = field(default_factory=dict)


def cases() -> Mapping[str, Case]:
    torch.manual_seed(0)
    rows, rand, randn = ({0: Dim("rows", max=64)},), torch.rand, torch.randn
    words = {0: Dim("rows", max=64), 1: Dim("words", max=16)}
    half, brain = torch.float16, torch.bfloat16
    sentence = lambda count, length: (torch.randint(50, (count, length)), rand(count, length) > 0.2)  # noqa: E731
    last = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).to(memory_format=torch.channels_last)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), normalized(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Residual(8, 16, 2),
        Residual(16, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    grouped = nn.Conv2d(4, 8, 3, groups=2)
    mlp = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(-1))
    return {
        "an MLP of dynamic size": Case(mlp, [(randn(count, 8),) for count in (3, 1, 17)], rows),
        "a ResNet of dynamic size": Case(net, [(randn(count, 3, 32, 32),) for count in (2, 3)], rows),
        "images with channels last": Case(last, [(randn(2, 4, 9, 9).to(memory_format=torch.channels_last),)]),
        "a convolution in float16": Case(grouped.to(half), [(randn(2, 4, 9, 9).to(half),)], None, 1e-2),
        "a U-Net": Case(UNet(), [(randn(1, 3, 16, 16),)]),
        "attention with a row that no column is in": Case(
            Attention(), [(randn(2, 4, 32), torch.ones(4, 4, dtype=torch.bool).tril(-1)[None, None])]
        ),
        "attention with a mask": Case(Attention(), [(randn(2, 10, 32), rand(2, 1, 10, 10) > 0.3)]),
        "causal attention": Case(Attention(causal=True), [(randn(2, 10, 32),)]),
        "attention in float16": Case(Attention().to(half), [(randn(2, 10, 32).to(half),)], None, 3e-3),
        "attention in bfloat16": Case(Attention(causal=True).to(brain), [(randn(2, 10, 32).to(brain),)], None, 2e-2),
        "a BERT of dynamic size": Case(Encoder(), [sentence(2, 7), sentence(3, 16)], (words,) * 2),
        "a decoder's steps": Case(Decoder(), [(randn(1, 1, 32), torch.tensor([place])) for place in range(3)]),
        "constants of one shape, and state": Case(Alike(), [(randn(3, 8),)] * 3),
        "numbers": Case(Call(numbers), [(randn(3, 33, 5) * 2,)], None, 2e-4),
        "integers": Case(Call(integers), [(torch.randint(-9, 9, (4, 5)), torch.randint(-9, 9, (5, 4)))]),
        "indices": Case(Call(indices), [(randn(6, 8), torch.tensor([5, 0, 3, 3]))]),
        "float16": Case(Call(halves), [((randn(5, 33) * 3).to(half),)], None, 2e-3),
        "bfloat16": Case(Call(halves), [((randn(5, 33) * 3).to(brain),)], None, 2e-2),
        "float64": Case(Call(doubles), [(randn(5, 6, dtype=torch.float64),)], None, 1e-10),
    }  # fmt: skip


CASES = cases()


def export(case: Case) -> ExportedProgram:
    dynamic = (case.dynamic,) if isinstance(case.module, Call) and case.dynamic else case.dynamic
    # the export must not change the state of the module that is compared
    program = torch.export.export(case.module.eval(), case.calls[0], dynamic_shapes=dynamic)
    return to_edge(program, keep=CudaBackend.partitioner({}).ops_to_not_decompose(program)[0])


@dataclass(frozen=True)
class Lowered:
    programs: Mapping[str, ExportedProgram]
    results: Mapping[str, PreprocessResult]


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    pytest.importorskip("triton", reason="needs triton")
    with torch.no_grad():
        programs = {name: export(case) for name, case in CASES.items()}
        results = CudaBackend.preprocess_many(list(programs.values()), [CudaOptions().to_specs()] * len(programs))
    return Lowered(programs, dict(zip(programs, results, strict=True)))


@pytest.fixture(scope="module")
def interpreter(lowered: Lowered) -> Iterator[Interpreter]:
    with Interpreter() as interpreter:
        yield interpreter


def constants_of(program: ExportedProgram) -> list[Tensor]:
    return [constant_of(program, spec).detach().clone() for spec in constant_specs(program)]


@compiles
@pytest.mark.parametrize("name", CASES)
def test_a_library_with_interpreted_kernels_computes_as_eager(
    name: str, lowered: Lowered, interpreter: Interpreter
) -> None:
    case, program, result = CASES[name], lowered.programs[name], lowered.results[name]
    constants = constants_of(program)
    partition = interpreter.bind(result.processed_bytes, result.info, constants)
    names = [text.kernel.name for text in read_texts(result.processed_bytes)]
    for call in case.calls:
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(case.module(*call))
        found = partition.run(list(call))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=case.tolerance, atol=case.tolerance)
        assert sorted(partition.launches) == sorted(names), "each packaged kernel was launched"
    for constant, spec in zip(constants, constant_specs(program), strict=True):
        eager = dict(case.module.named_buffers()).get(str(spec.target))
        if eager is not None:  # state, changed in the caller's own tensor
            torch.testing.assert_close(constant, eager)


@compiles
def test_a_run_half_by_interpretation_sees_state_that_the_program_resets(lowered: Lowered, tmp_path: Path) -> None:
    name = "constants of one shape, and state"
    result, program, (x,) = lowered.results[name], lowered.programs[name], CASES[name].calls[0]
    path = tmp_path / "partition.so"
    path.write_bytes(result.processed_bytes)
    constants = constants_of(program)
    state = [constant for constant in constants if not constant.is_floating_point()]
    with interpreting() as kind:
        delegate = kind.load(DelegateBlob(path, result.info), constants)
        before = int(state[0])
        assert [int(delegate.run([x])[3]) for _ in range(2)] == [2 * before + 2, 2 * before + 4]  # type: ignore[call-overload]
        state[0].fill_(40)
        assert int(delegate.run([x])[3]) == 82  # type: ignore[call-overload]
        assert int(state[0]) == 41


@compiles
def test_machine_code_of_another_text_is_not_interpreted(lowered: Lowered, interpreter: Interpreter) -> None:
    result = lowered.results["float16"]
    texts = zlib.decompress(section_of(result.processed_bytes))
    start = texts.index(b'"code": {"80": [') + len(b'"code": {"80": [')
    digest = texts.index(b'"', start) + 1
    other = texts[:digest] + b"0" * 64 + texts[digest + 64 :]
    library = result.processed_bytes.replace(section_of(result.processed_bytes), padded(other, result.processed_bytes))
    partition = interpreter.bind(library, result.info, [])
    with pytest.raises(BackendError, match="cannot be interpreted on the CPU") as caught:
        partition.run(list(CASES["float16"].calls[0]))
    assert "the library has no text for its machine code of the kernel `partition_triton" in caught.value.found


def section_of(library: bytes) -> bytes:
    section: Any = ELFFile(io.BytesIO(library)).get_section_by_name(SECTION)
    return bytes(section.data())


def padded(texts: bytes, library: bytes) -> bytes:
    packed, length = zlib.compress(texts, 9), len(section_of(library))
    assert len(packed) <= length
    return packed + bytes(length - len(packed))


@compiles
def test_a_file_that_is_no_library_is_refused(interpreter: Interpreter) -> None:
    with pytest.raises(BackendError, match="cannot be interpreted on the CPU") as caught:
        interpreter.bind(b"no library", {"bound": []}, [])
    assert caught.value.found.startswith("elftools.common.exceptions.ELFError: ")
    assert "verify = false" in caught.value.hint


@compiles
def test_a_build_without_a_gpu_compares_a_whole_program_and_reads_as_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    shop = Workshop(tmp_path)
    recipe = Recipe("gpu", (BackendChoice("cuda", {"arch": ["sm_80"]}),), without_device="interpret")
    report, _ = shop.build(shop.capture(), settings_of(recipe))
    assert report.manifest.recipes["gpu"].not_compared == INTERPRETED
    assert {method.method for method in report.verified} == set(report.manifest.recipes["gpu"].methods)
    assert {method.compared.partition(": ")[0] for method in report.verified} == {"interpreted"}


def test_the_emulator_has_no_call_that_libtorch_lacks_on_the_cpu() -> None:
    source = write_emulator()
    assert "aoti_torch_cuda_mm_out(" in source
    assert "aoti_torch_cuda__cudnn_rnn(" not in source


def test_an_address_outside_of_the_arrays_is_refused() -> None:
    arrays = KernelArrays([(1000, 1016)])
    addresses = np.array([1000, 1012, 1016], dtype=np.uint64)
    arrays.refuse_outside(addresses, np.array([True, True, False]), 4)
    with pytest.raises(IndexError, match="byte 16 relative to an array is outside of the kernel's arrays"):
        arrays.refuse_outside(addresses, np.array([True]), 4)


@pytest.mark.parametrize(
    ("dtype", "image", "weight", "layout"),
    [
        (torch.float32, torch.channels_last, torch.contiguous_format, torch.channels_last),
        (torch.float16, torch.contiguous_format, torch.channels_last, torch.channels_last),
        (torch.float32, torch.contiguous_format, torch.contiguous_format, torch.contiguous_format),
        (torch.float64, torch.channels_last, torch.channels_last, torch.contiguous_format),
    ],
)
def test_the_layout_of_a_convolution_is_that_of_cudnn(
    dtype: torch.dtype, image: torch.memory_format, weight: torch.memory_format, layout: torch.memory_format
) -> None:
    images = torch.zeros(2, 4, 5, 5, dtype=dtype).to(memory_format=image)
    weights = torch.zeros(8, 4, 3, 3, dtype=dtype).to(memory_format=weight)
    assert layout_on_gpu(images, weights) is layout


def test_each_result_of_libtorch_is_checked_in_the_packaged_code() -> None:
    check = 'assert_size_stride(buf2, {2L, 8L}, {8L, 1L}, "torch.ops.aten.convolution.default");'
    other = 'if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {2L}, {1L}, "input"); }'
    code = GeneratedCode(f"if (_check_aoti_runtime_check_inputs_env()) {{ {check} }}\n{other}", "", frozenset(), {})
    assert with_images(code, []).wrapper == f"{check}\n{other}"
