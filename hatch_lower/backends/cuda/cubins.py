"""The code of a kernel for several architectures: a table of images, and the facts of machine code. Imports no torch.

```text
head    magic, number of images, bytes of shared memory of a launch
entry   of an image: compute capability, kind, offset from the table's start, length
images  each at a multiple of 16 bytes
```
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"\x93hlgpu\r\n"  # a library may be stripped of the tables' names
HEAD = struct.Struct("<8sII")
ENTRY = struct.Struct("<HHIII")
SAME_MAJOR, EXACT, PTX = range(3)
ALIGNMENT = 16
# NVIDIA's records in the section `.nv.info`: a byte each for format and attribute, then two bytes: a value, or the
# length of the contents that follow
INFO = struct.Struct("<BBH")
SIZED = 4  # the format with contents
# attributes whose contents are the number of a function's symbol, and a value
FUNCTION = struct.Struct("<II")
STACK_BYTES, REGISTERS = 0x11, 0x2F


@dataclass(frozen=True, slots=True)
class Image:
    major: int
    minor: int
    kind: int
    content: bytes


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The resources of a kernel, the most over all architectures."""

    registers: int  # of a thread
    stack: int  # bytes of a thread in the GPU's memory: spilled registers and local arrays
    shared: int  # bytes of a block, as the launch asks for


def pack_images(images: Sequence[Image], shared: int) -> bytes:
    place = HEAD.size + ENTRY.size * len(images)
    entries, contents = [HEAD.pack(MAGIC, len(images), shared)], []
    for image in images:
        padding = -place % ALIGNMENT
        contents.append(bytes(padding) + image.content)
        entries.append(ENTRY.pack(image.major, image.minor, image.kind, place + padding, len(image.content)))
        place += padding + len(image.content)
    return b"".join([*entries, *contents])


def kernels_in(library: memoryview) -> list[KernelFacts]:
    """Return the facts of each kernel in a library.

    Raises:
        Exception: of any kind, for damaged contents.
    """
    return [
        facts_of(library[found.start() :], count, shared)
        for found in re.finditer(re.escape(MAGIC), library)
        for _, count, shared in [HEAD.unpack_from(library, found.start())]
    ]


def facts_of(table: memoryview, count: int, shared: int) -> KernelFacts:
    registers, stack = [], []
    for place in range(count):
        _, _, kind, offset, length = ENTRY.unpack_from(table, HEAD.size + ENTRY.size * place)
        if kind == PTX:
            continue
        for attribute, value in function_values(table[offset : offset + length]):
            if attribute == REGISTERS:
                registers.append(value)
            elif attribute == STACK_BYTES:
                stack.append(value)
    return KernelFacts(max(registers), max(stack, default=0), shared)


def function_values(cubin: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the attributes of the functions of a cubin with a number as value."""
    from elftools.elf.elffile import ELFFile  # needed for native code only

    file: Any = ELFFile(io.BytesIO(cubin))
    data = file.get_section_by_name(".nv.info").data()
    place = 0
    while place < len(data):
        form, attribute, value = INFO.unpack_from(data, place)
        place += INFO.size
        if form == SIZED:
            if value == FUNCTION.size:
                yield attribute, FUNCTION.unpack_from(data, place)[1]
            place += value
