"""The named data store: blobs that delegates find by name at run time, and share where their contents are equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hatch_lower.canonical import sha256_bytes
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.graph.tensors import span_bytes
from hatch_lower.exir.tensor_layout import NamedDataError, TensorLayout

CONSTANTS_TAG = "constants"  # the tag of data that lie in the model's constants file, beside its weights


@dataclass(frozen=True, slots=True)
class NamedDataStoreOutput:
    """The contents of a store: distinct blobs, and name to entry, for external files by tag."""

    buffers: Sequence[bytes]
    pte_data: Mapping[str, DataEntry]
    external_data: Mapping[str, Mapping[str, DataEntry]]


class NamedDataStore:
    """Collects named data; equal contents under several names are kept once."""

    def __init__(self) -> None:
        self._buffers: list[bytes] = []
        self._index: dict[str, int] = {}
        self._places: dict[str, str | None] = {}
        self._entries: dict[str | None, dict[str, DataEntry]] = {None: {}}

    def add_named_data(
        self,
        key: str,
        data: bytes | torch.Tensor,
        alignment: int | None = 1,
        external_tag: str | None = None,
        tensor_layout: TensorLayout | None = None,
    ) -> None:
        """Add data under a name, which is unique over the program's data and all external files.

        The same data under the same name again only change the entry's alignment, which then satisfies both calls; the
        data stay in the first file.

        Args:
            data: bytes, or a tensor, whose memory and layout are taken.
            alignment: the data's position is a multiple of this number of bytes; `None` is 1.
            external_tag: the file for the data, `CONSTANTS_TAG` for weights; `None`: with the program.

        Raises:
            ValueError: as `NamedDataError`, for a name with other data or another layout, an alignment below 1, or a
                layout that is not the tensor's.
        """
        wanted = 1 if alignment is None else alignment
        if wanted <= 0:
            raise NamedDataError(
                "an alignment must be greater than 0", where=f"named data `{key}`", found=str(alignment)
            )
        own = TensorLayout.from_tensor(data) if isinstance(data, torch.Tensor) else None
        layout = merge_layouts(key, tensor_layout, own)
        blob = blob_of(data)
        self._add(key, blob, sha256_bytes(blob), wanted, external_tag, layout)

    def _add(
        self, key: str, blob: bytes, digest: str, alignment: int, tag: str | None, layout: TensorLayout | None
    ) -> None:
        if key not in self._places:
            if digest not in self._index:
                self._index[digest] = len(self._buffers)
                self._buffers.append(blob)
            self._places[key] = tag
            self._entries.setdefault(tag, {})[key] = DataEntry(self._index[digest], alignment, layout)
            return
        entries = self._entries[self._places[key]]
        entry = entries[key]
        if self._index.get(digest) != entry.buffer_index:
            raise NamedDataError(
                f"Duplicate key {key} with different data",
                where=f"named data `{key}`",
                found=f"{len(self._buffers[entry.buffer_index])} bytes, then {len(blob)} different bytes",
                hint="name data by its content, or by the constant that it comes from",
            )
        entries[key] = replace(
            entry,
            alignment=math.lcm(entry.alignment, alignment),
            tensor_layout=merge_layouts(key, entry.tensor_layout, layout),
        )

    @property
    def buffers(self) -> list[bytes]:
        return self._buffers

    @property
    def pte_data(self) -> dict[str, DataEntry]:
        return self._entries[None]

    @property
    def external_data(self) -> dict[str, dict[str, DataEntry]]:
        return {tag: entries for tag, entries in self._entries.items() if tag is not None and entries}

    def get_named_data_store_output(self) -> NamedDataStoreOutput:
        # copies: later additions to the store are not included
        external = {tag: dict(entries) for tag, entries in self.external_data.items()}
        return NamedDataStoreOutput(tuple(self._buffers), dict(self.pte_data), external)

    def merge_named_data_store(self, other: NamedDataStoreOutput) -> None:
        """Add the contents of another store, sharing its bytes.

        Raises:
            ValueError: as `NamedDataError`, if a name has different data in the two stores.
        """
        digests = [sha256_bytes(blob) for blob in other.buffers]
        for tag, entries in [(None, other.pte_data), *other.external_data.items()]:
            for key, entry in entries.items():
                index = entry.buffer_index
                self._add(key, other.buffers[index], digests[index], entry.alignment, tag, entry.tensor_layout)


def blob_of(data: bytes | torch.Tensor) -> bytes:
    if not isinstance(data, torch.Tensor):
        return bytes(data)
    local = data.detach().cpu()  # a variable: the span does not keep the tensor alive
    return bytes(span_bytes(local))


def merge_layouts(key: str, one: TensorLayout | None, other: TensorLayout | None) -> TensorLayout | None:
    if one is not None and other is not None and one != other:
        raise NamedDataError(
            "the layouts of one blob differ",
            where=f"named data `{key}`",
            found=f"{one} and {other}",
            hint="leave `tensor_layout` out where `data` is a tensor",
        )
    return other if one is None else one
