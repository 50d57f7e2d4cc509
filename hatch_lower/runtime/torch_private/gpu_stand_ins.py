"""Inductor's CUDA half without a GPU: a stand-in answers each question that inductor asks a GPU, and kernels are
compiled without being loaded. A GPU of the build machine is never asked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

import torch

from hatch_lower.canonical import digest_of
from hatch_lower.errors import BackendError, extra_hint
from hatch_lower.runtime.torch_private.convolution_layouts import layout_on_gpu
from hatch_lower.runtime.torch_private.plain_indexing import getting, setting

if TYPE_CHECKING:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

WARP = 32  # threads
BLOCK = 1024  # threads at most
BLACKWELL = 100  # the first capability whose code Triton has another assembler for
KernelConfigs: TypeAlias = Mapping[str, Mapping[str, int]]  # block sizes, warps and stages, by a kernel's digest
REGISTERS = 65536  # of a multiprocessor, for all architectures since sm_50


@dataclass(frozen=True, slots=True)
class Gpu:
    """The facts of a GPU that shape inductor's code."""

    name: str
    capability: int  # 80 for sm_80
    multiprocessors: int
    threads: int  # of a multiprocessor
    shared: int  # bytes of shared memory that a block can have
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A Triton kernel of a partition, compiled for several architectures."""

    name: str
    source: str  # the Python text that defines the kernel
    digest: str  # of the source without the kernel's name, and of the types and sizes of its parameters
    config: dict[str, int]  # the configuration: block sizes, warps and stages
    is_unknown: bool  # whether the kernel's choice is no configuration that inductor suggests
    cubins: dict[int, bytes]  # by compute capability
    ptx: dict[int, str]
    shared: int  # bytes of shared memory
    targets: dict[int, str]  # the architecture that the PTX names: `sm_90a`
    text: str = ""  # the Python module that defines the kernel
    signature: dict[str, str] = field(default_factory=dict)  # parameter to type: `*fp32`, `i32`, `constexpr`
    constants: dict[str, object] = field(default_factory=dict)  # values of the parameters of the type `constexpr`


@contextmanager
def gpu_stand_ins(
    gpu: Gpu, capabilities: Sequence[int], kernels: list[TritonKernel], choices: KernelConfigs, tuning: list[str]
) -> Iterator[None]:
    """Let inductor generate code for `gpu`, and compile its kernels for `capabilities`; collect them in `kernels`.

    Args:
        choices: configurations of kernels, by digest; other kernels have the first that inductor suggests.
        tuning: receives the code that defines and calls the kernels, for `time_kernels`.

    Raises:
        BackendError: if a kernel's launch differs between capabilities.
    """
    import torch._dynamo.device_interface as interfaces
    from torch._inductor import compile_fx, graph, utils
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.runtime import triton_helpers, triton_heuristics
    from torch._inductor.runtime.hints import DeviceProperties
    from triton.runtime import driver

    major, minor = divmod(gpu.capability, 10)
    properties: Any = DeviceProperties(**properties_of(gpu))
    create = answer_with(properties)
    create.cache_clear = answer_with(None)

    compile_kernels = kernel_compiler(capabilities, kernels, choices, tuning)
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "get_device_properties", answer_with(facts_of(gpu))),
        (torch.cuda, "get_device_capability", answer_with((major, minor))),
        (torch.cuda, "get_device_name", answer_with(gpu.name)),
        (torch.cuda, "current_device", answer_with(0)),
        (torch.cuda, "device_count", answer_with(1)),
        (interfaces.CudaInterface, "raise_if_triton_unavailable", staticmethod(answer_with(None))),
        (DeviceProperties, "create", create),
        (compile_fx, "_check_triton_bf16_support", answer_with(None)),
        (utils, "is_big_gpu", answer_with(True)),
        (triton_helpers, "set_driver_to_gpu", answer_with(None)),
        # Without a GPU, persistent reductions would take a branch for Intel's GPUs.
        (triton_heuristics, "torch", TorchWithGpu()),
        (triton_heuristics.CachingAutotuner, "precompile", answer_with(None)),
        (PythonWrapperCodegen, "generate_and_run_autotune_block", compile_kernels),
        # Both functions trace patterns, with tensors on the device of the graph.
        (joint_graph, "lazy_init", on_the_cpu(joint_graph.lazy_init)),
        (post_grad, "lazy_init", on_the_cpu(post_grad.lazy_init)),
        # All stand-ins for constants have the address 0, and inductor would merge constants of one shape.
        (graph, "is_same_tensor", lambda one, other: one is other),
        (driver, "_active", stand_in_driver(gpu)),
    ]
    answers += answers_without_cuda()
    answers += [
        (module, "has_triton", answer_with(True))
        for name, module in sorted(sys.modules.items())
        if name.startswith("torch.") and callable(getattr(module, "has_triton", None))
    ]
    with ExitStack() as stack:
        for owner, name, value in answers:
            stack.enter_context(patch.object(owner, name, value))
        yield


def answers_without_cuda() -> list[tuple[Any, str, Any]]:
    """Return the answers that a torch without CUDA needs besides."""
    return [
        (torch.Tensor, "__getitem__", getting(torch.Tensor.__getitem__)),
        (torch.Tensor, "__setitem__", setting(torch.Tensor.__setitem__)),
        # A torch without cuDNN would name the layout of its own kernels for a convolution's result.
        (torch._C, "_conv_determine_backend_memory_format", layout_on_gpu),
    ]


def properties_of(gpu: Gpu) -> dict[str, Any]:
    """Return the facts that inductor writes beside each kernel."""
    return {
        "type": "cuda",
        "index": 0,
        "multi_processor_count": gpu.multiprocessors,
        "cc": gpu.capability,
        "major": gpu.capability // 10,
        "regs_per_multiprocessor": REGISTERS,
        "max_threads_per_multi_processor": gpu.threads,
        "max_threads_per_block": BLOCK,
        "warp_size": WARP,
    }


def facts_of(gpu: Gpu) -> object:
    """Return the facts of a GPU as `torch.cuda.get_device_properties` has them."""
    own = {name: value for name, value in properties_of(gpu).items() if name not in ("type", "index", "cc")}
    return SimpleNamespace(
        **own,
        name=gpu.name,
        minor=gpu.capability % 10,
        total_memory=gpu.memory,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu.shared,
        gcnArchName="",
    )


def kernel_compiler(
    capabilities: Sequence[int], kernels: list[TritonKernel], choices: KernelConfigs, tuning: list[str]
) -> Callable[[Any], None]:
    """Return the method of inductor's wrapper that compiles its kernels, for `gpu_stand_ins`."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def compile_kernels(wrapper: Any) -> None:
        # the definitions only: the calls would run the kernels to choose the fastest configuration
        wrapper.kernel_autotune_defs.splice("async_compile.wait(globals())\ndel async_compile\n")
        definitions, scope = wrapper.kernel_autotune_defs.getvalue(), dict[str, Any]()
        tuning.append(f"{definitions}\n{wrapper.kernel_autotune_calls.getvalue()}")
        exec(definitions, scope)
        for name, kernel in scope.items():
            if isinstance(kernel, CachingAutotuner):
                kernels.append(compile_kernel(name, kernel, capabilities, choices))

    return compile_kernels


def answer_with(value: object) -> Any:
    return lambda *args, **kwargs: value


class TorchWithGpu:
    """The module `torch` with a GPU of the kind CUDA: `torch.cuda.is_available()` is true."""

    cuda = SimpleNamespace(**{**vars(torch.cuda), "is_available": answer_with(True)})
    xpu = SimpleNamespace(**{**vars(torch.xpu), "is_available": answer_with(False)})

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def on_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        moved = [torch.device("cpu") if isinstance(value, torch.device) else value for value in args]
        named = {
            name: torch.device("cpu") if isinstance(value, torch.device) else value for name, value in kwargs.items()
        }
        with patch.object(torch.cuda, "is_available", answer_with(False)):
            return function(*moved, **named)

    return call


def stand_in_driver(gpu: Gpu) -> object:
    from triton.backends.compiler import GPUTarget

    facts = {
        "max_shared_mem": gpu.shared,
        "multiprocessor_count": gpu.multiprocessors,
        "warpSize": WARP,
        "max_num_regs": REGISTERS,
    }
    return SimpleNamespace(
        get_current_target=answer_with(GPUTarget("cuda", gpu.capability, WARP)),
        get_current_device=answer_with(0),
        get_active_torch_device=answer_with(torch.device("cuda", 0)),
        utils=SimpleNamespace(get_device_properties=answer_with(facts)),
    )


def compile_kernel(
    name: str, kernel: CachingAutotuner, capabilities: Sequence[int], choices: KernelConfigs
) -> TritonKernel:
    """Compile a kernel for each capability, and hand the launch facts to inductor's C++ code."""
    made: Any = kernel
    digest = kernel_digest(made)
    choice = choices.get(digest)
    fitting = [config for config in made.configs if config_values(config) == choice]
    config = fitting[0] if fitting else made.configs[0]
    launchers = {capability: compiled_for(made, config, capability) for capability in capabilities}
    binaries = {capability: launcher.bin for capability, launcher in launchers.items()}
    launches = {
        capability: (binary.metadata.num_warps, launchers[capability].global_scratch, binary.metadata.name)
        for capability, binary in binaries.items()
    }
    if len(set(launches.values())) != 1:
        raise BackendError(
            "a kernel is launched otherwise for one architecture than for another",
            where=name,
            found=", ".join(f"sm_{capability}: {launch[:2]}" for capability, launch in launches.items()),
            hint="give each architecture a recipe of its own",
        )
    shared = max(binary.metadata.shared for binary in binaries.values())
    first = launchers[capabilities[0]]
    first.bin.metadata = first.bin.metadata._replace(shared=shared)
    first.bin.shared = shared
    made.inductor_meta.setdefault("kernel_name", name)
    made.save_gpu_kernel(0, first)
    return TritonKernel(
        name,
        source_of(made),
        digest,
        config_values(config),
        choice is not None and not fitting,
        {capability: binary.asm["cubin"] for capability, binary in binaries.items()},
        {capability: binary.asm["ptx"] for capability, binary in binaries.items()},
        shared,
        {capability: ptx_target(binary.asm["ptx"]) for capability, binary in binaries.items()},
        module_text(made),
        dict(made.triton_meta["signature"]),
        {**made.triton_meta["constants"], **config.kwargs},
    )


def config_values(config: Any) -> dict[str, int]:
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def source_of(kernel: Any) -> str:
    return kernel.fn.raw_src if isinstance(kernel.fn.raw_src, str) else "".join(kernel.fn.raw_src)


def module_text(kernel: Any) -> str:
    """Return the Python module that defines a kernel, without the digest of this machine's Triton."""
    text = Path(kernel.fn.fn.__code__.co_filename).read_text(encoding="utf-8")
    return re.sub(r"('backend_hash': )'\w*'", r"\1''", text)


def kernel_digest(kernel: Any) -> str:
    """Return a digest of what a kernel computes: no name, and no fact of a GPU or of this machine."""
    source = source_of(kernel)
    begin = re.search(r"^def (\w+)\(", source, re.MULTILINE)
    assert begin is not None  # the text of a function
    text = re.sub(rf"\b{begin[1]}\b", "kernel", source[begin.start() :])
    return digest_of([text, kernel.triton_meta["signature"], kernel.size_hints])


def ptx_target(ptx: str) -> str:
    found = re.search(r"^\.target (sm_\d+a?)\b", ptx, re.MULTILINE)
    return found[1] if found else ""


def compiled_for(kernel: Any, config: Any, capability: int) -> Any:
    properties = kernel.device_props._replace(cc=capability, major=capability // 10)
    with patch.object(kernel, "device_props", properties):
        result = kernel._precompile_config(config)
    binary = result.kernel
    # the binary is not loaded, since there may be no driver
    binary._init_handles = answer_with(None)
    binary.n_regs = binary.n_spills = binary.function = 0
    binary.module = None  # a number would be unloaded from a GPU at the end
    binary._run = answer_with(None)
    return result.make_launcher()


def triton_versions(capabilities: Sequence[int]) -> dict[str, str]:
    """Return the versions of Triton and of the assemblers in Triton's distribution.

    Raises:
        BackendError: if Triton is not installed.
    """
    files = triton_files()
    import triton
    from triton import knobs

    names = {"TRITON_PTXAS_BLACKWELL_PATH" if each >= BLACKWELL else "TRITON_PTXAS_PATH" for each in capabilities}
    tools = [knobs.NvidiaTool.from_path(files[name]) for name in sorted(names)]
    return {"triton": triton.__version__, "ptxas": ", ".join(tool.version if tool else "none" for tool in tools)}


def triton_files() -> dict[str, str]:
    """Return the variables that name the assemblers and the functions of Triton's distribution, with their paths.

    Without the variables, torch takes the files of its own build for CUDA or of an installed CUDA, where there are any.

    Raises:
        BackendError: if Triton is not installed.
    """
    try:
        import triton
    except ImportError as error:
        raise BackendError(
            "the backend `cuda` compiles kernels with Triton, which cannot be imported",
            found=str(error),
            hint=extra_hint("cuda"),
        ) from error
    folder = Path(triton.__file__).parent / "backends" / "nvidia"
    return {
        "TRITON_PTXAS_PATH": str(folder / "bin" / "ptxas"),
        "TRITON_PTXAS_BLACKWELL_PATH": str(folder / "bin" / "ptxas-blackwell"),
        "TRITON_LIBDEVICE_PATH": str(folder / "lib" / "libdevice.10.bc"),
    }
