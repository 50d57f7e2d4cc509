"""The options of a recipe for the `cuda` backend, the architectures, and inductor's settings."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hatch_lower.backends.aoti.configuration import ISAS, Isa, inductor_settings
from hatch_lower.backends.cuda.choices import Chosen, choose_configs, is_table, table_of
from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.backend.options import GivenOptions, is_list_of_strings, json_specs, spec_values
from hatch_lower.runtime.torch_private.gpu_stand_ins import Gpu

BACKEND_ID = "cuda"
GIB = 1 << 30
# The GPU of each architecture whose facts shape the code, from NVIDIA's data sheets and the CUDA C++ Programming Guide
# ("Technical Specifications per Compute Capability"): multiprocessors, threads of a multiprocessor, bytes of shared
# memory of a block, bytes of memory.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "sm_80": Gpu("NVIDIA A100-SXM4-80GB", 80, 108, 2048, 166912, 80 * GIB),
        "sm_86": Gpu("NVIDIA A10", 86, 72, 1536, 101376, 24 * GIB),
        "sm_89": Gpu("NVIDIA L4", 89, 58, 1536, 101376, 24 * GIB),
        "sm_90": Gpu("NVIDIA H100 80GB HBM3", 90, 132, 2048, 232448, 80 * GIB),
        "sm_100": Gpu("NVIDIA B200", 100, 148, 2048, 232448, 180 * GIB),
        "sm_120": Gpu("NVIDIA RTX PRO 6000", 120, 188, 1536, 101376, 96 * GIB),
    }
)
DEFAULT = ("sm_80", "sm_90")
KERNELS, MEASURE = "kernels", "measure-kernels"
EXACT_FROM = 90
# the instruction set of the code that calls the kernels, by `platform.machine()`
HOSTS: Mapping[str, str] = MappingProxyType({"x86_64": "x86-64", "aarch64": "armv8-a"})


@dataclass(frozen=True, slots=True)
class CudaOptions:
    # the architectures that the library has code for, the oldest first; later GPUs compile the oldest's PTX at load
    arch: tuple[str, ...] = DEFAULT
    # ATen overloads (`aten.sort.stable`) that are left to the program's own executor
    exclude: tuple[str, ...] = ()
    # configurations of kernels that a machine with a GPU has measured
    kernels: Chosen = ()
    # the GPU of this machine measures the configurations of each kernel, for `hatch-lower tune-kernels`
    measures: bool = False

    @property
    def choices(self) -> dict[str, dict[str, int]]:
        return {digest: dict(config) for digest, config in self.kernels}

    @property
    def gpu(self) -> Gpu:
        """The GPU whose facts shape the code for all architectures: the oldest."""
        return GPUS[self.arch[0]]

    @property
    def targets(self) -> tuple[str, ...]:
        """The architectures as PTX names them: from sm_90 on, Triton's code runs on its own architecture only."""
        return tuple(f"{name}a" if GPUS[name].capability >= EXACT_FROM else name for name in self.arch)

    @property
    def capabilities(self) -> tuple[int, ...]:
        return tuple(GPUS[name].capability for name in self.arch)

    def to_specs(self) -> list[CompileSpec]:
        # The settings that shape the result of a partition. The choice of nodes is not among them.
        chosen = {KERNELS: table_of(self.kernels, self.arch[0])} if self.kernels else {}
        return json_specs({"arch": list(self.arch), **chosen, **({MEASURE: True} if self.measures else {})})


def parse_options(options: Mapping[str, Any]) -> CudaOptions:
    given = GivenOptions(BACKEND_ID, options)
    exclude = given.excluded("aten.sort.stable")
    arch = given.read(
        "arch", DEFAULT, lambda value: value and is_list_of_strings(value), f"a list of strings such as `{DEFAULT[0]}`"
    )
    for name in arch:
        if name not in GPUS:
            given.problems.append(f"`arch` holds {name!r}: {nearest(name, GPUS)}")
    table = read_choices(given)
    measures = given.flag(MEASURE, False)
    if platform.system() != "Linux" or platform.machine() not in HOSTS:
        raise BackendError(
            "the backend `cuda` compiles on Linux on x86-64 and aarch64 only",
            found=f"{platform.system()} on {platform.machine()}",
            hint="leave `cuda` out of the recipe's backends on this machine",
        )
    given.check()
    ordered = tuple(sorted(set(arch), key=lambda name: GPUS[name].capability))
    return CudaOptions(ordered, exclude, choose_configs(table, ordered), measures)


def read_choices(given: GivenOptions) -> Mapping[str, Any]:
    table = given.read(KERNELS, dict[str, Any](), lambda value: True, "")
    if not table or is_table(table):
        return table
    found = "has other contents" if isinstance(table, Mapping) else f"is {table!r}"
    given.problems.append(
        f'`{KERNELS}` must be a file of `hatch-lower tune-kernels`, `{{ file = "x.json" }}`: it {found}'
    )
    return {}


def options_from_specs(specs: Sequence[CompileSpec]) -> CudaOptions:
    return parse_options(spec_values(BACKEND_ID, specs))


def host_isa() -> Isa:
    return ISAS[HOSTS[platform.machine()]]


def cuda_settings(isa: Isa) -> dict[str, object]:
    """Return inductor's settings, pinned for the reasons in `aoti/configuration.py`."""
    return {
        **inductor_settings(isa),
        # Kernels are compiled while the code is generated, in their first configuration, and never run.
        "triton.autotune_at_compile_time": True,
        "triton.autotune_with_sample_inputs": False,
        "triton.store_cubin": True,
        "use_static_triton_launcher": False,
        "aot_inductor.embed_kernel_binary": True,
        "aot_inductor.emit_multi_arch_kernel": False,
        # Division of float32 rounds as in eager, and numbers below 1e-38 are kept, as in eager.
        "eager_numerics.division_rounding": True,
        "eager_numerics.disable_ftz": True,
        # Padded operands would be chosen by timing products on the GPU.
        "shape_padding": False,
        "coordinate_descent_tuning": False,
        "triton.cudagraphs": False,
    }
