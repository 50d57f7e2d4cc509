"""From generated C++ to shared libraries, with the compiler's commands in a pool.

The larger part of the C++ around a partition is the same for every partition: it is compiled once for all of them,
and starts compiling before inductor has written anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hatch_lower.backends.aoti.record import Generated
from hatch_lower.backends.aoti.toolchain import Compiler
from hatch_lower.backends.aoti.versions import later_functions
from hatch_lower.canonical import digest_of
from hatch_lower.torch_private.inductor import interface_path

HEADER = "#include <torch/csrc/inductor/aoti_include/cpu.h>\n"
# The members of this template take a third of the time; the shared object defines them, the others refer to it.
TEMPLATE = "template class torch::aot_inductor::AOTInductorModelBase<torch::aot_inductor::AOTInductorModel>;\n"
# The place where constants would lie in a library that holds them.
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


@dataclass(frozen=True, slots=True)
class Step:
    # an object file and the compilation that makes it
    target: str
    done: Future[None]


class LibraryPool:
    """Compiles partitions as they arrive, while inductor's settings are pinned; `folder` is empty and its own."""

    def __init__(self, compiler: Compiler, folder: Path) -> None:
        self._compiler = compiler
        self._folder = folder
        self._objects = ThreadPoolExecutor(os.cpu_count() or 1)
        self._links = ThreadPoolExecutor(1)  # waits for objects, so it must not hold a worker of theirs
        self._results: dict[str, Future[bytes]] = {}
        self._interface = interface_source()
        self._tail = NO_CONSTANTS + refusals(later_functions(self._interface))
        self._shared = self._compile("interface.cpp", HEADER + self._interface + TEMPLATE + self._tail, optimize=False)

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
        before, found, after = generated.wrapper.partition(self._interface)
        if found:
            wrapper, steps = f"{before}\nextern {TEMPLATE}{after}", [self._shared]
        else:
            wrapper, steps = generated.wrapper + self._tail, []
        steps.append(self._compile(f"{name}/wrapper.cpp", wrapper, optimize=False))
        if generated.kernels.strip():
            steps.append(self._compile(f"{name}/kernels.cpp", generated.kernels, optimize=True))
        target = f"{name}/partition.so"
        command = self._compiler.link_command([step.target for step in steps], target)
        return self._links.submit(self._link, steps, command, target)

    def _compile(self, source: str, text: str, *, optimize: bool) -> Step:
        # Its name seeds the names that the compiler makes up: it must not depend on the partition's number.
        folder, name = (self._folder / source).parent, Path(source).name
        (folder / name).write_text(text, encoding="utf-8")
        target = name.removesuffix(".cpp") + ".o"
        command = self._compiler.compile_command(name, target, optimize=optimize)
        done = self._objects.submit(self._compiler.run, command, folder)
        return Step(source.removesuffix(".cpp") + ".o", done)

    def _link(self, steps: list[Step], command: list[str], target: str) -> bytes:
        for step in steps:
            step.done.result()
        self._compiler.run(command, self._folder)
        return (self._folder / target).read_bytes()


def interface_source() -> str:
    return interface_path().read_text(encoding="utf-8").strip() + "\n"


def refusals(functions: Sequence[str]) -> str:
    # A later libtorch looks for what it has come to call, and writes a warning where a library lacks it.
    refusing = 'extern "C" AOTI_API AOTIRuntimeError {}() {{ return AOTI_RUNTIME_FAILURE; }}\n'
    return "".join(map(refusing.format, functions))
