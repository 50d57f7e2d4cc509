"""Constants and delegates of a plan, as records with checks.

Constants are views of one-dimensional storages in the constants file. A delegate has a backend, a file, constants and a
target machine.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hatch_lower.canonical import sha256_bytes
from hatch_lower.format.codec import Damage
from hatch_lower.format.values import DTYPES, Dtype, Natural, RelativePath, Text
from hatch_lower.frozen import Frozen

# A constants file with named data of delegates is also an ExecuTorch `.ptd` file. This header follows the first 8
# bytes: magic, length of the header, offset and length of the flatbuffer, offset and length of the data.
DATA_MAP_MAGIC = b"FH01"
DATA_MAP_HEADER = struct.Struct("<4sIQQQQ")
DATA_MAP_BYTES = 8 + DATA_MAP_HEADER.size

LENGTH_BYTES = 8  # a safetensors file begins with the length of its header in 8 bytes
HEADER_LIMIT = 100_000_000  # bytes, the limit of safetensors itself

CONSTANTS, CONSTANTS_WITH_MAP = "constants.safetensors", "constants.ptd"
CONSTANTS_FILES = (f"/{CONSTANTS}", f"/{CONSTANTS_WITH_MAP}")
CHECK = "check.safetensors"  # the example inputs of a model, and eager's outputs
CHECK_FILE = f"/{CHECK}"


@dataclass(frozen=True, slots=True)
class Storage:
    """A one-dimensional tensor in the constants file, in memory order."""

    key: Text  # `content_key` of the packaged bytes
    dtype: Dtype
    length: Natural  # elements

    def validate(self) -> None:
        if DTYPES[self.dtype].safetensors is None:
            raise Damage(f"a storage of {self.dtype}, which safetensors cannot hold")

    @property
    def nbytes(self) -> int:
        return self.length * DTYPES[self.dtype].size

    @property
    def may_hold_indices(self) -> bool:
        # elements that may be offsets into memory: the bytes must match their digest before use
        return self.dtype in ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Constant:
    """A view of a storage; shape, stride and offset in elements of the view's dtype."""

    storage: Natural  # index into the plan's storages; tied constants share a storage
    dtype: Dtype
    shape: tuple[Natural, ...]
    stride: tuple[Natural, ...]
    offset: Natural
    mutable: bool  # whether a method writes to the constant in place


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The entry of a tensor in the header of a safetensors file; the offsets are bytes after the header."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


def tensors_begin(data: bytes) -> int:
    """Return the offset of the safetensors file in a constants file, from the file's first `DATA_MAP_BYTES`."""
    if data[8:12] != DATA_MAP_MAGIC or len(data) < DATA_MAP_BYTES:
        return 0
    begin: int = DATA_MAP_HEADER.unpack_from(data, 8)[4]
    return begin


def header_span(data: memoryview, begin: int = 0) -> tuple[int, int] | None:
    """Return begin and end of the header of the safetensors file at `begin`; `None` if the file is too short."""
    first = begin + LENGTH_BYTES
    length = int.from_bytes(data[begin:first], "little")
    return (first, first + length) if length <= min(len(data) - first, HEADER_LIMIT) else None


def content_key(dtype: str, sha256: str) -> str:
    return sha256_bytes(f"{dtype} {sha256}".encode())


def check_view(constant: Constant, storages: Sequence[Storage]) -> None:
    if constant.storage >= len(storages):
        raise Damage(f"storage {constant.storage} of {len(storages)}")
    storage, shape = storages[constant.storage], constant.shape
    if len(shape) != len(constant.stride):
        raise Damage(f"{len(shape)} sizes and {len(constant.stride)} strides")
    size, element = storage.nbytes, DTYPES[constant.dtype].size
    if size % element and constant.dtype != storage.dtype:
        raise Damage(f"a storage of {size} bytes seen as {constant.dtype}")
    last = constant.offset + sum((count - 1) * step for count, step in zip(shape, constant.stride, strict=True))
    if (all(shape) and last * element >= size) or constant.offset * element > size:
        raise Damage(f"a view of {list(shape)} that ends beyond its storage")


# suffix of files without a format of their own; not `.bin`, which scanners for pickles expect to be a pickle
BLOB_SUFFIX = "blob"

PAGE_SIZE = 4096  # bytes; on every machine the address of a mapped file is a multiple of this number


class TargetEntry(Frozen):
    system: Text  # `platform.system()`
    machine: Text  # `platform.machine()`
    isa: Text  # instruction set level
    arch: tuple[Text, ...] = ()  # GPU architectures with machine code, `sm_80`
    ptx: str = ""  # `compute_80`: PTX, from which the driver of a later GPU makes machine code; empty without PTX
    cuda: str = ""  # major version of CUDA, `13`; empty for code of the processor alone


class DataLayout(Frozen):
    dtype: Text
    sizes: tuple[Natural, ...]
    dim_order: tuple[Natural, ...]  # dimensions from the outermost to the innermost in memory


class DataFile(Frozen):
    """Named data of a delegate in a file of their own."""

    file: RelativePath  # relative to the `_lowered` folder
    size: Natural  # bytes
    alignment: Natural  # bytes; the address in memory must be a multiple
    layout: DataLayout | None  # `None` if the data are not a tensor

    def validate(self) -> None:
        if self.alignment == 0 or PAGE_SIZE % self.alignment:
            raise Damage(f"an alignment of {self.alignment} bytes")
        if self.layout is not None and not is_layout_whole(self.layout, self.size):
            raise Damage(f"{self.size} bytes in another layout")


class NamedConstant(Frozen):
    """Named data of a delegate that are weights, in the constants file."""

    storage: Natural  # index into the plan's storages
    layout: DataLayout


class DelegateEntry(Frozen):
    backend: Text  # id in the entry-point group `hatch_lower.delegates`
    file: RelativePath  # relative to the `_lowered` folder
    constants: tuple[Text, ...]  # names of the constants to bind, in order
    info: Mapping[str, object]  # facts from the compile half for the run half
    target: TargetEntry | None  # `None` if the blob is portable
    # named data in files beside the blob; in all delegates of a plan a name means the same data
    data: Mapping[Text, DataFile] = field(default_factory=dict)
    named: Mapping[Text, NamedConstant] = field(default_factory=dict)  # named data in the constants file


def holds_state(entry: DelegateEntry) -> bool:
    # internal state, in addition to the bound constants
    return entry.info.get("stateful") is True


def data_name(digest: str) -> str:
    return f"{digest}.{BLOB_SUFFIX}"


def meanings(
    data: Mapping[str, DataFile], named: Mapping[str, NamedConstant]
) -> Iterator[tuple[str, DataFile | NamedConstant]]:
    """Yield each name of a delegate with its data, which must be equal in all delegates of a plan."""
    for name, file in data.items():
        yield name, replace(file, alignment=1)  # the alignment may differ between delegates
    yield from named.items()


def is_layout_whole(layout: DataLayout, size: int) -> bool:
    if layout.dtype not in DTYPES or sorted(layout.dim_order) != list(range(len(layout.sizes))):
        return False
    return math.prod(layout.sizes) * DTYPES[layout.dtype].size == size
