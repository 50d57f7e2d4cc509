"""The C++ compiler: which one, its version, and its commands for objects and the shared library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hatch_lower.backends.aoti.configuration import Isa
from hatch_lower.errors import BackendError

__all__ = ["Compiler", "find_compiler"]

ERROR_LINES = 12


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler and the instruction set that it compiles for.

    Args:
        program: its path.
        isa: the instruction set.
    """

    program: str
    isa: Isa

    def versions(self) -> dict[str, str]:
        """Return the first lines of the compiler's and its linker's `--version`."""
        return {
            "compiler": first_line([self.program, "--version"]),
            "linker": first_line([self.program, "-Wl,--version"]),
        }

    def compile_command(self, source: str, target: str, *, optimize: bool) -> list[str]:
        """Return the command that compiles `source` to the object `target`, both relative to where it runs.

        Args:
            source: the C++ file.
            target: the object file.
            optimize: at `-O3` for kernels, else at `-O1` for the code that calls them.
        """
        options = self._options(compile_only=True, min_optimize=not optimize)
        return [
            self.program,
            source,
            *(f"-D{definition.strip()}" for definition in options.get_definitions()),
            *(f"-{flag}" for flag in options.get_cflags()),
            *(f"-I{folder}" for folder in options.get_include_dirs()),
            *(word for argument in options.get_passthrough_args() for word in argument.split()),
            *self._prefix_maps(options),
            f"-frandom-seed={source}",
            "-w",
            "-c",
            "-o",
            target,
        ]

    def link_command(self, objects: list[str], target: str) -> list[str]:
        """Return the command that links objects to the shared library `target`."""
        options = self._options(compile_only=False, min_optimize=False)
        return [
            self.program,
            "-shared",
            "-fPIC",
            *objects,
            *(f"-{flag}" for flag in options.get_ldflags()),
            f"-L{Path(torch.__file__).parent / 'lib'}",
            *(f"-l{library}" for library in options.get_libraries()),
            "-Wl,--build-id=none",
            "-Wl,-s",
            "-Wl,-z,noexecstack",
            "-o",
            target,
        ]

    def run(self, command: list[str], folder: Path) -> None:
        """Run a command in `folder`.

        Raises:
            BackendError: with the first lines of what the compiler said.
        """
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            lines = done.stdout.strip().splitlines()[:ERROR_LINES]
            killed = done.returncode < 0 or "Killed signal" in done.stdout
            raise BackendError(
                "the C++ compiler failed on the code that inductor generated",
                where=f"{Path(self.program).name} {command[1] if '-c' in command else 'while linking'}",
                found="\n".join(lines) or f"exit status {done.returncode} without a message",
                hint="give the build more memory" if killed else "check the compiler, or set CXX to another one",
            )

    def _options(self, *, compile_only: bool, min_optimize: bool) -> Any:
        """Return torch's own build options; call it while inductor's settings are pinned."""
        from torch._inductor import cpu_vec_isa
        from torch._inductor.cpp_builder import CppTorchDeviceOptions

        return CppTorchDeviceOptions(
            vec_isa=cpu_vec_isa.pick_vec_isa(),
            device_type="cpu",
            aot_mode=True,
            compile_only=compile_only,
            min_optimize=min_optimize,
            compiler=self.program,
        )

    def _prefix_maps(self, options: Any) -> list[str]:
        """Return the flags that keep absolute paths out of the objects."""
        folders = {str(Path(torch.__file__).parent): "torch", sysconfig.get_path("include"): "python"}
        folders |= {folder: f"include{index}" for index, folder in enumerate(options.get_include_dirs())}
        return [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]


def find_compiler(isa: Isa) -> Compiler:
    """Return the compiler that `CXX` names, else `g++`, else `clang++`.

    Raises:
        BackendError: if there is none.
    """
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "clang++"]:
        program = shutil.which(name)
        if program is not None:
            return Compiler(program, isa)
    raise BackendError(
        "no C++ compiler was found, and the backend `aoti` needs one to build",
        found=f"CXX is {named!r}, which is no program" if named else "neither `g++` nor `clang++` is on PATH",
        hint="install one (`apt-get install g++`, `dnf install gcc-c++`), or set CXX to its path",
    )


def first_line(command: list[str]) -> str:
    """Return the first line that a program prints, without the part that names where it lies."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return re.sub(r"^\S*/", "", lines[0]) if lines else "unknown"
