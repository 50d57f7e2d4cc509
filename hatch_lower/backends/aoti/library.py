"""From generated C++ to shared libraries, with the compiler's commands in a pool.

Most of the C++ around a partition is the same for every partition: this shared part is compiled once, and starts
compiling before inductor has written anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from hatch_lower.backends.aoti.record import Generated
from hatch_lower.backends.aoti.toolchain import EXPORTED, EXPORTS, INTERFACE, Compiler
from hatch_lower.backends.aoti.versions import later_functions
from hatch_lower.canonical import digest_of
from hatch_lower.runtime.torch_private.inductor import interface_path

HEADER = "#include <torch/csrc/inductor/aoti_include/cpu.h>\n"
# This template's members take a third of the time. The shared object defines them, and the other objects refer to it.
TEMPLATE = "template class torch::aot_inductor::AOTInductorModelBase<torch::aot_inductor::AOTInductorModel>;\n"
# The place of the constants in a library that holds constants.
NO_CONSTANTS = r"""
__asm__(
    ".pushsection .rodata\n"
    ".globl _binary_constants_bin_start\n"
    ".globl _binary_constants_bin_end\n"
    "_binary_constants_bin_start:\n"
    "_binary_constants_bin_end:\n"
    ".byte 0\n"
    ".popsection\n");
"""


PRINT = re.compile(r"std::cerr\b[^;]*;")

WRAPPER, KERNELS = "wrapper.cpp", "kernels.cpp"


class Source(NamedTuple):
    """A file of C++. Its name selects the compiler's flags, and seeds the names that the compiler makes up."""

    name: str
    text: str


class Sources:
    """The source files of libraries: a shared file, and one or two files for each partition."""

    def __init__(self) -> None:
        self._interface = interface_path().read_text(encoding="utf-8").strip() + "\n"
        self._tail = NO_CONSTANTS + refusals(later_functions(self._interface))
        self.shared = Source(INTERFACE, HEADER + quiet(self._interface) + TEMPLATE + self._tail)

    def of(self, generated: Generated) -> list[Source]:
        """Return the files of a partition, the shared file first unless the partition does without."""
        before, found, after = generated.wrapper.partition(self._interface)
        if found:
            files = [self.shared, Source(WRAPPER, f"{before}\nextern {TEMPLATE}{after}")]
        else:
            files = [Source(WRAPPER, quiet(generated.wrapper) + self._tail)]
        return [*files, Source(KERNELS, generated.kernels)] if generated.kernels.strip() else files


def quiet(interface: str) -> str:
    """Return the interface's C++ without its prints: torch also prints the text of each error that it raises."""
    return PRINT.sub("", interface)


Object = tuple[str, Future[None]]  # a file and its compilation


class LibraryPool:
    """Compiles partitions as they arrive, while inductor's settings are pinned."""

    def __init__(self, compiler: Compiler, folder: Path) -> None:
        self._compiler = compiler
        self._folder = folder
        (folder / EXPORTS).write_text(EXPORTED)
        self._objects = ThreadPoolExecutor(os.cpu_count() or 1)
        self._links = ThreadPoolExecutor(1)  # waits for objects, so it must not hold one of the compilers' workers
        self._results: dict[str, Future[bytes]] = {}
        self._sources = Sources()
        self._shared = self._compile("", self._sources.shared)

    def __enter__(self) -> LibraryPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._objects, self._links):
            pool.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, generated: Generated) -> Callable[[], bytes]:
        """Start to compile a partition; return a function that waits for the library's bytes."""
        key = digest_of([generated.wrapper, generated.kernels])
        if key not in self._results:  # equal sources are compiled once
            self._results[key] = self._start(f"p{len(self._results)}", generated)
        return self._results[key].result

    def _start(self, name: str, generated: Generated) -> Future[bytes]:
        (self._folder / name).mkdir()
        objects = [
            self._shared if source is self._sources.shared else self._compile(f"{name}/", source)
            for source in self._sources.of(generated)
        ]
        target = f"{name}/partition.so"
        command = self._compiler.link_command([path for path, _ in objects], target)
        return self._links.submit(self._link, objects, command, target)

    def _compile(self, place: str, source: Source) -> Object:
        target = place + source.name.removesuffix(".cpp") + ".o"
        command, folder = compilation(self._compiler, source, self._folder / place)
        return target, self._objects.submit(self._compiler.run, command, folder)

    def _link(self, objects: list[Object], command: list[str], target: str) -> bytes:
        for _, done in objects:
            done.result()
        self._compiler.run(command, self._folder)
        return (self._folder / target).read_bytes()


def compilation(compiler: Compiler, source: Source, folder: Path) -> tuple[list[str], Path]:
    """Write a source into a folder; return the command that compiles the source, and the command's folder."""
    # The file's name seeds the names that the compiler makes up: it must not depend on the partition's number.
    (folder / source.name).write_text(source.text, encoding="utf-8")
    target = source.name.removesuffix(".cpp") + ".o"
    return compiler.compile_command(source.name, target, optimize=source.name == KERNELS), folder


def refusals(functions: Sequence[str]) -> str:
    # A later libtorch looks up functions that this version does not know, and writes a warning where a library lacks
    # them.
    refusing = 'extern "C" AOTI_API AOTIRuntimeError {}() {{ return AOTI_RUNTIME_FAILURE; }}\n'
    return "".join(map(refusing.format, functions))
