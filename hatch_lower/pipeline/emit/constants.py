"""Constants of programs: which tensors share memory, which hold the same bytes, and the one file that has them all.

A constant lies in a storage: the dense run of memory that it, and every constant that overlaps it, spans. So ties,
views, transposed and expanded tensors stay what they are when the file is mapped. Storages are named by their content,
so methods, recipes and equal tensors of one model share them without knowing of each other.
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
    name: str  # the parameter's or buffer's dotted name, or the lifted tensor's
    tensor: torch.Tensor
    mutated: bool = False  # whether the method changes it
    lifted: bool = False  # whether it is no part of the module

    @property
    def plan_name(self) -> str:
        # a lifted tensor's name means something in its method only
        return f"{self.method}:{self.name}" if self.lifted else self.name


@dataclass(frozen=True, slots=True)
class Constants:
    storages: tuple[Storage, ...]  # as the plan lists them
    constants: Mapping[str, Constant]  # plan name to the constant's place
    data: Mapping[str, torch.Tensor]  # storage key to the 1-D tensor to write under it


class SpanDigests:
    """Digests of memory, each hashed once for all programs of one model; its contents must not change."""

    def __init__(self) -> None:
        # the tensors are kept alive, so that their addresses are not used again
        self._known: dict[tuple[int, int], tuple[Future[str], torch.Tensor]] = {}
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="digests")

    def start(self, tensors: Iterable[torch.Tensor]) -> list[Future[str]]:
        # hashing leaves the interpreter to other threads
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
    """Return the tensors of a model by plan name, and the names of those that a method changes."""
    tensors: dict[str, torch.Tensor] = {}
    mutable = set()
    for use in uses:
        known = tensors.setdefault(use.plan_name, use.tensor)
        if not is_same(known, use.tensor):
            raise EdgeError(
                f"two methods have different tensors under the name `{use.name}`",
                where=f"method `{use.method}`",
                hint="export all methods of a model from one module",
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
    # All constants that overlap a mutable one are mutable too, and none of them is merged with others by content: what
    # one method writes would show in both.
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
            hint="move the module to the CPU, and make it of dense tensors, before it is exported",
        )
    return value.resolve_conj().resolve_neg()


def spanned(members: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return the 1-D tensor over all memory that overlapping tensors span, and where it begins in bytes."""
    # It has their dtype, or `uint8` where they differ or safetensors has no word for it; then it begins and ends where
    # each of the dtypes may.
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
