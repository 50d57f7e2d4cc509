"""From generated C++ to shared libraries: the choice of the compiler, its version, and its commands in a pool.

Most of the C++ around a partition is the same for every partition: this shared part is compiled once, and starts
compiling before inductor has written anything.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hatch_lower.backends.aoti.configuration import Isa
from hatch_lower.backends.aoti.program import find_program
from hatch_lower.backends.aoti.versions import later_functions
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.runtime.torch_private import inductor
from hatch_lower.runtime.torch_private.inductor import interface_path
from hatch_lower.runtime.torch_private.unimported import tried_versions

if TYPE_CHECKING:
    from hatch_lower.backends.aoti.record import GeneratedCode

HINT = "check the compiler, or set CXX to another compiler"
NATIVE = "march=native"
PROCESSORS = ("march=", "mcpu=", "mtune=")
ERROR_LINES = 12
ERROR_CHARACTERS = 300
# marks the first line of a compiler's output that gives the reason of a failure
ERROR = re.compile(r"\berror\b|undefined reference|cannot find -l|\bKilled\b", re.IGNORECASE)

# of an ELF file's header: its type, and the table of sections' place, the size of its entries, and their number
ELF_HEADER = struct.Struct("<16x H 22x Q 10x H H 2x")
ELF_OBJECT, ELF_LIBRARY = 1, 3
INTERFACE = "interface.cpp"  # the code that all libraries share
EXPORTS = "exports.map"  # a file in the folder where libraries are linked
# The symbols that torch looks up in a library, and the kernels that `hatch-lower bench` counts. All other exports
# would be names of the C++ library, a fifth of the file.
EXPORTED = "{ global: AOTInductor*; cpp_*; hatch_lower_*; local: *; };\n"
ENTRANCE = b"\0AOTInductorModelContainerRun\0"  # the function by which a library's model is run


@dataclass(frozen=True, slots=True)
class Compiler:
    program: str
    isa: Isa

    def versions(self) -> dict[str, str]:
        return {
            "compiler": first_output_line([self.program, "--version"]),
            "linker": first_output_line([self.program, "-Wl,--version"]),
        }

    def compile_command(self, source: str, target: str, *, optimize: bool) -> list[str]:
        # names are relative to where the command runs: no path of this machine gets into the object
        options = self._options(compile_only=True, min_optimize=not optimize)
        return [
            self.program,
            source,
            *(f"-D{definition.strip()}" for definition in options.get_definitions()),
            *(f"-{flag}" for flag in choose_processor(options.get_cflags(), self.isa)),
            *(f"-I{folder}" for folder in options.get_include_dirs()),
            *(word for argument in options.get_passthrough_args() for word in argument.split()),
            # they keep absolute paths out of the object
            *(f"-ffile-prefix-map={folder}={name}" for folder, name in self._folders(options).items()),
            f"-frandom-seed={source}",
            # integers wrap around, and a comparison after that is no constant
            "-fwrapv",
            # calls do not pass through most of a library
            *(["-Os"] if source == INTERFACE else []),
            "-ffunction-sections",
            "-fdata-sections",
            "-w",
            "-c",
            "-o",
            target,
        ]

    def link_command(self, objects: list[str], target: str) -> list[str]:
        options = self._options(compile_only=False, min_optimize=False)
        return [
            self.program,
            "-shared",
            "-fPIC",
            *objects,
            # Link the C++ library: libtorch exports the parts that are newer than its target systems, a different set
            # in each version of torch, and without the symbol versions that determine a wheel's tag.
            "-lstdc++",
            *(f"-{flag}" for flag in options.get_ldflags()),
            f"-L{Path(torch.__file__).parent / 'lib'}",
            *(f"-l{library}" for library in options.get_libraries()),
            "-Wl,--gc-sections",
            f"-Wl,--version-script={EXPORTS}",
            "-Wl,--build-id=none",
            "-Wl,-s",
            "-Wl,-z,noexecstack",
            "-o",
            target,
        ]

    def run(self, command: list[str], folder: Path, *, holds_model: bool = True) -> None:
        """Run a command in `folder`; the command's last word is the output file."""
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
        where = f"{Path(self.program).name} {command[1] if '-c' in command else 'while linking'}"
        done = execute(command, where, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            killed = done.returncode == -signal.SIGKILL or "Killed signal" in done.stdout
            raise BackendError(
                "the C++ compiler failed on the code that inductor generated",
                where=where,
                found=error_lines(done.stdout) or f"{ending(done.returncode)} without a message",
                hint="give the build more memory" if killed else HINT,
            )
        reason = why_not_library(folder / command[-1], linked="-c" not in command, holds_model=holds_model)
        if reason is not None:
            raise BackendError(
                "the C++ compiler reported success, but wrote no output file",
                where=where,
                found="\n".join([reason, *filter(None, [error_lines(done.stdout)])]),
                hint=HINT,
            )

    def _options(self, *, compile_only: bool, min_optimize: bool) -> Any:
        return inductor.compiler_options(self.program, compile_only=compile_only, min_optimize=min_optimize)

    def _folders(self, options: Any) -> dict[str, str]:
        folders = {str(Path(torch.__file__).parent): "torch", sysconfig.get_path("include"): "python"}
        return folders | {folder: f"include{index}" for index, folder in enumerate(options.get_include_dirs())}


def choose_processor(flags: Sequence[str], isa: Isa) -> list[str]:
    """Return the compiler's flags for the processors of `isa`, instead of the build machine's processor."""
    chosen, named = f"march={isa.march}", [flag for flag in flags if flag.startswith(PROCESSORS)]
    if named not in ([chosen], [NATIVE]):  # torch 2.11 and 2.12 have no setting and write `native`
        raise BackendError(
            "inductor's flags for the C++ compiler leave open for which processors the code is",
            where=f"the instruction set `{isa.name}`",
            found=", ".join(f"`-{flag}`" for flag in named) or "no `-march`",
            hint=f"build with a version of torch that hatch-lower was tried with: {', '.join(tried_versions())}",
        )
    return [chosen if flag == NATIVE else flag for flag in flags]


def choose_compiler(isa: Isa) -> Compiler:
    return Compiler(find_program(), isa)


def execute(command: list[str], where: str = "", **how: Any) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, text=True, errors="replace", check=False, **how)
    except OSError as error:
        raise BackendError("the C++ compiler cannot be run", where=where, found=str(error), hint=HINT) from error


def error_lines(output: str) -> str:
    # a reader needs the lines from the first error on, or else the first
    lines = output.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if ERROR.search(line)), 0)
    shown = [line if len(line) <= ERROR_CHARACTERS else f"{line[:ERROR_CHARACTERS]} …" for line in lines[first:]]
    return "\n".join([*shown[:ERROR_LINES], "…"] if len(shown) > ERROR_LINES else shown)


def ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"ended by {names.get(-status, f'signal {-status}')},"


def why_not_library(path: Path, *, linked: bool, holds_model: bool = True) -> str | None:
    """Return why a compiler's file is no complete library or object, although the compiler reported success."""
    try:
        data = path.read_bytes()
    except OSError:
        return f"there is no file `{path.name}`"
    if len(data) < ELF_HEADER.size or not data.startswith(b"\x7fELF"):
        return f"`{path.name}` ({len(data)} bytes) is not an ELF file"
    kind, sections, size, count = ELF_HEADER.unpack_from(data)
    if kind != (ELF_LIBRARY if linked else ELF_OBJECT):
        return f"`{path.name}` is another kind of ELF file"
    if sections + size * count > len(data):  # the table of sections is the last of the file
        return f"`{path.name}` ({len(data)} bytes) is cut off"
    return f"`{path.name}` holds no model" if linked and holds_model and ENTRANCE not in data else None


def first_output_line(command: list[str]) -> str:
    # without the folder in which the program lies
    done = execute(command, capture_output=True)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return re.sub(r"^\S*/", "", lines[0]) if lines else "unknown"


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
# Until torch 2.13 a library only prints an error; later, torch asks for the text by a function, which is added here.
LAST_ERROR = """\
static thread_local std::string hatch_lower_last_error;
extern "C" AOTI_API AOTIRuntimeError AOTInductorGetLastError(const char** message) {
  *message = hatch_lower_last_error.c_str();
  return AOTI_RUNTIME_SUCCESS;
}
"""
ERRORS_PRINTED = re.compile(r"^#define CONVERT_EXCEPTION_TO_ERROR_CODE.*?\n[^\\\n]*\n", re.MULTILINE | re.DOTALL)
TEXT_PRINTED = re.compile(r'std::cerr << "Error: " << (e\.what\(\))[^;]*;')

WRAPPER, KERNELS, BINARIES = "wrapper.cpp", "kernels.cpp", "binaries.s"


class CppSource(NamedTuple):
    """A file of C++ or assembly. Its name selects the compiler's flags, and seeds names that the compiler makes up."""

    name: str
    text: str
    files: Mapping[str, bytes] = MappingProxyType({})  # that the text includes


class CppSources:
    """The source files of libraries: a shared file, and one or two files for each partition."""

    def __init__(self, device: str = "cpu") -> None:
        self._interface = interface_path().read_text(encoding="utf-8").strip() + "\n"
        quiet = without_prints(self._interface)
        self._tail = NO_CONSTANTS + write_refusals(later_functions(quiet))
        header = f"#include <torch/csrc/inductor/aoti_include/{device}.h>\n"
        self.shared = CppSource(INTERFACE, header + quiet + TEMPLATE + self._tail)

    def of(self, generated: GeneratedCode) -> list[CppSource]:
        """Return the files of a partition, the shared file first unless the partition does without."""
        binaries = [write_binaries(generated.binaries)] if generated.binaries else []
        before, found, after = generated.wrapper.partition(self._interface)
        if found:
            files = [self.shared, CppSource(WRAPPER, f"{before}\nextern {TEMPLATE}{after}")]
        else:
            files = [CppSource(WRAPPER, without_prints(generated.wrapper) + self._tail)]
        kernels = [CppSource(KERNELS, generated.kernels)] if generated.kernels.strip() else []
        return [*files, *kernels, *binaries]


def write_binaries(binaries: Mapping[str, bytes]) -> CppSource:
    """Return an assembler file with a read-only symbol for each content; `.name` is a section that is never loaded."""
    # a kernel's name may be longer than a file's
    files = {name: f"{place}.bin" for place, name in enumerate(binaries)}
    symbols = [
        f'.balign 16\n.globl {name}\n.hidden {name}\n{name}:\n.incbin "{file}"\n'
        for name, file in files.items()
        if not name.startswith(".")
    ]
    sections = [
        f'.section {name},"",@progbits\n.incbin "{file}"\n' for name, file in files.items() if name.startswith(".")
    ]
    lines = [".section .rodata\n", *symbols, *sections, '.section .note.GNU-stack,"",@progbits\n']
    return CppSource(BINARIES, "".join(lines), {files[name]: data for name, data in binaries.items()})


def without_prints(interface: str) -> str:
    """Return the interface's C++ without its prints: torch also prints the text of each error that it raises."""
    if "AOTInductorGetLastError" not in interface:
        interface = ERRORS_PRINTED.sub(keep_text, interface)
    return PRINT.sub("", interface)


def keep_text(macro: re.Match[str]) -> str:
    return LAST_ERROR + TEXT_PRINTED.sub(r"hatch_lower_last_error = \1;", macro[0])


Object = tuple[str, Future[None]]  # a file and its compilation


class LibraryPool:
    """Compiles partitions as they arrive, while inductor's settings are pinned."""

    def __init__(self, compiler: Compiler, folder: Path, device: str = "cpu") -> None:
        self._compiler = compiler
        self._folder = folder
        (folder / EXPORTS).write_text(EXPORTED)
        self._objects = ThreadPoolExecutor(os.cpu_count() or 1)
        self._links = ThreadPoolExecutor(1)  # waits for objects, so it must not hold one of the compilers' workers
        self._results: dict[str, Future[bytes]] = {}
        self._sources = CppSources(device)
        self._shared = self._compile("", self._sources.shared)

    def __enter__(self) -> LibraryPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._objects, self._links):
            pool.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, generated: GeneratedCode) -> Callable[[], bytes]:
        """Start to compile a partition; return a function that waits for the library's bytes."""
        key = digest_of(
            [
                generated.wrapper,
                generated.kernels,
                {name: sha256_bytes(data) for name, data in generated.binaries.items()},
            ]
        )
        if key not in self._results:  # equal sources are compiled once
            self._results[key] = self._start(f"p{len(self._results)}", generated)
        return self._results[key].result

    def _start(self, name: str, generated: GeneratedCode) -> Future[bytes]:
        (self._folder / name).mkdir()
        objects = [
            self._shared if source is self._sources.shared else self._compile(f"{name}/", source)
            for source in self._sources.of(generated)
        ]
        target = f"{name}/partition.so"
        command = self._compiler.link_command([path for path, _ in objects], target)
        return self._links.submit(self._link, objects, command, target)

    def _compile(self, place: str, source: CppSource) -> Object:
        target = place + object_name(source)
        command, folder = compilation(self._compiler, source, self._folder / place)
        return target, self._objects.submit(self._compiler.run, command, folder)

    def _link(self, objects: list[Object], command: list[str], target: str) -> bytes:
        for _, done in objects:
            done.result()
        self._compiler.run(command, self._folder)
        return (self._folder / target).read_bytes()


def compilation(compiler: Compiler, source: CppSource, folder: Path) -> tuple[list[str], Path]:
    """Write a source into a folder; return the command that compiles the source, and the command's folder."""
    # The file's name seeds the names that the compiler makes up: it must not depend on the partition's number.
    (folder / source.name).write_text(source.text, encoding="utf-8")
    for name, data in source.files.items():
        (folder / name).write_bytes(data)
    if source.name == BINARIES:
        return [compiler.program, "-c", source.name, "-o", object_name(source)], folder
    return compiler.compile_command(source.name, object_name(source), optimize=source.name == KERNELS), folder


def object_name(source: CppSource) -> str:
    return f"{source.name.partition('.')[0]}.o"


def write_refusals(functions: Sequence[str]) -> str:
    # A later libtorch looks up functions that this version does not know, and writes a warning where a library lacks
    # them.
    refusing = 'extern "C" AOTI_API AOTIRuntimeError {}() {{ return AOTI_RUNTIME_FAILURE; }}\n'
    return "".join(map(refusing.format, functions))
