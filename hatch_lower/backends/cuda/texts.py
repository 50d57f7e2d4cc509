"""The Triton texts of a library's kernels, in a section of the library that no process loads.

The texts say which source the machine code was compiled from, so a machine without a GPU can interpret the kernels.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elftools.elf.elffile import ELFFile

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.runtime.torch_private.gpu_stand_ins import TritonKernel
from hatch_lower.runtime.torch_private.kernel_texts import KernelText

SECTION = ".hatch_lower_kernels"


@dataclass(frozen=True, slots=True)
class CompiledText:
    """A kernel's text, and its machine code's size and digest by compute capability."""

    kernel: KernelText
    code: dict[str, tuple[int, str]]


def pack_texts(kernels: Sequence[TritonKernel]) -> bytes:
    texts = [
        CompiledText(
            KernelText(kernel.name, kernel.text, kernel.signature, kernel.constants),
            {str(capability): (len(code), sha256_bytes(code)) for capability, code in sorted(kernel.cubins.items())},
        )
        for kernel in sorted(kernels, key=lambda kernel: kernel.name)
    ]
    # a signature's order is that of the parameters
    return zlib.compress(json.dumps([asdict(text) for text in texts]).encode(), 9)


def read_texts(library: bytes) -> list[CompiledText]:
    """Return the texts in a library; a library without kernels has none.

    Raises:
        BackendError: if the section cannot be read.
    """
    section: Any = ELFFile(io.BytesIO(library)).get_section_by_name(SECTION)
    if section is None:
        return []
    try:
        given = json.loads(zlib.decompress(section.data()))
        return [
            CompiledText(KernelText(**text["kernel"]), {name: tuple(code) for name, code in text["code"].items()})
            for text in given
        ]
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise BackendError(
            "the texts of a library's kernels cannot be read", found=str(error), hint="build the wheel again"
        ) from error
