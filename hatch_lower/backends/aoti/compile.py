"""Compile half of the `aoti` backend: edge programs in, one small shared library for each out.

No weight goes into a library, and none is needed to make it: constants are bound when a program is loaded. So new
weights compile nothing, and methods, recipes and clones share one copy of the weights in memory, but for weights of
convolutions that loading lays out.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from hatch_lower.backends.aoti.library import FILES, KERNELS, LibraryPool, Source, Sources, compile_source
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
from hatch_lower.exir.backend.steps import FindSteps, Step
from hatch_lower.format.codec import encode

VERSION = "16"


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
    def preprocess_in_steps(
        cls, edge_programs: Sequence[ExportedProgram], compile_specs: Sequence[list[CompileSpec]], find_steps: FindSteps
    ) -> list[PreprocessResult]:
        return lower_groups(edge_programs, compile_specs, find_steps)

    @classmethod
    def step_of(cls, name: str, text: str, compile_specs: Sequence[CompileSpec]) -> Step:
        if name not in FILES:  # it becomes a path, and a word of the compiler's command
            raise BackendError(
                "a step of the backend `aoti` is no file of a partition",
                where=f"{name:.200}",
                hint=f"the files are {', '.join(FILES)}",
            )
        with compiling(options_from_specs(compile_specs)) as (compiler, _):
            return step_of(compiler, Source(name, text), compiler.versions())

    @classmethod
    def run_step(cls, step: Step, compile_specs: Sequence[CompileSpec]) -> bytes:
        with compiling(options_from_specs(compile_specs)) as (compiler, folder):
            return compile_source(compiler, Source(step.name, step.text), folder)

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
        # those that `find_compiler` looks for, and the assembler and linker that they run
        named = os.environ.get("CXX")
        return [*([named] if named else ["g++", "clang++"]), "as", "ld"]


def lower_groups(
    programs: Sequence[ExportedProgram], compile_specs: Sequence[list[CompileSpec]], find_steps: FindSteps | None = None
) -> list[PreprocessResult]:
    # settings of inductor hold for one instruction set at a time
    places: dict[Options, list[int]] = {}
    for place, specs in enumerate(compile_specs):
        places.setdefault(options_from_specs(specs), []).append(place)
    results_by_place: dict[int, PreprocessResult] = {}
    for options, group in places.items():
        results = compile_partitions([programs[place] for place in group], options, find_steps)
        results_by_place |= zip(group, results, strict=True)
    return [results_by_place[place] for place in range(len(programs))]


def compile_partitions(
    programs: Sequence[ExportedProgram], options: Options, find_steps: FindSteps | None = None
) -> list[PreprocessResult]:
    with compiling(options) as (compiler, folder):
        lowered: Iterable[tuple[AotiCopy, Generated]] = generate_all(programs, options)
        made: Mapping[Source, bytes] = {}
        if find_steps is not None:
            lowered = list(lowered)
            made = find_objects(compiler, [generated for _, generated in lowered], options, find_steps)
        with LibraryPool(compiler, folder, made) as pool:
            # inductor lowers one program while the compiler works on those before it
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


def find_objects(
    compiler: Compiler, written: Sequence[Generated], options: Options, find_steps: FindSteps
) -> dict[Source, bytes]:
    """Return the objects that other machines have compiled."""
    sources = Sources()
    files = list(dict.fromkeys(file for generated in written for file in sources.of(generated)))
    versions = compiler.versions()
    found = find_steps([step_of(compiler, file, versions) for file in files], options.to_specs())
    return {file: data for file, data in zip(files, found, strict=True) if data is not None}


def step_of(compiler: Compiler, source: Source, versions: Mapping[str, str]) -> Step:
    command = compiler.relocatable_command(source.name, "object", optimize=source.name == KERNELS)
    return Step(source.name, source.text, {**versions, "command": " ".join(command)})


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
    # `no kernel` holds operations of a partition that needs none
    numbers = {node: node.meta["custom"][ORIGIN] for node in copied.graph.nodes if "custom" in node.meta}
    return instruction_handles(numbers, copied.handles, generated.origins, "no kernel")
