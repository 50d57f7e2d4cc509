"""Compile half of the `cuda` backend: each partition becomes a shared library with Triton kernels for several GPUs.

No GPU is needed, and a GPU of the build machine is never asked: equal partitions give equal bytes everywhere. As with
`aoti`, libraries hold no weights.
"""

from __future__ import annotations

import os
import platform
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.export import ExportedProgram

from hatch_lower.backends.aoti.compile import AotiRefusals, InductorBackend, InductorPartitioner, debug_handles
from hatch_lower.backends.aoti.configuration import settings_isolated
from hatch_lower.backends.aoti.library import LibraryPool
from hatch_lower.backends.aoti.record import GeneratedCode, generate
from hatch_lower.backends.aoti.versions import LibrarySymbols, read_symbols, torch_requirement
from hatch_lower.backends.cuda.images import with_images
from hatch_lower.backends.cuda.interpret import interpreting
from hatch_lower.backends.cuda.options import (
    BACKEND_ID,
    GPUS,
    KERNELS,
    MEASURE,
    CudaOptions,
    cuda_settings,
    host_isa,
    options_from_specs,
    parse_options,
)
from hatch_lower.backends.cuda.prepare import CudaCopy
from hatch_lower.backends.cuda.support import why_not_on_gpu
from hatch_lower.backends.cuda.toolchain import CudaCompiler, choose_compiler, headers_digest
from hatch_lower.canonical import digest_of
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import BackendDetails, BackendNote, PreprocessResult, Target
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.torch_private.cuda import capability_of, current_gpu, name_of
from hatch_lower.runtime.torch_private.gpu_stand_ins import TritonKernel, gpu_stand_ins, triton_files, triton_versions
from hatch_lower.runtime.torch_private.kernel_times import measure_on_gpu, time_kernels

VERSION = "4"

PTXAS_VARIABLES = ("DISABLE_PTXAS_OPT", "PTXAS_OPTIONS")


class CudaPartitioner(InductorPartitioner):
    def __init__(self, options: CudaOptions) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), {"arch": options.arch, "exclude": options.exclude})
        self.options = options

    def reasons(self, program: ExportedProgram) -> AotiRefusals:
        return AotiRefusals(frozenset(self.options.exclude), why_not_on_gpu)


class CudaBackend(InductorBackend, BackendDetails):
    """Lowers a partition with AOTInductor for NVIDIA GPUs; its delegate is `hatch_lower.backends.cuda.run`'s."""

    @classmethod
    def copies(cls, constant: torch.Tensor) -> bool:
        return True  # a constant that is unaligned in its storage is copied for the kernels

    @classmethod
    def compile_group(cls, programs: Sequence[ExportedProgram], specs: list[CompileSpec]) -> list[PreprocessResult]:
        return compile_partitions(programs, options_from_specs(specs))

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        return CudaPartitioner(parse_options(options))

    @classmethod
    def device(cls, options: Mapping[str, object]) -> str:
        return "cuda"

    @classmethod
    def stand_in(cls) -> AbstractContextManager[type[Delegate]]:
        return interpreting()

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        options, compiler = options_from_specs(compile_specs), choose_compiler()
        facts = [repr(GPUS[name]) for name in options.arch]
        return {
            "cuda": VERSION,
            "settings": digest_of(cuda_settings(host_isa())),
            "gpus": digest_of(facts),
            "headers": headers_digest(compiler.headers),
            **triton_versions(options.capabilities),
            **compiler.versions(),
        }


def compile_partitions(programs: Sequence[ExportedProgram], options: CudaOptions) -> list[PreprocessResult]:
    with compiling() as (compiler, folder), LibraryPool(compiler, folder, BACKEND_ID) as pool:
        # inductor lowers a program while the compiler works on earlier ones
        lowered = generate_all(programs, options)
        waiting = [(partition, pool.add(partition.generated)) for partition in lowered]
        results = [make_result(partition, wait(), library_target(options, compiler)) for partition, wait in waiting]
    for partition, _ in waiting:
        warn_of_unknown(partition.kernels)
    return results


@dataclass(frozen=True, slots=True)
class LoweredPartition:
    copied: CudaCopy
    generated: GeneratedCode
    kernels: Sequence[TritonKernel]
    times: Mapping[str, object] | None  # the result of `measured`, if the options ask for it


@contextmanager
def compiling() -> Iterator[tuple[CudaCompiler, Path]]:
    """Give the compiler and an empty folder, while inductor's settings are pinned."""
    compiler = choose_compiler()
    with tempfile.TemporaryDirectory(prefix="hatch-lower-cuda-") as name:
        folder = Path(name)
        compiler.write_stubs(folder)
        # A user's variables of Triton would change the machine code, which no key says.
        others = [name for name in os.environ if name.startswith("TRITON_") or name in PTXAS_VARIABLES]
        environment = {
            **dict.fromkeys(others),
            **triton_files(),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            # Lines of source would put the path of inductor's temporary file into the machine code.
            "TRITON_DISABLE_LINE_INFO": "1",
        }
        with settings_isolated(cuda_settings(compiler.isa), compiler.isa, compiler.program, folder, environment):
            yield compiler, folder


def generate_all(programs: Sequence[ExportedProgram], options: CudaOptions) -> Iterator[LoweredPartition]:
    for program in programs:
        copied = CudaCopy(program)
        kernels: list[TritonKernel] = []
        tuning: list[str] = []
        with gpu_stand_ins(options.gpu, options.capabilities, kernels, options.choices, tuning):
            generated = generate(copied)
        refuse_unlike(kernels, options)
        refuse_merged(copied, generated)
        times = measured(tuning) if options.measures else None
        yield LoweredPartition(copied, with_images(generated, kernels), kernels, times)


def measured(tuning: Sequence[str]) -> dict[str, object]:
    """Measure kernels on the GPU of this machine, and return the times and the machine."""
    gpu = current_gpu()
    major, minor = capability_of(gpu)
    times = [each for code in tuning for each in time_kernels(code, 10 * major + minor, measure_on_gpu)]
    machine = f"{name_of(gpu)}, torch {torch.__version__}, triton {triton_versions(())['triton']}"
    return {"arch": f"sm_{major}{minor}", "machine": machine, "times": times}


def warn_of_unknown(kernels: Sequence[TritonKernel]) -> None:
    if unknown := [kernel for kernel in kernels if kernel.is_unknown]:
        named = f"`{unknown[0].name}`" + (f" and {len(unknown) - 1} more" if unknown[1:] else "")
        warnings.warn(
            f"the table of the option `{KERNELS}` has a configuration that inductor does not suggest for {named}: the"
            " first suggestion is taken; measure again with `hatch-lower tune-kernels`",
            BackendNote,
            stacklevel=2,
        )


def refuse_unlike(kernels: Sequence[TritonKernel], options: CudaOptions) -> None:
    """Raise a `BackendError` if a kernel is for another architecture, or needs more memory, than the recipe's GPUs."""
    for kernel in kernels:
        if (found := tuple(kernel.targets.values())) != options.targets:
            raise BackendError(
                "Triton compiled a kernel for other architectures than the recipe's",
                where=kernel.name,
                found=f"{', '.join(found)} instead of {', '.join(options.targets)}",
                hint="install a version of triton that docs/versions.md names",
            )
    least = min(options.arch, key=lambda name: GPUS[name].shared)
    for kernel in kernels:
        if kernel.shared > GPUS[least].shared:
            raise BackendError(
                f"a kernel needs more shared memory than GPUs of {least} have",
                where=kernel.name,
                found=f"{kernel.shared} bytes of {GPUS[least].shared}",
                hint=f"give {least} a recipe of its own",
            )


def refuse_merged(copied: CudaCopy, generated: GeneratedCode) -> None:
    """Raise a `BackendError` if the code binds another constant than the graph names: the numbers would be wrong."""
    used = {node.target for node in copied.graph.find_nodes(op="get_attr") if node.users}
    if merged := sorted(used - generated.bound):
        raise BackendError(
            "inductor's code does not bind each constant of a partition",
            found=", ".join(f"`{name}`, {tuple(copied.attributes[name].shape)}" for name in merged),
            hint="report this as a fault of hatch-lower, with the versions of torch and triton",
        )


def library_target(options: CudaOptions, compiler: CudaCompiler) -> Target:
    oldest = options.targets[0]
    return Target(
        platform.system(),
        platform.machine(),
        compiler.isa.name,
        arch=options.targets,
        ptx="" if oldest.endswith("a") else oldest.replace("sm_", "compute_"),
        cuda=compiler.headers.major,
    )


def make_result(partition: LoweredPartition, library: bytes, target: Target) -> PreprocessResult:
    copied, generated, times = partition.copied, partition.generated, partition.times
    return PreprocessResult(
        processed_bytes=library,
        debug_handle_map=debug_handles(copied, generated),
        suffix="so",
        requirements=(torch_requirement(torch.__version__, of_torch(read_symbols(library))),),
        target=target,
        info={
            "constants": copied.constants,
            "bound": [place for place in range(copied.constants) if f"c{place}" in generated.bound],
            **({} if times is None else {MEASURE: times}),
            **copied.call_facts(),
        },
    )


def of_torch(symbols: LibrarySymbols) -> LibrarySymbols:
    # the functions of CUDA's runtime and driver begin with `cu`, and libtorch's C functions never do
    return replace(symbols, imported={name for name in symbols.imported if not name.startswith("cu")})
