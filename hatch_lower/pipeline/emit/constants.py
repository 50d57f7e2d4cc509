"""Constants of programs: shared memory, equal bytes, and the storages of the constants file.

A constant lies in a storage: the dense run of memory that a group of overlapping constants spans. So ties, views,
transposed and expanded tensors keep their structure when the file is mapped. A storage is named by its content, so that
methods, recipes and equal tensors of a model share storages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import EdgeError
from hatch_lower.exir.graph.state import layouts
from hatch_lower.exir.graph.tensors import dtype_name, is_plain, span_bytes, span_length, storage_key, tensor_digest
from hatch_lower.format.constants import Constant, Storage, content_key
from hatch_lower.format.values import DTYPES


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
        if not is_same(known, use.tensor):
            raise EdgeError(
                f"two methods have different tensors under the name `{use.name}`",
                where=f"method `{use.method}`",
                hint="export all methods of a model from the same module",
            )
        if use.mutated:
            mutable.add(use.plan_name)
    return tensors, frozenset(mutable)


def is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left is right or place_of(left) == place_of(right):
        return True
    same_layout = (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
    return same_layout and tensor_digest(left) == tensor_digest(right)


def place_of(tensor: torch.Tensor) -> tuple[object, ...]:
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
    if not is_plain(value) or value.is_quantized or dtype_name(value.dtype) not in DTYPES:
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
