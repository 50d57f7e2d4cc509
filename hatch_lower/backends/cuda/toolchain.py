"""The C++ compiler for CUDA's host code: headers from the index or the system, and stand-ins for CUDA's libraries.

Stand-ins are empty libraries with the names of the real ones, so a machine without CUDA links like a machine with CUDA.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.backends.aoti.library import Compiler
from hatch_lower.backends.aoti.program import find_program
from hatch_lower.backends.cuda.options import host_isa
from hatch_lower.canonical import digest_of, sha256_file
from hatch_lower.errors import BackendError, extra_hint

# files that a wrapper includes, in the order in which they are missed
NEEDED = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h", "nv/target")
LIBRARIES = ("libtorch_cuda.so", "libcudart.so.{major}", "libcuda.so.1")
STUBS = "stubs"


@dataclass(frozen=True, slots=True)
class Headers:
    folders: tuple[Path, ...]
    version: str  # `13.0`

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]


@dataclass(frozen=True, slots=True)
class CudaCompiler(Compiler):
    headers: Headers

    def compile_command(self, source: str, target: str, *, optimize: bool) -> list[str]:
        *words, compile_only, output, target = Compiler.compile_command(self, source, target, optimize=optimize)
        folders = [f"-I{folder}" for folder in self.headers.folders]
        renamed = [f"-ffile-prefix-map={folder}=cuda{place}" for place, folder in enumerate(self.headers.folders)]
        return [*words, "-DUSE_CUDA", *folders, *renamed, compile_only, output, target]

    def link_command(self, objects: list[str], target: str) -> list[str]:
        *words, output, target = Compiler.link_command(self, objects, target)
        names = [f"-l:{name}" for name in library_names(self.headers)]
        # `--no-as-needed`: no symbol of a stand-in tells the linker that the library is needed
        return [*words, f"-L{STUBS}", "-Wl,--push-state,--no-as-needed", *names, "-Wl,--pop-state", output, target]

    def write_stubs(self, folder: Path) -> None:
        (folder / STUBS).mkdir()
        (folder / STUBS / "stub.c").write_text("")
        for name in library_names(self.headers):
            target = f"{STUBS}/{name}"
            words = [self.program, "-shared", f"-Wl,-soname,{name}", f"{STUBS}/stub.c", "-o", target]
            self.run(words, folder, holds_model=False)


def library_names(headers: Headers) -> list[str]:
    return [name.format(major=headers.major) for name in LIBRARIES]


def choose_compiler() -> CudaCompiler:
    return CudaCompiler(find_program(), host_isa(), find_headers())


def find_headers() -> Headers:
    """Return the folders of CUDA's headers, of the distributions `nvidia-cuda-…` or of `CUDA_HOME`.

    Raises:
        BackendError: if a header is missing, or the version cannot be read.
    """
    candidates = list(header_folders())
    for folders in candidates:
        if all(any((folder / name).is_file() for folder in folders) for name in NEEDED):
            return Headers(tuple(folders), read_version(folders))
    looked = ", ".join(str(folder) for folders in candidates for folder in folders) or "no folder of headers is there"
    missing = [name for name in NEEDED if not any((folder / name).is_file() for each in candidates for folder in each)]
    raise BackendError(
        "the backend `cuda` needs CUDA's headers, which are not installed",
        found=f"{', '.join(missing or NEEDED)}: not in {looked}",
        hint=f"{extra_hint('cuda')}, or set CUDA_HOME to an installed CUDA",
    )


def header_folders() -> Iterator[list[Path]]:
    spec = importlib.util.find_spec("nvidia")
    for root in sorted(spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in sorted(Path(root).glob("cu[0-9]*/include"), reverse=True):
            yield [folder, folder / "cccl"]
    if home := os.environ.get("CUDA_HOME"):
        yield [Path(home, "include"), Path(home, "include", "cccl")]


def read_version(folders: list[Path]) -> str:
    path = next(folder / "cuda.h" for folder in folders if (folder / "cuda.h").is_file())
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split()
            if words[:2] == ["#define", "CUDA_VERSION"] and len(words) > 2 and words[2].isdecimal():
                number = int(words[2])
                return f"{number // 1000}.{number % 1000 // 10}"
    raise BackendError("a header of CUDA states no version", where=str(path), hint=extra_hint("cuda"))


def headers_digest(headers: Headers) -> str:
    """Return the digest of the headers that shape a library: the files themselves, whose folders may lie anywhere."""
    files = [next(folder / name for folder in headers.folders if (folder / name).is_file()) for name in NEEDED]
    return digest_of([headers.version, [sha256_file(path) for path in files]])
