"""The constants file: safetensors, written and hashed in a single pass; optionally behind the head of a `.ptd` file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import torch

from hatch_lower.exir.graph.tensors import dtype_name, span_bytes
from hatch_lower.format.delegates import DataLayout
from hatch_lower.format.values import DTYPES
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.emit.data_map import NamedPlace, data_map_head

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
