"""The cuda backend on machines without a GPU: libraries, kernels for several architectures, and refusals."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hatch_lower.backends.aoti.record import GeneratedCode
from hatch_lower.backends.aoti.versions import read_symbols
from hatch_lower.backends.cuda import attention, toolchain
from hatch_lower.backends.cuda.compile import CudaBackend, CudaCopy, refuse_merged, refuse_unlike
from hatch_lower.backends.cuda.cubins import (
    ENTRY,
    EXACT,
    HEAD,
    PTX,
    SAME_MAJOR,
    Image,
    KernelFacts,
    kernels_in,
    pack_images,
)
from hatch_lower.backends.cuda.images import CHOICE, with_images
from hatch_lower.backends.cuda.options import GPUS, CudaOptions, parse_options
from hatch_lower.backends.cuda.run import ALIGNMENT, CudaDelegate, aligned
from hatch_lower.backends.cuda.texts import read_texts
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.exir.backend.backend_details import PreprocessResult
from hatch_lower.exir.graph.operators import torch_operator
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.torch_private.gpu_stand_ins import TritonKernel

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning"),
]
compiles = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
SPECS = CudaOptions().to_specs()


class Equal(nn.Module):
    """Constants of one shape with other contents, a product, and a reduction."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.scale, self.shift = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("mean", torch.randn(8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x * self.scale + self.shift - self.mean), -1)


def export(module: nn.Module, *args: Any, **kwargs: Any) -> ExportedProgram:
    program = torch.export.export(module.eval(), args, **kwargs)
    return to_edge(program, keep=CudaBackend.partitioner({}).ops_to_not_decompose(program)[0])


def export_equal(seed: int = 0) -> ExportedProgram:
    return export(Equal(seed), torch.ones(3, 8), dynamic_shapes={"x": {0: Dim("rows", max=100)}})


def lower(program: ExportedProgram, **options: Any) -> PreprocessResult:
    return CudaBackend.preprocess(program, CudaOptions(**options).to_specs())


@pytest.fixture(scope="module")
def lowered() -> PreprocessResult:
    pytest.importorskip("triton", reason="needs triton")
    return lower(export_equal())


@compiles
def test_the_library_needs_cuda_libraries_that_this_machine_may_lack(lowered: PreprocessResult) -> None:
    symbols = read_symbols(lowered.processed_bytes)
    assert {"libtorch_cuda.so", "libcudart.so.13", "libcuda.so.1"} <= set(symbols.libraries)
    assert {"cuModuleLoadData", "cuLaunchKernel"} <= symbols.undefined
    assert lowered.target is not None
    assert lowered.target.arch == ("sm_80", "sm_90a")
    assert (lowered.target.ptx, lowered.target.cuda) == ("compute_80", "13")


@compiles
def test_new_weights_and_another_folder_give_equal_bytes(
    lowered: PreprocessResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    again = lower(export_equal(seed=1))
    assert again.processed_bytes == lowered.processed_bytes
    assert str(tmp_path).encode() not in again.processed_bytes
    assert b"/tmp/" not in lowered.processed_bytes


@compiles
def test_each_of_several_constants_of_one_shape_is_bound(lowered: PreprocessResult) -> None:
    assert lowered.info["constants"] == 5
    assert lowered.info["bound"] == [0, 1, 2, 3, 4]


@compiles
def test_a_library_states_the_resources_of_its_kernels(lowered: PreprocessResult) -> None:
    found = kernels_in(memoryview(lowered.processed_bytes))
    named = {name.partition(":")[0] for name in lowered.debug_handle_map or () if "triton" in str(name)}
    assert len(found) == len(named)
    assert all(isinstance(kernel, KernelFacts) and 0 < kernel.registers <= 255 for kernel in found)


@compiles
def test_kernels_and_library_calls_name_their_operations(lowered: PreprocessResult) -> None:
    named = {name for name in lowered.debug_handle_map if isinstance(name, str)}
    assert any("triton" in name for name in named)
    assert any("addmm" in name or "mm_out" in name for name in named)


@compiles
def test_the_fingerprint_names_all_tools() -> None:
    facts = CudaBackend.fingerprint(SPECS)
    assert {"cuda", "settings", "gpus", "headers", "triton", "ptxas", "compiler", "linker"} <= facts.keys()
    assert CudaBackend.fingerprint(CudaOptions(arch=("sm_80",)).to_specs())["gpus"] != facts["gpus"]


@compiles
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_reduction_is_compiled_for_other_dtypes(dtype: torch.dtype) -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x * 2, -1).sum(0)

    assert lower(export(Norm(), torch.ones(4, 8, dtype=dtype)), arch=("sm_80",)).processed_bytes


def test_a_merged_constant_is_refused() -> None:
    copied = CudaCopy(export_equal())
    generated: Any = SimpleNamespace(bound=frozenset({"c0", "c2", "c3", "c4"}))
    with pytest.raises(BackendError, match="does not bind each constant") as caught:
        refuse_merged(copied, generated)
    assert caught.value.found == "`c1`, (8,)"


def test_stand_ins_are_on_a_gpu_that_need_not_exist() -> None:
    copied = CudaCopy(export_equal())
    assert {str(tensor.device) for tensor in (*copied.attributes.values(), *copied.fakes)} == {"cuda:0"}


@compiles
def test_texts_of_kernels_name_no_installation(lowered: PreprocessResult) -> None:
    (text, *_) = read_texts(lowered.processed_bytes)
    assert "'backend_hash': ''" in text.kernel.text


# Options


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"arch": ["sm_70"]}, "`arch` holds 'sm_70'"),
        ({"arch": "sm_80"}, "`arch` must be a list of strings"),
        ({"arch": []}, "`arch` must be a list of strings"),
        ({"isa": "x86-64-v3"}, "`isa` is no option"),
    ],
)
def test_a_wrong_option_is_refused(options: Mapping[str, object], found: str) -> None:
    with pytest.raises(BackendError) as caught:
        parse_options(options)
    assert found in caught.value.found


def test_architectures_are_in_order_without_repetition() -> None:
    options = parse_options({"arch": ["sm_90", "sm_80", "sm_90"]})
    assert options.arch == ("sm_80", "sm_90")
    assert options.gpu is GPUS["sm_80"]
    assert options.targets == ("sm_80", "sm_90a")


# Headers


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text("#define CUDA_VERSION 13000\n")
    with pytest.raises(BackendError, match="needs CUDA's headers") as caught:
        toolchain.find_headers()
    assert caught.value.found.startswith("cuda_runtime_api.h, crt/host_defines.h, nv/target: not in ")
    assert "hatch-lower[cuda]" in caught.value.hint


def test_headers_of_an_installed_cuda_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for name in toolchain.NEEDED:
        path = tmp_path / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#define CUDA_VERSION 12080\n")
    assert toolchain.find_headers().version == "12.8"


# Attention


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)


def heads(dtype: torch.dtype, size: int, length: int = 6) -> Tensor:
    return torch.zeros(1, 2, length, size, dtype=dtype)


HALF, FULL = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("inputs", "causal", "kernel"),
    [
        ((heads(HALF, 16),) * 3, False, attention.FLASH),
        ((heads(torch.bfloat16, 64),) * 3, True, attention.FLASH),
        # FlashAttention aligns a causal mask of unequal lengths at the last row
        ((heads(HALF, 16), heads(HALF, 16, 9), heads(HALF, 16, 9)), True, attention.EFFICIENT),
        ((*(heads(HALF, 16),) * 3, torch.zeros(1, 1, 6, 6, dtype=HALF)), False, attention.EFFICIENT),
        ((heads(FULL, 16),) * 3, False, attention.EFFICIENT),
        ((*(heads(FULL, 16),) * 3, torch.ones(1, 1, 6, 6, dtype=torch.bool)), False, attention.EFFICIENT),
        ((heads(FULL, 6),) * 3, False, None),
        ((heads(HALF, 12),) * 3, False, None),
        ((heads(torch.float64, 16),) * 3, False, None),
    ],
)
def test_attention_has_a_kernel_by_dtype_head_size_and_mask(
    inputs: Sequence[Tensor], causal: bool, kernel: object
) -> None:
    program = export(Attention(causal=causal), *inputs)
    (node,) = [node for node in program.graph.nodes if torch_operator(node.target) is attention.ATTENTION]
    assert attention.choose_kernel(node) is kernel


@compiles
@pytest.mark.parametrize(
    ("inputs", "function"),
    [
        ((heads(HALF, 16),) * 3, "aoti_torch_cuda__scaled_dot_product_flash_attention"),
        (
            (*(heads(FULL, 16, 7),) * 3, torch.ones(1, 1, 7, 7, dtype=torch.bool)),
            "aoti_torch_cuda__scaled_dot_product_efficient_attention",
        ),
    ],
)
def test_attention_is_one_call(inputs: Sequence[Tensor], function: str) -> None:
    result = lower(export(Attention(), *inputs), arch=("sm_80",))
    assert function in read_symbols(result.processed_bytes).undefined


# Images


KERNEL = TritonKernel(
    "k", "", "", {}, False, {80: b"cubin80", 90: b"cubin90"}, {80: "ptx80", 90: "ptx90"}, 0, {80: "sm_80", 90: "sm_90a"}
)


def test_a_kernel_of_another_architecture_is_refused() -> None:
    with pytest.raises(BackendError, match="other architectures"):
        refuse_unlike([KERNEL], CudaOptions(("sm_80", "sm_89")))


def test_a_kernel_with_too_much_shared_memory_is_refused() -> None:
    kernel = TritonKernel("k", "", "", {}, False, {86: b""}, {86: ""}, 120_000, {86: "sm_86"})
    with pytest.raises(BackendError, match="more shared memory") as caught:
        refuse_unlike([kernel], CudaOptions(("sm_86",)))
    assert caught.value.found == "120000 bytes of 101376"


def test_kernels_that_are_loaded_otherwise_are_refused() -> None:
    generated = GeneratedCode("loadKernel(__other_start, 0)", "", frozenset(), {})
    with pytest.raises(BackendError, match="loads kernels in another way"):
        with_images(generated, [KERNEL])


@pytest.mark.parametrize(
    ("capability", "image"),
    [((8, 0), b"A"), ((8, 6), b"B"), ((8, 9), b"B"), ((9, 0), b"C"), ((10, 0), b"P"), ((12, 1), b"P"), ((7, 5), b"")],
)
def test_the_wrapper_chooses_the_image_of_the_gpu(capability: tuple[int, int], image: bytes, tmp_path: Path) -> None:
    gpp = shutil.which("g++")
    if gpp is None:
        pytest.skip("needs g++")
    table = pack_images(
        [
            Image(8, 0, SAME_MAJOR, b"A"),
            Image(8, 6, SAME_MAJOR, b"B"),
            Image(9, 0, EXACT, b"C"),
            Image(8, 0, PTX, b"P\0"),
        ],
        shared=0,
    )
    (tmp_path / "cuda.h").write_text(DRIVER.format(*capability))
    (tmp_path / "choose.cpp").write_text(CHOICE + CALLER)
    subprocess.run(
        [gpp, "-shared", "-fPIC", "-I.", "choose.cpp", "-o", "choose.so"], cwd=tmp_path, check=True, timeout=120
    )
    library = ctypes.CDLL(str(tmp_path / "choose.so"))
    library.choose.restype = ctypes.c_int
    buffer = ctypes.create_string_buffer(table)
    found = library.choose(buffer)
    assert (bytes([found]) if found else b"") == image


DRIVER = """
typedef int CUdevice;
typedef int CUresult;
#define CUDA_SUCCESS 0
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 1
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 2
static CUresult cuCtxGetDevice(CUdevice* device) {{ *device = 0; return 0; }}
static CUresult cuDeviceGetAttribute(int* value, int which, CUdevice) {{ *value = which == 1 ? {} : {}; return 0; }}
"""
CALLER = """
extern "C" int choose(const void* table) {
    try { return *static_cast<const char*>(hatch_lower_image(table)); } catch (const std::exception&) { return 0; }
}
"""


def test_images_begin_at_multiples_of_16_bytes() -> None:
    table = pack_images([Image(8, 0, SAME_MAJOR, b"abc"), Image(9, 0, EXACT, b"de")], shared=0)
    entries = [ENTRY.unpack_from(table, HEAD.size + ENTRY.size * place) for place in range(2)]
    assert [table[entry[3] :][: entry[4]] for entry in entries] == [b"abc", b"de"]
    assert all(entry[3] % 16 == 0 for entry in entries)


# Run half


def test_a_profile_does_not_measure_inside_a_library() -> None:
    assert not CudaDelegate.timed
    assert CudaDelegate.untimed == "its library has no timers"


class Runner:
    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.bound = names, dict[str, Tensor]()

    def get_constant_names_to_original_fqns(self) -> dict[str, str]:
        return dict.fromkeys(self.names, "")

    def update_constant_buffer(self, tensors: dict[str, Tensor], *flags: bool) -> None:
        assert flags == (False, False, True)
        self.bound = tensors

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        return [inputs[0] + self.bound["c0"]]


def blob(info: Mapping[str, object], device: str = "cuda:1") -> DelegateBlob:
    return DelegateBlob(Path("p.so"), info, {}, device=device)


INFO = {"constants": 1, "bound": [0], "inputs": 1, "passed": [0], "outputs": [0]}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Runner]]:
    found: list[tuple[str, Runner]] = []

    def open_library(path: Path, device: str) -> Runner:
        found.append((device, Runner(["c0"])))
        return found[-1][1]

    monkeypatch.setattr("hatch_lower.backends.cuda.run.open_cuda_library", open_library)
    return found


def test_a_library_is_opened_on_the_device_of_the_program(opened: list[tuple[str, Runner]]) -> None:
    constant = torch.arange(4.0)
    delegate = CudaDelegate.load(blob(INFO), [constant])
    assert [device for device, _ in opened] == ["cuda:1"]
    assert opened[0][1].bound["c0"].data_ptr() == constant.data_ptr()
    assert torch.equal(torch.as_tensor(delegate.run([torch.ones(4)])[0]), constant + 1)


def test_an_unaligned_constant_is_copied() -> None:
    memory = torch.arange(40.0)
    shift = next(start for start in range(5) if memory[start:].data_ptr() % ALIGNMENT)
    view = memory[shift : shift + 12].view(3, 4).t()
    copy = aligned(view)
    assert copy.data_ptr() % ALIGNMENT == 0
    assert copy.stride() == view.stride()
    assert torch.equal(copy, view)
    dense = memory[:4]
    assert dense.data_ptr() % ALIGNMENT or aligned(dense) is dense


def test_a_library_with_other_constants_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.backends.cuda.run.open_cuda_library", lambda *_: Runner(["c0", "c1"]))
    with pytest.raises(ProgramError, match="disagree about the constants") as caught:
        CudaDelegate.load(blob(INFO), [torch.ones(4)])
    assert caught.value.found == "the library has ['c1'] more and [] less"


def test_a_library_that_cannot_be_opened_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, device: str) -> None:
        raise RuntimeError("Error in dlopen: libcuda.so.1: cannot open shared object file\nException raised from x")

    monkeypatch.setattr("hatch_lower.backends.cuda.run.open_cuda_library", fail)
    with pytest.raises(ProgramError, match="cannot be loaded") as caught:
        CudaDelegate.load(blob(INFO), [torch.ones(4)])
    assert caught.value.found == "Error in dlopen: libcuda.so.1: cannot open shared object file"


# Operations


def test_quantized_operators_stay_outside_with_a_reason() -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 0, -128, 127, torch.int8) + 1

    __import__("torch.ao.quantization.fx._decomposed")
    program = export(Rounded(), torch.ones(4))
    result = CudaBackend.partitioner({}).partition(program)
    (reason,) = [text for name, text in result.reasons.items() if "quantize" in name]
    assert "computes with 8 bits" in reason
