"""The form in which the cache keeps what a backend made of one partition: JSON, with blobs by their digests.

It is the one definition: what is stored is written from it, and what is read, from this machine or from a cache that
others write to, is checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hatch_lower.cache.entry import DIGEST
from hatch_lower.format.codec import decode, encode

SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """How a blob is a tensor; the fields are those of `TensorLayout`."""

    scalar_type: str
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]

    def __post_init__(self) -> None:
        check(isinstance(self.scalar_type, str))
        check(all(type(number) is int and number >= 0 for number in (*self.sizes, *self.dim_order)))


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One name's blob: its index among the buffers, its alignment in bytes, and how it is a tensor, if it is one."""

    buffer: int
    alignment: int
    layout: StoredLayout | None

    def __post_init__(self) -> None:
        check(type(self.buffer) is int and self.buffer >= 0 and type(self.alignment) is int and self.alignment > 0)


@dataclass(frozen=True, slots=True)
class StoredData:
    """Named data: the digests of the buffers, and the entries that refer to them, in the order of the backend."""

    buffers: tuple[str, ...]
    program: tuple[tuple[str, StoredEntry], ...]
    external: tuple[tuple[str, tuple[tuple[str, StoredEntry], ...]], ...]

    def __post_init__(self) -> None:
        groups = [self.program, *(entries for _, entries in self.external)]
        check(all(map(is_digest, self.buffers)) and all(isinstance(tag, str) for tag, _ in self.external))
        for name, entry in (pair for group in groups for pair in group):
            check(isinstance(name, str) and entry.buffer < len(self.buffers))


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """A `PreprocessResult`, field by field; its bytes are a blob, identifiers of instructions are numbers or names."""

    blob: str
    data: StoredData | None
    debug_handle_map: tuple[tuple[Any, tuple[int, ...]], ...] | None
    delegate_info_meta: Any
    suffix: str
    requirements: tuple[str, ...]
    target: Mapping[str, str] | None
    info: Mapping[str, Any]
    head: int | None = None

    def __post_init__(self) -> None:
        check(is_digest(self.blob))
        check(isinstance(self.suffix, str) and SUFFIX.fullmatch(self.suffix) is not None)
        check(all(isinstance(text, str) for text in self.requirements))
        check(self.target is None or self.target.keys() == {"system", "machine", "isa"})
        check(self.head is None or (type(self.head) is int and self.head > 0))
        for identifier, handles in self.debug_handle_map or ():
            check(isinstance(identifier, (int, str)))
            check(all(type(handle) is int and handle > 0 for handle in handles))

    @classmethod
    def read(cls, value: Any) -> StoredPartition:
        """Return what `value`, the value of a record, says.

        Raises:
            ValueError: if a build cannot have written it.
        """
        try:
            stored: StoredPartition = decode(cls, value)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not the result of a partition: {error}") from error
        # the codec takes any sequence for a tuple, and any mapping for the fields of a dataclass
        check(stored.value() == value)
        return stored

    def value(self) -> dict[str, Any]:
        """Return it as the JSON value of a record."""
        value: dict[str, Any] = encode(self)
        return value if self.head is not None else {name: part for name, part in value.items() if name != "head"}


FIELDS = frozenset(field.name for field in fields(StoredPartition)) - {"head"}
"""Fields that every such value has."""


def is_digest(value: object) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def check(holds: bool) -> None:
    """Raise `ValueError` unless something holds that does in everything that a build writes."""
    if not holds:
        raise ValueError("not the result of a partition")
