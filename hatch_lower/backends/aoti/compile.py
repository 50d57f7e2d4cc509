"""Compile half of the `aoti` backend: edge programs in, a small shared library for each out.

Libraries hold no weights, and compilation needs no weights: constants are bound when a program is loaded. So new
weights compile nothing, and methods, recipes and clones share one copy of the weights in memory, except convolution
weights that loading packs.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch
from torch.export import ExportedProgram

from hatch_lower.backends.aoti.configuration import (
    TIMERS,
    Options,
    inductor_isolated,
    inductor_settings,
    options_from_specs,
    parse_options,
)
from hatch_lower.backends.aoti.convolutions import may_copy
from hatch_lower.backends.aoti.library import LibraryPool
from hatch_lower.backends.aoti.openmp import OPENMP_FUNCTIONS, foreign_openmp, is_openmp, missing_openmp
from hatch_lower.backends.aoti.partitioner import AotiPartitioner
from hatch_lower.backends.aoti.prepare import ORIGIN, AotiCopy
from hatch_lower.backends.aoti.record import Generated, generate
from hatch_lower.backends.aoti.timers import with_timers
from hatch_lower.backends.aoti.toolchain import Compiler, find_compiler
from hatch_lower.backends.aoti.versions import TABLE, Symbols, read_symbols, torch_requirement
from hatch_lower.backends.instructions import instruction_handles
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult, Target
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.format.codec import encode

VERSION = "21"


class AotiBackend(BackendDetails):
    """Lowers a partition with AOTInductor; its delegate is `hatch_lower.backends.aoti.run:AotiDelegate`."""

    weight_free: ClassVar[bool] = True

    @classmethod
    def copies(cls, constant: torch.Tensor) -> bool:
        return may_copy(constant)

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        (result,) = compile_partitions([edge_program], options_from_specs(compile_specs))
        return result

    @classmethod
    def preprocess_many(
        cls, edge_programs: Sequence[ExportedProgram], compile_specs: Sequence[list[CompileSpec]]
    ) -> list[PreprocessResult]:
        return lower_groups(edge_programs, compile_specs)

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        return AotiPartitioner(parse_options(options))

    @classmethod
    def requirements(cls, options: Mapping[str, object]) -> Sequence[str]:
        return (torch_requirement(torch.__version__, None),)

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        isa = options_from_specs(compile_specs).isa
        settings, versions = digest_of(inductor_settings(isa)), sha256_bytes(TABLE.read_bytes())
        return {"aoti": VERSION, "settings": settings, "versions": versions, **find_compiler(isa).versions()}

    @classmethod
    def tools(cls, options: Mapping[str, object]) -> Sequence[str]:
        # the compilers that `find_compiler` looks for, and the assembler and linker that they run
        named = os.environ.get("CXX")
        return [*([named] if named else ["g++", "clang++"]), "as", "ld"]


def lower_groups(
    programs: Sequence[ExportedProgram], compile_specs: Sequence[list[CompileSpec]]
) -> list[PreprocessResult]:
    # inductor's settings hold for a single instruction set at a time
    places: dict[Options, list[int]] = {}
    for place, specs in enumerate(compile_specs):
        places.setdefault(options_from_specs(specs), []).append(place)
    results_by_place: dict[int, PreprocessResult] = {}
    for options, group in places.items():
        results = compile_partitions([programs[place] for place in group], options)
        results_by_place |= zip(group, results, strict=True)
    return [results_by_place[place] for place in range(len(programs))]


def compile_partitions(programs: Sequence[ExportedProgram], options: Options) -> list[PreprocessResult]:
    with compiling(options) as (compiler, folder), LibraryPool(compiler, folder) as pool:
        # inductor lowers a program while the compiler works on earlier ones
        lowered = generate_all(programs, options)
        waiting = [(copied, generated, pool.add(generated)) for copied, generated in lowered]
        return [make_result(copied, generated, wait(), options) for copied, generated, wait in waiting]


@contextmanager
def compiling(options: Options) -> Iterator[tuple[Compiler, Path]]:
    """Give the compiler and an empty folder, while inductor's settings are pinned."""
    compiler = find_compiler(options.isa)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-aoti-") as name:
        folder = Path(name)
        with inductor_isolated(options.isa, compiler.program, folder):
            yield compiler, folder


def generate_all(programs: Sequence[ExportedProgram], options: Options) -> Iterator[tuple[AotiCopy, Generated]]:
    for program in programs:
        copied = AotiCopy(program, multiplies=options.isa.multiplies, prepacks=options.prepacks)
        generated = generate(copied)
        yield copied, with_timers(generated) if options.timers else generated


def make_result(copied: AotiCopy, generated: Generated, library: bytes, options: Options) -> PreprocessResult:
    symbols = read_symbols(library)
    openmp = check_openmp(symbols)
    packed = {name: encode(places) for name, places in copied.packed.items() if name in generated.bound}
    return PreprocessResult(
        processed_bytes=library,
        debug_handle_map=debug_handles(copied, generated),
        suffix="so",
        requirements=(torch_requirement(torch.__version__, symbols),),
        target=Target(platform.system(), platform.machine(), options.isa.name),
        info={
            "constants": copied.constants,
            "bound": [place for place in range(copied.constants) if f"c{place}" in generated.bound],
            **({"packed": packed} if packed else {}),
            "openmp": openmp,
            **({"multiplies": True} if copied.multiplies else {}),
            **({TIMERS: True} if options.timers else {}),
            **copied.call_facts(),
        },
    )


def check_openmp(symbols: Symbols) -> list[str]:
    """Return the names of the OpenMP libraries that a shared library is linked with."""
    openmp = [name for name in symbols.libraries if is_openmp(name)]
    called = sorted(name for name in symbols.undefined if name.startswith(OPENMP_FUNCTIONS))
    foreign = foreign_openmp(openmp) or missing_openmp(called)
    if foreign:
        raise BackendError(
            "the C++ compiler makes code for another OpenMP library than torch's, and a process must not have two",
            found=foreign,
            hint="set CXX to a compiler whose OpenMP library is torch's: for libgomp, `g++`",
        )
    return openmp


def debug_handles(copied: AotiCopy, generated: Generated) -> dict[int | str, tuple[int, ...]]:
    # `no kernel` holds the operations for which inductor generates no kernel
    numbers = {node: node.meta["custom"][ORIGIN] for node in copied.graph.nodes if "custom" in node.meta}
    return instruction_handles(numbers, copied.handles, generated.origins, "no kernel")
