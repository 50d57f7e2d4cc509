"""Everything that shapes the generated code: instruction sets, options, and inductor's settings.

The settings are pinned, because inductor's defaults follow the build machine (its instruction set, its number of
threads, its cache) and put weights into the code.
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hatch_lower.errors import BackendError, nearest
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.options import GivenOptions
from hatch_lower.runtime.torch_private import inductor


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set level that code can be compiled for."""

    # name in the option `isa`, the manifest and the check at load
    name: str
    # `platform.machine()` of such machines
    machine: str
    # the compiler's name for the level
    march: str
    # inductor's class of vector registers for the level, or empty for scalar loops
    vectors: str
    # whether every processor of the level sums products of bytes without saturation; torch's kernels for other levels
    # do not
    multiplies: bool = False

    @property
    def has_onednn(self) -> bool:
        """Whether torch computes float32 with oneDNN on these processors: on aarch64, other libraries compute."""
        return self.machine == "x86_64"

    @property
    def has_fast_gelu(self) -> bool:
        """Whether oneDNN computes `gelu` on these processors faster than inductor's loop."""
        return self.vectors == "VecAVX512"


ISAS: Mapping[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa("x86-64", "x86_64", "x86-64", ""),
        Isa("x86-64-v2", "x86_64", "x86-64-v2", ""),
        Isa("x86-64-v3", "x86_64", "x86-64-v3", "VecAVX2"),
        Isa("x86-64-v4", "x86_64", "x86-64-v4", "VecAVX512"),
        Isa("x86-64-v4-vnni", "x86_64", "x86-64-v4", "VecAVX512", multiplies=True),
        Isa("armv8-a", "aarch64", "armv8-a", "VecNEON"),
    )
}
TIMERS = "timers"
PREPACK = "prepack-weights"
DEFAULT_ISAS: Mapping[str, str] = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}


@dataclass(frozen=True, slots=True)
class AotiOptions:
    # the instruction set level of the generated code
    isa: Isa
    # ATen overloads (`aten.sort.stable`) that are left to the program's own executor
    exclude: tuple[str, ...]
    # the code notes when its kernels begin, for `hatch-lower profile`
    timers: bool
    # loading copies weights of convolutions, in the layout that oneDNN computes with
    prepacks: bool

    def to_specs(self) -> list[CompileSpec]:
        # The settings that shape the result of a partition. The choice of nodes is not among them.
        flags = {TIMERS: self.timers, PREPACK: self.prepacks}
        return [CompileSpec("isa", self.isa.name.encode()), *(CompileSpec(key, b"") for key in flags if flags[key])]


def parse_options(options: Mapping[str, Any]) -> AotiOptions:
    given = GivenOptions("aoti", options)
    exclude = given.excluded("aten.sort.stable")
    machine = platform.machine()
    isa = given.read("isa", DEFAULT_ISAS.get(machine), lambda value: isinstance(value, str), "a string")
    if isa is None or platform.system() != "Linux":
        raise BackendError(
            "the backend `aoti` compiles on Linux on x86-64 and aarch64 only",
            found=f"{platform.system()} on {machine}",
            hint="leave `aoti` out of the recipe's backends on this machine",
        )
    if isa not in ISAS:
        given.problems.append(f"`isa` is {isa!r}: {nearest(isa, ISAS)}")
    elif ISAS[isa].machine != machine:
        here = sorted(level.name for level in ISAS.values() if level.machine == machine)
        given.problems.append(f"`isa` is {isa!r}, which this {machine} machine cannot compile for: choose from {here}")
    elif ISAS[isa].multiplies and not inductor.multiplies_unsigned_bytes():
        given.problems.append(f"`isa` is {isa!r}, and torch {torch.__version__} multiplies no unsigned bytes")
    has_onednn = isa in ISAS and ISAS[isa].has_onednn
    timers, prepacks = given.flag(TIMERS, False), given.flag(PREPACK, has_onednn)
    given.check()
    return AotiOptions(ISAS[isa], exclude, timers, prepacks)


def options_from_specs(specs: Sequence[CompileSpec]) -> AotiOptions:
    given = {spec.key: spec.key in (TIMERS, PREPACK) or spec.value.decode() for spec in specs}
    return parse_options({PREPACK: False, **given})


def inductor_settings(isa: Isa) -> dict[str, object]:
    # without any of these settings, the code is wrong, bound to this machine, or slow
    return {
        # No weight in the code: they are bound at load, so no constant may be stored, inlined as a literal or folded.
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.use_runtime_constant_folding": False,
        "always_keep_tensor_constants": True,
        "joint_graph_constant_folding": False,
        "freezing": False,
        # The code decides the number of threads at run time: a fixed number overruns the arrays of parallel reductions.
        "cpp.dynamic_threads": True,
        "cpp.threads": 4,
        # The instruction set is given, not probed.
        "cpp.vec_isa_ok": True,
        "cpp.simdlen": None,
        "cpp.march": isa.march,
        # Eager's rounding between operations on float16 and bfloat16, which kernels would otherwise leave out.
        "emulate_precision_casts": True,
        # Keep facts of this machine out of the bytes, and results out of inductor's own caches.
        "aot_inductor.model_name_for_generated_files": "partition",
        "aot_inductor.output_path": "partition",
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.debug_compile": False,
        "aot_inductor.debug_symbols": False,
        "aot_inductor.enable_frame_pointer": False,
        "aot_inductor.compile_wrapper_opt_level": "O1",
        "aot_inductor.precompile_headers": False,
        "cpp_cache_precompile_headers": False,
        "cpp.enable_kernel_profile": False,
        "compile_threads": 1,
        "force_disable_caches": True,
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "max_autotune": False,
        "max_autotune_gemm": False,
        "max_autotune_pointwise": False,
        # Which nodes each kernel computes, for the debug map.
        "trace.provenance_tracking_level": 1,
    }


@contextmanager
def inductor_isolated(isa: Isa, compiler: str, folder: Path) -> Iterator[None]:
    """Pin inductor's settings, instruction set and compiler, and keep its files in `folder`; restore all at the end."""
    with settings_isolated(inductor_settings(isa), isa, compiler, folder, {}):
        yield


@contextmanager
def settings_isolated(
    settings: Mapping[str, object], isa: Isa, compiler: str, folder: Path, more: Mapping[str, str | None]
) -> Iterator[None]:
    """Pin the given settings as `inductor_isolated` does; `more` are variables of the environment."""
    # A user's setting of the capability would be looked up among the given vectors and warned about.
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "ATEN_CPU_CAPABILITY": None, **more}
    saved = {name: os.environ.get(name) for name in environment}
    try:
        set_environment(environment)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with inductor.pinned({**settings, "cpp.cxx": (compiler,)}, isa.vectors):
                yield
    finally:
        set_environment(saved)


def set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
