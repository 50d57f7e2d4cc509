"""The form in which the cache keeps a backend's result for a partition: JSON, with blobs by their digests.

Results are written from this definition. Every result that is read, from this machine or from a shared cache, is
checked against the same definition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated

from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage, decode, encode, read_integer, show_value
from hatch_lower.format.values import Digest, Natural

SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def read_positive(value: object) -> int:
    number = read_integer(value)
    if number < 1:
        raise Damage(f"{number} instead of a positive number")
    return number


def read_instruction(value: object) -> int | str:
    return value if isinstance(value, str) else read_integer(value)


def read_suffix(value: object) -> str:
    if not isinstance(value, str) or SUFFIX.fullmatch(value) is None:
        raise Damage(f"{show_value(value)} instead of the end of a file's name")
    return value


Positive = Annotated[int, read_positive]
Instruction = Annotated[int | str, read_instruction]


@dataclass(frozen=True, slots=True)
class StoredLayout:
    # the same fields as `TensorLayout`
    scalar_type: str
    sizes: tuple[Natural, ...]
    dim_order: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class StoredEntry:
    buffer: Natural  # index among the buffers
    alignment: Positive  # bytes
    layout: StoredLayout | None  # the layout of a tensor; `None` for other data


@dataclass(frozen=True, slots=True)
class StoredData:
    """Named data, in the order of the backend."""

    buffers: tuple[Digest, ...]
    program: tuple[tuple[str, StoredEntry], ...]
    external: tuple[tuple[str, tuple[tuple[str, StoredEntry], ...]], ...]

    def validate(self) -> None:
        groups = [self.program, *(entries for _, entries in self.external)]
        for name, entry in (pair for group in groups for pair in group):
            if entry.buffer >= len(self.buffers):
                raise Damage(f"buffer {entry.buffer} of {len(self.buffers)} for {name!r:.80}")


@dataclass(frozen=True, slots=True)
class StoredTarget:
    # the same fields as `Target`
    system: str
    machine: str
    isa: str
    arch: tuple[str, ...]
    ptx: str
    cuda: str


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A `PreprocessResult`, field by field; the bytes are a blob."""

    blob: Digest
    data: StoredData | None
    debug_handle_map: tuple[tuple[Instruction, tuple[Positive, ...]], ...] | None
    delegate_info_meta: object
    suffix: Annotated[str, read_suffix]
    requirements: tuple[str, ...]
    target: StoredTarget | None
    info: Mapping[str, object]

    @classmethod
    def read(cls, value: object) -> StoredPartition:
        """Return the result in a record's value; raise `ValueError` for a value that no build writes."""
        try:
            stored: StoredPartition = decode(cls, value, "the result of a partition")
        except ProgramError as error:
            raise ValueError(str(error)) from error
        if stored.value() != value:  # a default that is written out: each result has a single form
            raise ValueError("not in the form in which a build writes the result of a partition")
        return stored

    def value(self) -> dict[str, object]:
        value: dict[str, object] = encode(self)
        return value


FIELDS = frozenset(field.name for field in fields(StoredPartition))  # the keys of every `value()`: no field is left out
