"""Constants of programs: shared memory, equal bytes, and the constants file, in safetensors or behind the head of a
`.ptd` file of ExecuTorch, written and hashed in a single pass.

A constant lies in a storage: the dense run of memory that a group of overlapping constants spans. So ties, views,
transposed and expanded tensors keep their structure when the file is mapped. A storage is named by its content, so
that methods, recipes and equal tensors of a model share storages.

The format is `extension/flat_tensor` of ExecuTorch: a flatbuffer with a header inside, followed by segments. Here a
safetensors file follows, and the segments lie inside.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import BackendError, EdgeError
from hatch_lower.exir.graph.state import layouts
from hatch_lower.exir.graph.tensors import (
    dtype_name,
    is_plain_tensor,
    span_bytes,
    span_length,
    storage_key,
    tensor_digest,
)
from hatch_lower.exir.scalar_type import ScalarType
from hatch_lower.format.constants import DATA_MAP_HEADER, DATA_MAP_MAGIC, Constant, DataLayout, Storage, content_key
from hatch_lower.format.values import DTYPES
from hatch_lower.frozen import Frozen


@dataclass(frozen=True, slots=True)
class ConstantUse:
    method: str
    name: str  # dotted name of the parameter or buffer, or name of the lifted tensor
    tensor: torch.Tensor
    mutated: bool = False  # whether the method changes the constant
    lifted: bool = False  # whether the constant is outside of the module's state

    @property
    def plan_name(self) -> str:
        # a lifted tensor's name is unique within its method only
        return f"{self.method}:{self.name}" if self.lifted else self.name


@dataclass(frozen=True, slots=True)
class Constants:
    storages: tuple[Storage, ...]  # in the plan's order
    constants: Mapping[str, Constant]  # plan name to the constant's place
    data: Mapping[str, torch.Tensor]  # storage key to its 1-D tensor


class SpanDigests:
    """Digests of memory, each span hashed once for all programs of a model; contents must not change."""

    def __init__(self) -> None:
        # keep the tensors alive, so that addresses are not reused
        self._known: dict[tuple[int, int], tuple[Future[str], torch.Tensor]] = {}
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="digests")

    def start(self, tensors: Iterable[torch.Tensor]) -> list[Future[str]]:
        # hashing releases the interpreter's lock
        pending = []
        for tensor in tensors:
            place = (tensor.data_ptr(), span_length(tensor) * tensor.element_size())
            if place not in self._known:
                self._known[place] = (self._pool.submit(sha256_bytes, span_bytes(tensor)), tensor)
            pending.append(self._known[place][0])
        return pending

    def digests(self, tensors: Sequence[torch.Tensor]) -> list[str]:
        return [digest.result() for digest in self.start(tensors)]


def name_constants(uses: Iterable[ConstantUse]) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    """Return the tensors of a model by plan name, and the names of tensors that a method changes."""
    tensors: dict[str, torch.Tensor] = {}
    mutable = set()
    for use in uses:
        known = tensors.setdefault(use.plan_name, use.tensor)
        if not is_same_constant(known, use.tensor):
            raise EdgeError(
                f"two methods have different tensors under the name `{use.name}`",
                where=f"method `{use.method}`",
                hint="export all methods of a model from the same module",
            )
        if use.mutated:
            mutable.add(use.plan_name)
    return tensors, frozenset(mutable)


def is_same_constant(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left is right or tensor_place(left) == tensor_place(right):
        return True
    same_layout = (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
    return same_layout and tensor_digest(left) == tensor_digest(right)


def tensor_place(tensor: torch.Tensor) -> tuple[object, ...]:
    return (storage_key(tensor), tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def collect_constants(tensors: Mapping[str, torch.Tensor], mutable: frozenset[str], digests: SpanDigests) -> Constants:
    """Return a program's storages and constants from tensors on the CPU, by plan name."""
    # Constants that overlap a mutable constant are mutable, too, and are not merged with other constants by content:
    # a write to either would appear in both.
    plain = {name: plain_tensor(name, tensor) for name, tensor in tensors.items()}
    groups: dict[int, list[str]] = {}
    for name, layout in zip(plain, layouts(list(plain.values())), strict=True):
        groups.setdefault(layout.group, []).append(name)
    storages: list[Storage] = []
    constants: dict[str, Constant] = {}
    data: dict[str, torch.Tensor] = {}
    numbers: dict[str, int] = {}
    spans = [spanned([plain[name] for name in names]) for names in groups.values()]
    contents = digests.digests([span for span, _ in spans])
    for names, (span, begin), content in zip(groups.values(), spans, contents, strict=True):
        dtype = dtype_name(span.dtype)
        key = content_key(dtype, content)
        changes = any(name in mutable for name in names)
        number = len(storages) if changes else numbers.setdefault(key, len(storages))
        if number == len(storages):
            storages.append(Storage(key, dtype, span.numel()))
            data[key] = span
        for name in names:
            tensor = plain[name]
            offset = (tensor.storage_offset() * tensor.element_size() - begin) // tensor.element_size()
            constants[name] = Constant(
                number,
                dtype_name(tensor.dtype),
                tuple(tensor.shape),
                tensor.stride(),
                offset if tensor.numel() else 0,
                changes,
            )
    return Constants(tuple(storages), constants, data)


def plain_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach()
    if not is_plain_tensor(value) or value.is_quantized or dtype_name(value.dtype) not in DTYPES:
        raise EdgeError(
            "a constant is not a plain tensor on the CPU, and cannot be packaged",
            where=f"`{name}`",
            found=f"{type(value).__name__}, layout {value.layout}, dtype {value.dtype}, on {value.device}",
            hint="move the module to the CPU, and use dense tensors, before the export",
        )
    return value.resolve_conj().resolve_neg()


def spanned(members: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return the 1-D tensor over the memory that overlapping tensors span, and its begin in bytes."""
    # The dtype is the tensors', or `uint8` if dtypes differ or safetensors lacks the dtype; a span of `uint8` begins
    # and ends at multiples of every dtype's size.
    sizes = [member.element_size() for member in members]
    begins = [int(member.storage_offset()) * size for member, size in zip(members, sizes, strict=True)]
    ends = [begin + span_length(member) * size for member, begin, size in zip(members, begins, sizes, strict=True)]
    begin, end = min(begins), max(ends)
    dtype = members[0].dtype
    storage = members[0].untyped_storage()
    if all(member.dtype is dtype for member in members) and DTYPES[dtype_name(dtype)].safetensors is not None:
        span = torch.empty(0, dtype=dtype)
        return span.set_(storage, begin // sizes[0], ((end - begin) // sizes[0],), (1,)), begin
    unit = max(sizes)
    begin -= begin % unit
    raw = torch.empty(0, dtype=torch.uint8).set_(storage, begin, (end - begin,), (1,))
    return torch.nn.functional.pad(raw, (0, -raw.numel() % unit)), begin


def merge_storages(programs: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    merged = {key: tensor for data in programs for key, tensor in data.items()}
    return {key: merged[key] for key in sorted(merged)}


HEADER_BYTES = 48  # of ExecuTorch's header inside the flatbuffer, with its padding


class NamedPlace(Frozen):
    """A name for bytes of a file, and the layout of the bytes as a tensor."""

    name: str
    begin: int  # in bytes from the end of the head
    end: int
    layout: DataLayout


def data_map_head(places: Sequence[NamedPlace], size: int, alignment: int) -> bytes:
    """Return the head for `size` bytes of data; its length is a multiple of `alignment`."""
    flatbuffer = write_flatbuffer(sorted(places, key=lambda place: (place.begin, place.end, place.name)))
    begin = -(-(len(flatbuffer) + HEADER_BYTES) // alignment) * alignment
    root = int.from_bytes(flatbuffer[:4], "little") + HEADER_BYTES
    facts = (HEADER_BYTES, len(flatbuffer), begin, size)
    header = DATA_MAP_HEADER.pack(DATA_MAP_MAGIC, DATA_MAP_HEADER.size, *facts).ljust(HEADER_BYTES, b"\0")
    return (root.to_bytes(4, "little") + flatbuffer[4:8] + header + flatbuffer[8:]).ljust(begin, b"\0")


def write_flatbuffer(places: Sequence[NamedPlace]) -> bytes:
    try:
        from flatbuffers import Builder
    except ModuleNotFoundError as error:
        raise BackendError(
            "named data in the constants file needs the package `flatbuffers`, which is not installed",
            found=str(error),
            hint="add the package to `[build-system] requires`, or use the extra `executorch`",
        ) from error
    builder = Builder()
    spans = list(dict.fromkeys((place.begin, place.end) for place in places))
    named = [
        table(
            builder,
            key=("UOffsetTRelative", builder.CreateString(place.name)),
            segment=("Uint32", spans.index((place.begin, place.end))),
            layout=write_layout(builder, place.layout),
        )
        for place in places
    ]
    segments = [table(builder, offset=("Uint64", begin), size=("Uint64", end - begin)) for begin, end in spans]
    root = table(
        builder,
        version=None,  # 0
        segments=("UOffsetTRelative", vector(builder, "UOffsetTRelative", 4, segments)),
        named=("UOffsetTRelative", vector(builder, "UOffsetTRelative", 4, named)),
    )
    builder.Finish(root, file_identifier=b"FT01")
    return bytes(builder.Output())


def write_layout(builder: object, layout: DataLayout) -> tuple[str, int] | None:
    number = next((kind for kind in ScalarType if kind.dtype == getattr(torch, layout.dtype)), None)
    if number is None:  # ExecuTorch lacks some dtypes
        return None
    written = table(
        builder,
        dtype=("Int8", number),
        sizes=("UOffsetTRelative", vector(builder, "Int32", 4, layout.sizes)),
        order=("UOffsetTRelative", vector(builder, "Uint8", 1, layout.dim_order)),
    )
    return "UOffsetTRelative", written


def table(builder: Any, **fields: tuple[str, int] | None) -> int:
    # fields in the order of the schema; a field that is `None` has its default
    builder.StartObject(len(fields))
    for slot, value in enumerate(fields.values()):
        if value is not None:
            kind, number = value
            getattr(builder, f"Prepend{kind}Slot")(slot, number, 0)
    end: int = builder.EndObject()
    return end


def vector(builder: Any, kind: str, size: int, items: Sequence[int]) -> int:
    builder.StartVector(size, len(items), size)
    for item in reversed(items):
        getattr(builder, f"Prepend{kind}")(item)
    end: int = builder.EndVector()
    return end


# bytes: the data begin at a multiple of `ALIGNMENT`; each tensor begins at a multiple of the greatest power of two, up
# to `ALIGNMENT`, that divides the tensor's size
ALIGNMENT = 64

PIECE = 1 << 22


class WrittenConstants(Frozen):
    """The manifest's facts about the constants file: size in bytes, sha256 of the file, sha256 before the data."""

    size: int
    sha256: str
    header_sha256: str


class NamedStorage(Frozen):
    """A storage that delegates find by name."""

    key: str
    layout: DataLayout


def write_constants(
    path: Path, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage] = {}
) -> WrittenConstants:
    """Write contiguous tensors on the CPU, of any dtype, as a safetensors file, without copies."""
    # `names` are the names by which delegates find storages
    # the bytes depend only on names, keys, dtypes, lengths and contents
    keys = keys_in_order(storages)
    header = make_header(keys, storages)
    if names:
        ends = list(accumulate((storages[key].nbytes for key in keys), initial=len(header)))
        spans = {key: (begin, end) for key, begin, end in zip(keys, ends[:-1], ends[1:], strict=True)}
        places = [NamedPlace(name, *spans[named.key], named.layout) for name, named in names.items()]
        header = data_map_head(places, ends[-1], ALIGNMENT) + header
    total = hashlib.sha256(header)
    size = len(header)
    with path.open("wb") as file, ThreadPoolExecutor(1) as hashing:
        file.write(header)
        for key in keys:
            data = span_bytes(storages[key])
            for begin in range(0, len(data), PIECE):
                piece = data[begin : begin + PIECE]
                hashing.submit(total.update, piece)
                file.write(piece)
            size += len(data)
    return WrittenConstants(size, total.hexdigest(), hashlib.sha256(header).hexdigest())


def keys_in_order(storages: Mapping[str, torch.Tensor]) -> list[str]:
    # an order that aligns each tensor, at least for its dtype, without gaps, which the format forbids
    return sorted(storages, key=lambda key: (-math.gcd(ALIGNMENT, storages[key].nbytes), key))


def make_header(keys: list[str], storages: Mapping[str, torch.Tensor]) -> bytes:
    entries = {}
    begin = 0
    for key in keys:
        tensor = storages[key]
        name = DTYPES[dtype_name(tensor.dtype)].safetensors
        shape = [*tensor.shape, tensor.element_size()] if name is None else list(tensor.shape)
        entries[key] = {"dtype": name or "U8", "shape": shape, "data_offsets": [begin, begin + tensor.nbytes]}
        begin += tensor.nbytes
    text = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def constants_bytes(storages: Mapping[str, torch.Tensor]) -> bytes:
    """Return the file's bytes, for a blob with weights inside, or for check data, whose tensors have any shape."""
    keys = keys_in_order(storages)
    return b"".join([make_header(keys, storages), *(span_bytes(storages[key]) for key in keys)])
