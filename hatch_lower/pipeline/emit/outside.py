"""Find the storages of a model whose bytes are in published files, so that the wheel can leave the storages out.

Names do not count: a storage is found by dtype and bytes, as a whole tensor of a file or as a run inside a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from hatch_lower.canonical import sha256_bytes
from hatch_lower.exir.graph.tensors import dtype_name
from hatch_lower.format.constants import Storage, content_key
from hatch_lower.format.plan import Plan
from hatch_lower.format.values import DTYPES
from hatch_lower.format.weights import StorageSpan, Weights, is_aligned
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.checkpoint import Checkpoint, CheckpointTensor, LocalSource, read_checkpoint

SMALLEST_RUN = 1024  # bytes of a storage to search inside a tensor; smaller storages may match by chance
WINDOW = 8  # first bytes of a storage, for the search
LEAST_STEP = 16  # elements
MOST_PLACES = 1 << 19  # possible begins of a storage in a tensor; larger tensors are not searched
MOST_TRIES = 64  # compared places with equal first bytes

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

OTHER_DTYPE = "of another dtype in the files"
OTHER_VALUES = "with other values in the files"
ABSENT = "absent from the files: folded, or made by the export"


class Outside(Frozen):
    weights: Weights
    copied: int  # bytes that each load copies, because of their alignment in the file


def find_outside(storages: Mapping[str, torch.Tensor], sources: Sequence[LocalSource]) -> Outside:
    """Return the places of storages in the files; sources without storages are left out."""
    checkpoints = [read_checkpoint(source) for source in sources]
    described = {key: describe_storage(key, tensor) for key, tensor in storages.items() if tensor.numel()}
    spans = whole_tensors(described, checkpoints)
    rest = {key: storages[key] for key in described if key not in spans}
    for position, checkpoint in enumerate(checkpoints):
        for key, begin, end in find_runs(rest, checkpoint):
            sha256 = sha256_bytes(checkpoint.content[begin:end])
            if content_key(described[key].dtype, sha256) == key:
                spans[key] = StorageSpan(position, begin, end, sha256)
                del rest[key]
    return Outside(
        used_only(spans, sources),
        sum(span.end - span.begin for key, span in spans.items() if not is_aligned(described[key], span)),
    )


def describe_storage(key: str, tensor: torch.Tensor) -> Storage:
    return Storage(key, dtype_name(tensor.dtype), tensor.numel())


def used_only(spans: Mapping[str, StorageSpan], sources: Sequence[LocalSource]) -> Weights:
    used = sorted({span.source for span in spans.values()})
    numbers = {position: number for number, position in enumerate(used)}
    renumbered = {key: replace(span, source=numbers[span.source]) for key, span in sorted(spans.items())}
    return Weights(tuple(sources[position].source() for position in used), renumbered)


def whole_tensors(storages: Mapping[str, Storage], checkpoints: Sequence[Checkpoint]) -> dict[str, StorageSpan]:
    """Return the spans of storages that are whole tensors of a file: the first aligned tensor, else the first."""
    kinds = {(DTYPES[storage.dtype].safetensors, storage.nbytes): storage.dtype for storage in storages.values()}
    tensors = [
        (position, checkpoint.content, tensor)
        for position, checkpoint in enumerate(checkpoints)
        for tensor in checkpoint.tensors
        if (tensor.dtype, tensor.end - tensor.begin) in kinds
    ]
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(lambda found: sha256_bytes(found[1][found[2].begin : found[2].end]), tensors))
    spans: dict[str, StorageSpan] = {}
    for (position, _, tensor), sha256 in zip(tensors, digests, strict=True):
        key = content_key(kinds[tensor.dtype, tensor.end - tensor.begin], sha256)
        span = StorageSpan(position, tensor.begin, tensor.end, sha256)
        if key in storages and (
            key not in spans or (is_aligned(storages[key], span) and not is_aligned(storages[key], spans[key]))
        ):
            spans[key] = span
    return spans


def find_runs(storages: Mapping[str, torch.Tensor], checkpoint: Checkpoint) -> Iterator[tuple[str, int, int]]:
    """Yield storages that are part of a file's tensor, with their begin and end in the file."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in storages.values()):
        wanted = {
            key: tensor.view(INTEGERS[tensor.element_size()])
            for key, tensor in storages.items()
            if tensor.dtype is dtype and tensor.nbytes >= SMALLEST_RUN
        }
        first = {key: int(byte_windows(values, len(values))[0]) for key, values in wanted.items()}
        name = DTYPES[dtype_name(dtype)].safetensors
        for tensor in checkpoint.tensors:
            if tensor.dtype != name or not any(len(values) < math.prod(tensor.shape) for values in wanted.values()):
                continue
            content = torch.frombuffer(checkpoint.content[tensor.begin : tensor.end], dtype=INTEGERS[dtype.itemsize])
            for key, place in search(wanted, first, content, step_of(tensor.shape)):
                begin = tensor.begin + place * dtype.itemsize
                yield key, begin, begin + wanted.pop(key).nbytes
                del first[key]


def step_of(shape: Sequence[int]) -> int:
    """Return a number of elements: parts begin at its multiples; the length of a row, or of a group of short rows."""
    if len(shape) < 2:
        return 1
    steps = [math.prod(shape[dim:]) for dim in range(len(shape) - 1, 0, -1)]
    return next((step for step in steps if step >= LEAST_STEP), steps[-1])


def search(
    storages: Mapping[str, torch.Tensor], first: Mapping[str, int], content: torch.Tensor, step: int
) -> list[tuple[str, int]]:
    """Return the storages inside a file's tensor, all read as integers, and the element at which each begins."""
    # `first` has the first bytes of each storage
    if len(content) > step * MOST_PLACES:
        return []
    places = byte_windows(content, step)
    wanted = torch.tensor(sorted(set(first.values())))
    at = torch.searchsorted(wanted, places).clamp_(max=len(wanted) - 1)
    hits = (wanted[at] == places).nonzero()[:, 0]
    found = []
    for key, window in first.items() if len(hits) else ():
        values = storages[key]
        for hit in hits[places[hits] == window][:MOST_TRIES].tolist():
            if torch.equal(content[hit * step : hit * step + len(values)], values):
                found.append((key, hit * step))
                break
    return found


def byte_windows(values: torch.Tensor, step: int) -> torch.Tensor:
    """Return, as integers, the 8 bytes from each element at a multiple of a step."""
    size = values.element_size()
    count = WINDOW // size
    length = len(values) - count + 1
    result = values[:length:step].to(torch.int64)
    for offset in range(1, count):
        # combine the elements like digits of a number; overflow beyond 64 bits is dropped equally on both sides
        result = (result << (8 * size)) + values[offset : offset + length : step]
    return result


# bytes that stay in the wheel, with reasons


def kept_bytes(
    storages: Mapping[str, torch.Tensor], plans: Iterable[Plan], sources: Sequence[LocalSource]
) -> dict[str, int]:
    """Return the bytes of storages that stay in the wheel, by reason, the largest number first."""
    tensors = [tensor for source in sources for tensor in read_checkpoint(source).tensors]
    known: dict[str, CheckpointTensor | None] = {}
    for tensor in tensors:
        for name in endings(tensor.name):
            # an ending that several names share is ambiguous
            known[name] = tensor if name not in known or known[name] == tensor else None
    known |= {tensor.name: tensor for tensor in tensors}
    names: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    for plan in plans:
        for name, constant in plan.constants.items():
            names.setdefault(plan.storages[constant.storage].key, []).append(name)
        for entry in plan.delegates:
            owners |= {plan.storages[data.storage].key: entry.backend for data in entry.named.values()}
    kept: dict[str, int] = {}
    for key, storage in storages.items():
        if not storage.numel():
            continue
        reason = f"read by `{owners[key]}` from its own file" if key in owners else ABSENT
        if key not in owners and (namesake := find_namesake(names.get(key, ()), known)) is not None:
            is_same = namesake.dtype == DTYPES[dtype_name(storage.dtype)].safetensors
            reason = OTHER_VALUES if is_same else OTHER_DTYPE
        kept[reason] = kept.get(reason, 0) + storage.nbytes
    return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))


def find_namesake(names: Iterable[str], known: Mapping[str, CheckpointTensor | None]) -> CheckpointTensor | None:
    # the model may be a part of the saved model, or contain the saved model
    for name in names:
        for ending in endings(name):
            if (tensor := known.get(ending)) is not None:
                return tensor
    return None


def endings(name: str) -> Iterator[str]:
    """Yield the endings of a dotted name, the longest first: `encoder.0.weight`, `0.weight`, but no single word."""
    parts = name.split(".")
    for begin in range(max(len(parts) - 1, 1)):
        yield ".".join(parts[begin:])
