"""Delegates of a plan: for each its backend, file, constants and target machine."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from hatch_lower.format.codec import Damage
from hatch_lower.format.values import DTYPES, Natural, RelativePath, Text
from hatch_lower.frozen import Frozen

# suffix of files without a format of their own; not `.bin`, which scanners for pickles expect to be a pickle
BLOB_SUFFIX = "blob"

PAGE_SIZE = 4096  # bytes; on every machine the address of a mapped file is a multiple of this number


class TargetEntry(Frozen):
    system: Text  # `platform.system()`
    machine: Text  # `platform.machine()`
    isa: Text  # instruction set level


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
        if self.layout is not None and not is_whole(self.layout, self.size):
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


def is_whole(layout: DataLayout, size: int) -> bool:
    if layout.dtype not in DTYPES or sorted(layout.dim_order) != list(range(len(layout.sizes))):
        return False
    return math.prod(layout.sizes) * DTYPES[layout.dtype].size == size
