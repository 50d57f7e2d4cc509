"""Compile half of the `aoti` backend: the partitioner takes all nodes that inductor compiles, and each partition
becomes a small shared library.

Libraries hold no weights, and compilation needs no weights: constants are bound when a program is loaded. So new
weights compile nothing, and methods, recipes and clones share one copy of the weights in memory, except convolution
weights that loading packs.
"""

from __future__ import annotations

import operator
import os
import platform
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from hatch_lower.backends.aoti.configuration import (
    TIMERS,
    AotiOptions,
    inductor_isolated,
    inductor_settings,
    options_from_specs,
    parse_options,
)
from hatch_lower.backends.aoti.layers import may_copy
from hatch_lower.backends.aoti.library import Compiler, LibraryPool, choose_compiler
from hatch_lower.backends.aoti.openmp import OPENMP_FUNCTIONS, foreign_openmp, is_openmp, missing_openmp
from hatch_lower.backends.aoti.prepare import ORIGIN, AotiCopy
from hatch_lower.backends.aoti.record import GeneratedCode, generate, with_kernel_timers
from hatch_lower.backends.aoti.sizes import find_size_sources, is_resolvable
from hatch_lower.backends.aoti.support import KEPT_OPERATORS, is_symbolic, why_not_compiled
from hatch_lower.backends.aoti.versions import TABLE, LibrarySymbols, read_symbols, torch_requirement
from hatch_lower.backends.engine_partitioner import EnginePartitioner
from hatch_lower.backends.instructions import instruction_handles
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult, Target
from hatch_lower.exir.backend.canonical_partitioners.graph_partitioner import KeptOperators
from hatch_lower.exir.backend.canonical_partitioners.grouping import group_nodes
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.graph.nodes import is_view, producer_of
from hatch_lower.format.codec import encode

BACKEND_ID = "aoti"
ONLY_VIEWS = "it computes nothing, and its neighbours are not compiled"
ONLY_SIZES = "it computes a size that is needed outside the partition"


class AotiRefusals:
    # an operation is looked up once
    def __init__(
        self, exclude: frozenset[str], why_not: Callable[[Node, frozenset[str]], str] = why_not_compiled
    ) -> None:
        self.known: dict[Node, str] = {}
        self._exclude = exclude
        self._why_not = why_not

    def __call__(self, node: Node) -> str:
        if node not in self.known:
            is_part = node.target is operator.getitem and not is_symbolic(node)
            self.known[node] = self(producer_of(node)) if is_part else self._why_not(node, self._exclude)
        return self.known[node]


class InductorPartitioner(EnginePartitioner[AotiRefusals]):
    takes_state: ClassVar[bool] = True

    def graphs(self, program: ExportedProgram) -> Iterable[Graph]:
        # branches and bodies of control flow are left to the program
        return [program.graph]

    def groups(self, graph: Graph, why_not: AotiRefusals) -> Iterable[Iterable[Node]]:
        # native code takes tensors only: a group must find each symbolic size that it needs in the shapes of its inputs
        groups = group_operations(graph, why_not)
        while (unresolved := find_unresolved(groups)) is not None:
            why_not.known[unresolved] = "it takes a symbolic size that no tensor input of its partition has"
            groups = group_operations(graph, why_not)
        return groups

    def computes(self, node: Node) -> bool:
        return not is_view(node) and not is_symbolic(node)

    def idle_refusal(self, node: Node) -> str:
        return ONLY_SIZES if is_symbolic(node) else ONLY_VIEWS

    def ops_to_not_decompose(self, ep: ExportedProgram) -> KeptOperators:
        return list(KEPT_OPERATORS), None


class AotiPartitioner(InductorPartitioner):
    def __init__(self, options: AotiOptions) -> None:
        super().__init__(BACKEND_ID, options.to_specs(), {"isa": options.isa.name, "exclude": options.exclude})
        self.options = options

    def reasons(self, program: ExportedProgram) -> AotiRefusals:
        return AotiRefusals(frozenset(self.options.exclude))


def group_operations(graph: Graph, reasons: AotiRefusals) -> list[list[Node]]:
    grouping = group_nodes(graph, lambda node: not reasons(node))
    numbers = {node: number for number, nodes in enumerate(grouping.partitions) for node in nodes}
    taken = {node: number for node, number in numbers.items() if not is_symbolic(node)}
    useful = {number for node, number in taken.items() if not is_view(node)}
    taken = {node: number for node, number in taken.items() if number in useful}
    sizes = [node for node in numbers if is_symbolic(node)]
    # A size that a group both makes possible and needs must be computed inside the group.
    for node in reversed(sizes):
        if any(taken.get(user) == numbers[node] for user in node.users):
            taken[node] = numbers[node]
    # Other sizes that are needed elsewhere stay outside: each group reads them off its own tensors.
    for node in sizes:
        number = taken.get(node)
        if number is None or all(taken.get(user) == number for user in node.users):
            continue
        if all(taken.get(source) != number for source in node.all_input_nodes):
            del taken[node]
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in taken:
            groups.setdefault(taken[node], []).append(node)
    return list(groups.values())


def find_unresolved(groups: Iterable[Collection[Node]]) -> Node | None:
    """Return an operation that needs a symbolic size which none of its group's tensor inputs shows."""
    for nodes in groups:
        members = set(nodes)
        inputs = {source: None for node in nodes for source in node.all_input_nodes if source not in members}
        shapes = [source.meta["val"].shape for source in inputs if isinstance(source.meta["val"], torch.Tensor)]
        symbols = (torch.SymInt, torch.SymBool, torch.SymFloat)
        needed = {source for source in inputs if isinstance(source.meta["val"], symbols)}
        if not needed:
            continue
        sources = find_size_sources(shapes)
        bad = {source for source in needed if not is_resolvable(source.meta["val"].node.expr, sources)}
        for node in nodes:
            if bad.intersection(node.all_input_nodes):
                return node
    return None


VERSION = "26"


class InductorBackend:
    """The common compile half of the backends `aoti` and `cuda`; partitions of equal specs are compiled together."""

    weight_free: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def compile_group(cls, programs: Sequence[ExportedProgram], specs: list[CompileSpec]) -> list[PreprocessResult]: ...

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        (result,) = cls.compile_group([edge_program], compile_specs)
        return result

    @classmethod
    def preprocess_many(
        cls, edge_programs: Sequence[ExportedProgram], compile_specs: Sequence[list[CompileSpec]]
    ) -> list[PreprocessResult]:
        # inductor's settings hold for a single group of equal specs at a time
        places: dict[tuple[CompileSpec, ...], list[int]] = {}
        for place, specs in enumerate(compile_specs):
            places.setdefault(tuple(specs), []).append(place)
        results_by_place: dict[int, PreprocessResult] = {}
        for specs_of_group, group in places.items():
            results = cls.compile_group([edge_programs[place] for place in group], list(specs_of_group))
            results_by_place |= zip(group, results, strict=True)
        return [results_by_place[place] for place in range(len(edge_programs))]

    @classmethod
    def requirements(cls, options: Mapping[str, object]) -> Sequence[str]:
        return (torch_requirement(torch.__version__, None),)

    @classmethod
    def tools(cls, options: Mapping[str, object]) -> Sequence[str]:
        # the compilers that `choose_compiler` looks for, and the assembler and linker that they run
        named = os.environ.get("CXX")
        return [*([named] if named else ["g++", "clang++"]), "as", "ld"]


class AotiBackend(InductorBackend, BackendDetails):
    """Lowers a partition with AOTInductor; its delegate is `hatch_lower.backends.aoti.run:AotiDelegate`."""

    @classmethod
    def copies(cls, constant: torch.Tensor) -> bool:
        return may_copy(constant)

    @classmethod
    def compile_group(cls, programs: Sequence[ExportedProgram], specs: list[CompileSpec]) -> list[PreprocessResult]:
        return compile_partitions(programs, options_from_specs(specs))

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        return AotiPartitioner(parse_options(options))

    @classmethod
    def fingerprint(cls, compile_specs: Sequence[CompileSpec]) -> Mapping[str, str]:
        isa = options_from_specs(compile_specs).isa
        settings, versions = digest_of(inductor_settings(isa)), sha256_bytes(TABLE.read_bytes())
        return {"aoti": VERSION, "settings": settings, "versions": versions, **choose_compiler(isa).versions()}


def compile_partitions(programs: Sequence[ExportedProgram], options: AotiOptions) -> list[PreprocessResult]:
    with compiling(options) as (compiler, folder), LibraryPool(compiler, folder) as pool:
        # inductor lowers a program while the compiler works on earlier ones
        lowered = generate_all(programs, options)
        waiting = [(copied, generated, pool.add(generated)) for copied, generated in lowered]
        return [make_result(copied, generated, wait(), options) for copied, generated, wait in waiting]


@contextmanager
def compiling(options: AotiOptions) -> Iterator[tuple[Compiler, Path]]:
    """Give the compiler and an empty folder, while inductor's settings are pinned."""
    compiler = choose_compiler(options.isa)
    with tempfile.TemporaryDirectory(prefix="hatch-lower-aoti-") as name:
        folder = Path(name)
        with inductor_isolated(options.isa, compiler.program, folder):
            yield compiler, folder


def generate_all(programs: Sequence[ExportedProgram], options: AotiOptions) -> Iterator[tuple[AotiCopy, GeneratedCode]]:
    for program in programs:
        copied = AotiCopy(
            program,
            multiplies=options.isa.multiplies,
            prepacks=options.prepacks,
            onednn=options.isa.has_onednn,
            gelu=options.isa.has_fast_gelu,
        )
        generated = generate(copied)
        yield copied, with_kernel_timers(generated) if options.timers else generated


def make_result(copied: AotiCopy, generated: GeneratedCode, library: bytes, options: AotiOptions) -> PreprocessResult:
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


def check_openmp(symbols: LibrarySymbols) -> list[str]:
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


def debug_handles(copied: AotiCopy, generated: GeneratedCode) -> dict[int | str, tuple[int, ...]]:
    # `no kernel` holds the operations for which inductor generates no kernel
    numbers = {node: node.meta["custom"][ORIGIN] for node in copied.graph.nodes if "custom" in node.meta}
    return instruction_handles(numbers, copied.handles, generated.origins, "no kernel")
