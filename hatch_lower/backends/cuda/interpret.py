"""A partition's library executed on the CPU: its host code as packaged, and its kernels by Triton's interpreter.

The machine code of the kernels is the only part that is not executed. Each launch is tied to the Triton text whose
machine code the library hands to the driver at that launch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor

from hatch_lower.backends.aoti.library import ending
from hatch_lower.backends.call_map import CallMap
from hatch_lower.backends.cuda.emulator import write_emulator
from hatch_lower.backends.cuda.interpreted import read, same_bytes, write
from hatch_lower.backends.cuda.toolchain import CudaCompiler, choose_compiler
from hatch_lower.errors import BackendError
from hatch_lower.runtime.arrays import find_arrays
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

MODULE = "hatch_lower.backends.cuda.interpreted"
HINT = "write `verify = false` in the recipe, or leave the operation out with the backend's option `exclude`"


class Interpreter:
    """A process that executes partitions' libraries as on the oldest GPU that the libraries have code for."""

    def __enter__(self) -> Interpreter:
        self._count = 0
        self._kept = tempfile.TemporaryDirectory(prefix="hatch-lower-cuda-")
        folder = Path(self._kept.name)
        emulator = build_emulator(choose_compiler(), folder)
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            # The library would check that its inputs are on a GPU.
            "AOTI_RUNTIME_CHECK_INPUTS": "0",
        }
        command = [sys.executable, "-m", MODULE, str(emulator)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._kept.cleanup()

    def bind(self, library: bytes, info: Mapping[str, Any], constants: Sequence[Tensor]) -> InterpretedPartition:
        path = Path(self._kept.name, f"partition{self._count}.so")
        path.write_bytes(library)
        self._count += 1
        bound = {f"c{place}": constants[place].detach() for place in info["bound"]}
        number = self.ask({"library": str(path), "constants": bound})["number"]
        call = CallMap(info["inputs"], info["passed"], info["outputs"], find_arrays("torch"))
        return InterpretedPartition(self, number, bound, call)

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        requests: Any = self._process.stdin
        answers: Any = self._process.stdout
        try:
            write(requests, request)
            answer = read(answers)
        except OSError:
            answer = None
        if answer is None:
            found = ending(self._process.wait())
            raise BackendError("the process that interprets a partition has ended", found=found, hint=HINT)
        if "error" in answer:
            raise BackendError("a partition cannot be interpreted on the CPU", found=answer["error"], hint=HINT)
        return dict(answer)


class InterpretedPartition:
    """A partition's library in an interpreter, bound to constants, which the partition may change."""

    def __init__(self, interpreter: Interpreter, number: int, bound: Mapping[str, Tensor], call: CallMap) -> None:
        self._interpreter = interpreter
        self._number = number
        self._bound = bound
        self._known = {name: value.clone() for name, value in bound.items()}  # the process's contents
        self._map = call
        self.launches: Mapping[str, int] = {}  # of the last call, by kernel

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        """Run on tensors of the CPU; constants that the partition changes are changed in place."""
        changed = {name: value for name, value in self._bound.items() if not same_bytes(value, self._known[name])}
        request = {"number": self._number, "inputs": self._map.select(inputs), "constants": changed}
        answer = self._interpreter.ask(request)
        for name, value in answer["constants"].items():
            self._bound[name].copy_(value)
        self._known |= {name: self._bound[name].clone() for name in {*changed, *answer["constants"]}}
        self.launches = answer["launches"]
        return self._map.arrange(inputs, answer["results"])


@contextmanager
def interpreting() -> Iterator[type[Delegate]]:
    """Give a run half that interprets the kernels of libraries, as long as the context is open."""
    with Interpreter() as interpreter:

        class InterpretedDelegate(Delegate):
            without_elements: ClassVar[str] = "skip"

            def __init__(self, partition: InterpretedPartition) -> None:
                self._partition = partition

            @classmethod
            def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> InterpretedDelegate:
                return cls(interpreter.bind(blob.path.read_bytes(), blob.info, constants))

            def run(self, inputs: list[Tensor]) -> Sequence[object]:
                return self._partition.run(inputs)

        yield InterpretedDelegate


def build_emulator(compiler: CudaCompiler, folder: Path) -> Path:
    compiler.write_stubs(folder)
    torch_folder = Path(torch.__file__).parent / "lib"
    (folder / "emulator.cpp").write_text(write_emulator(), encoding="utf-8")
    words = [compiler.program, "-std=c++17", "-O1", "-fPIC", "-shared", "emulator.cpp"]
    words += [f"-L{torch_folder}", "-ltorch_cpu", f"-Wl,-rpath,{torch_folder}", "-o", "emulator.so"]
    compiler.run(words, folder, holds_model=False)
    return folder / "emulator.so"
