"""Delegates of a plan: which backend runs which file, bound to which constants, on which machine."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from hatch_lower.format.codec import Damage
from hatch_lower.format.values import DTYPES, Natural, RelativePath, Text
from hatch_lower.frozen import Frozen

# of files in no format of their own; programs that look for pickles take a `.bin` for one, and fail on it
BLOB_SUFFIX = "blob"

PAGE_SIZE = 4096  # a mapped file begins at a multiple of so many bytes on every machine


class TargetEntry(Frozen):
    system: Text  # `platform.system()`
    machine: Text  # `platform.machine()`
    isa: Text  # instruction set level


class DataLayout(Frozen):
    dtype: Text
    sizes: tuple[Natural, ...]
    dim_order: tuple[Natural, ...]  # from the outermost in memory to the innermost


class DataFile(Frozen):
    """Named data of a delegate: a file that holds nothing else."""

    file: RelativePath  # relative to the `_lowered` folder
    size: Natural  # bytes
    alignment: Natural  # the multiple of bytes at which it must lie in memory
    layout: DataLayout | None  # `None` where it is no tensor

    def validate(self) -> None:
        if self.alignment == 0 or PAGE_SIZE % self.alignment:
            raise Damage(f"an alignment of {self.alignment} bytes")
        if self.layout is not None and not is_whole(self.layout, self.size):
            raise Damage(f"{self.size} bytes for another tensor")


class NamedConstant(Frozen):
    """Named data of a delegate that lie in the constants file, which are weights."""

    storage: Natural  # index into the plan's storages
    layout: DataLayout


class DelegateEntry(Frozen):
    backend: Text  # id in the entry-point group `hatch_lower.delegates`
    file: RelativePath  # relative to the `_lowered` folder
    constants: tuple[Text, ...]  # those to bind, in order
    info: Mapping[str, object]  # facts that the compile half left for the run half
    target: TargetEntry | None  # `None` where it is portable
    # what it puts beside the blob; a name means the same data in all delegates of a plan
    data: Mapping[Text, DataFile] = field(default_factory=dict)
    named: Mapping[Text, NamedConstant] = field(default_factory=dict)  # what it has in the constants file


def holds_state(entry: DelegateEntry) -> bool:
    # state of its own, beside the constants that it is bound to
    return entry.info.get("stateful") is True


def data_name(digest: str) -> str:
    return f"{digest}.{BLOB_SUFFIX}"


def meanings(
    data: Mapping[str, DataFile], named: Mapping[str, NamedConstant]
) -> Iterator[tuple[str, DataFile | NamedConstant]]:
    """Yield what each name of a delegate stands for, and in all other delegates of its plan."""
    for name, file in data.items():
        yield name, replace(file, alignment=1)  # each may ask for its own
    yield from named.items()


def is_whole(layout: DataLayout, size: int) -> bool:
    if layout.dtype not in DTYPES or sorted(layout.dim_order) != list(range(len(layout.sizes))):
        return False
    return math.prod(layout.sizes) * DTYPES[layout.dtype].size == size
