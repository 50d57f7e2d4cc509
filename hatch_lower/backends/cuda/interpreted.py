"""The process that executes a partition's library without a GPU: reads calls from its input, writes results.

Started by `interpret.py` with `TRITON_INTERPRET=1`. The argument is the emulator's path.
"""

from __future__ import annotations

import ctypes
import io
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from hatch_lower.backends.cuda.texts import CompiledText, read_texts
from hatch_lower.backends.cuda.toolchain import STUBS
from hatch_lower.canonical import sha256_bytes
from hatch_lower.runtime.torch_private.convolution_layouts import layout_on_gpu
from hatch_lower.runtime.torch_private.handles import tensor_handle, tensor_of
from hatch_lower.runtime.torch_private.inductor import open_library
from hatch_lower.runtime.torch_private.kernel_interpreter import KernelInterpreter

ADDRESS = ctypes.c_void_p
SIZES, SCALE = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_double)
LENGTH = struct.Struct("<Q")
FAILED = 700


class Emulator:
    """The functions that the emulator calls, and the first exception of a call."""

    def __init__(self, path: Path) -> None:
        self.error: BaseException | None = None
        self.launches: dict[str, int] = {}
        self._interpreter = KernelInterpreter()
        self._texts: dict[str, CompiledText] = {}
        self._capability = 0
        self._defined: list[tuple[str, Any]] = []
        open_stubs(path.parent / STUBS)
        # Its functions are found before those of libraries that are opened later, which are torch's or stand-ins.
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        functions: dict[str, tuple[Any, Any, Any]] = {
            "find": (self._find, (ADDRESS, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)), ctypes.c_int),
            "launch": (self._launch, (ctypes.c_int64, SIZES, ctypes.POINTER(ADDRESS)), ctypes.c_int),
            "attention": (self._attention, (*[ADDRESS] * 4, ctypes.c_double, ctypes.c_int32, SCALE), ADDRESS),
            "arrange": (self._arrange, (ADDRESS, ADDRESS, ADDRESS), ADDRESS),
            "empty": (make_empty, (), ADDRESS),
        }
        self._kept = [self._set(name, *given) for name, given in functions.items()]
        data = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).aoti_torch_get_data_ptr
        self._place("hatch_lower_data").value = ctypes.cast(data, ADDRESS).value

    def _place(self, name: str) -> ctypes.c_void_p:
        return ADDRESS.in_dll(self._library, name)

    def _set(self, name: str, function: Callable[..., object], arguments: Sequence[Any], result: Any) -> object:
        """Set a function that the emulator calls; return the object that must live as long as the emulator."""
        kept = ctypes.CFUNCTYPE(result, *arguments)(function)
        self._place(f"hatch_lower_{name}").value = ctypes.cast(kept, ADDRESS).value
        return kept

    def use_texts(self, texts: Sequence[CompiledText]) -> None:
        """Set the kernels of the library that is opened or run next, and emulate its oldest GPU."""
        self._texts = {text.kernel.name: text for text in texts}
        self._capability = min((int(number) for text in texts for number in text.code), default=80)
        ctypes.c_int.in_dll(self._library, "hatch_lower_capability").value = self._capability

    def _text_of(self, image: int, name: str) -> CompiledText:
        text = self._texts.get(name)
        length, digest = (0, "") if text is None else text.code[str(self._capability)]
        if text is None or sha256_bytes(ctypes.string_at(image, length)) != digest:
            raise ValueError(f"the library has no text for its machine code of the kernel `{name}`")
        return text

    def _extent(self, address: int) -> tuple[int, int]:
        first, end = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.hatch_lower_extent(ctypes.c_void_p(address), ctypes.byref(first), ctypes.byref(end))
        return first.value, end.value

    def _find(self, image: int, name: bytes, found: Any) -> int:
        try:
            text = self._text_of(image, name.decode())
            self._defined.append((text.kernel.name, self._interpreter.define(text.kernel)))
            found[0] = len(self._defined)
        except BaseException as error:
            self.error = self.error or error
            return FAILED
        return 0

    def _launch(self, kernel: int, sizes: Any, parameters: Any) -> int:
        name, launch = self._defined[kernel - 1]
        try:
            launch((sizes[0], sizes[1], sizes[2]), parameters, self._extent)
            self.launches[name] = self.launches.get(name, 0) + 1
        except BaseException as error:
            error.add_note(f"in the kernel `{name}`")
            self.error = self.error or error
            return FAILED
        return 0

    def _attention(
        self, query: int, key: int, value: int, bias: int | None, dropout: float, causal: int, scale: Any
    ) -> int | None:
        try:
            operands = [tensor_of(handle) for handle in (query, key, value)]
            mask = None if bias is None else tensor_of(bias)
            result = attend(operands, mask, causal=bool(causal), scale=scale[0] if scale else None)
            return tensor_handle(result)
        except BaseException as error:
            self.error = self.error or error
            return None

    def _arrange(self, image: int, weight: int, result: int) -> int | None:
        try:
            layout = layout_on_gpu(tensor_of(image), tensor_of(weight))
            return tensor_handle(tensor_of(result, owns=True).contiguous(memory_format=layout))
        except BaseException as error:
            self.error = self.error or error
            return None


def open_stubs(folder: Path) -> None:
    """Open a stand-in for each library of CUDA that this machine lacks."""
    for stub in sorted(folder.glob("*.so*")):
        try:
            ctypes.CDLL(stub.name)
        except OSError:
            ctypes.CDLL(str(stub))


def make_empty() -> int:
    return tensor_handle(torch.empty(0))


def attend(operands: Sequence[Tensor], mask: Tensor | None, *, causal: bool, scale: float | None) -> Tensor:
    """Compute attention by its formula in float64; the result lies in memory as the GPU's kernels lay it.

    A row whose mask leaves out all columns is 0, as in eager and, since torch 2.5 (pytorch#131863), on a GPU.
    """
    query, key, value = (operand.double() for operand in operands)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not(), float("-inf"))
    if mask is not None:
        scores = scores + mask.double()
    weights = torch.softmax(scores, -1).masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    result = weights @ value
    return result.to(operands[0].dtype).transpose(1, 2).contiguous().transpose(1, 2)


def read(source: BinaryIO) -> Any:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return torch.load(io.BytesIO(source.read(LENGTH.unpack(head)[0])), weights_only=True)


def write(target: BinaryIO, value: Any) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    target.write(LENGTH.pack(buffer.tell()) + buffer.getvalue())
    target.flush()


class Server:
    """Answers requests: to open a library, and to run an opened library."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._opened: list[tuple[Any, dict[str, Tensor], list[CompiledText]]] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self._emulator.error = None
        try:
            return self._open(**request) if "library" in request else self._run(**request)
        except Exception as error:
            return {"error": describe(self._emulator.error or error)}

    def _open(self, library: str, constants: dict[str, Tensor]) -> dict[str, Any]:
        texts = read_texts(Path(library).read_bytes())
        self._emulator.use_texts(texts)
        runner = open_library(Path(library))
        if constants:
            runner.update_constant_buffer(constants, False, False, True)
        self._opened.append((runner, constants, texts))
        return {"number": len(self._opened) - 1}

    def _run(self, number: int, inputs: list[Tensor], constants: dict[str, Tensor]) -> dict[str, Any]:
        runner, bound, texts = self._opened[number]
        self._emulator.use_texts(texts)
        for name, value in constants.items():
            bound[name].copy_(value)
        before = {name: value.clone() for name, value in bound.items()}
        self._emulator.launches.clear()
        results = list(runner.run(inputs))
        changed = {name: value for name, value in bound.items() if not same_bytes(value, before[name])}
        return {"results": results, "constants": changed, "launches": dict(self._emulator.launches)}


def describe(error: BaseException) -> str:
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith("<kernel ")]
    places = [f"in `{(lines[-1].line or '').strip()}`"] if lines else []
    return "\n".join(["".join(traceback.format_exception_only(error)).strip(), *places])


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    server = Server(Emulator(Path(sys.argv[1])))
    while (request := read(requests)) is not None:
        write(answers, server.answer(request))


if __name__ == "__main__":
    main()
