"""The constants file: safetensors, written from mapped memory in one pass that also digests it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from hatch_lower.exir.graph.tensors import dtype_name, span_bytes
from hatch_lower.format.values import DTYPES

ALIGNMENT = 64  # bytes: the data, and in it each tensor whose size is a multiple of this, begin at multiples of this

PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class WrittenConstants:
    """What the manifest says of the constants file: bytes, sha256 of all and of the part before the data."""

    size: int
    sha256: str
    header_sha256: str


def write_constants(path: Path, storages: Mapping[str, torch.Tensor]) -> WrittenConstants:
    """Write contiguous tensors on the CPU, of any dtype, as a safetensors file; none is copied."""
    # the bytes depend on nothing but keys, dtypes, lengths and contents
    with path.open("wb") as file:
        return write_to(file, storages)


def write_to(file: BinaryIO, storages: Mapping[str, torch.Tensor]) -> WrittenConstants:
    keys = sorted(storages, key=lambda key: place_in_file(key, storages[key]))
    header = make_header(keys, storages)
    total = hashlib.sha256(header)
    size = len(header)
    file.write(header)
    with ThreadPoolExecutor(1) as hashing:
        for key in keys:
            data = span_bytes(storages[key])
            for begin in range(0, len(data), PIECE):
                piece = data[begin : begin + PIECE]
                hashing.submit(total.update, piece)
                file.write(piece)
            size += len(data)
    return WrittenConstants(size, total.hexdigest(), hashlib.sha256(header).hexdigest())


def place_in_file(key: str, tensor: torch.Tensor) -> tuple[bool, int, str]:
    # Each tensor is aligned for its dtype without gaps, which the format forbids: sizes that are multiples of the
    # alignment come first and keep it, the rest follows by falling element size.
    return (tensor.numel() * tensor.element_size() % ALIGNMENT != 0, -tensor.element_size(), key)


def make_header(keys: list[str], storages: Mapping[str, torch.Tensor]) -> bytes:
    entries = {}
    begin = 0
    for key in keys:
        tensor = storages[key]
        size = tensor.numel() * tensor.element_size()
        name = DTYPES[dtype_name(tensor.dtype)].safetensors
        shape = [*tensor.shape, tensor.element_size()] if name is None else list(tensor.shape)
        entries[key] = {"dtype": name or "U8", "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def constants_bytes(storages: Mapping[str, torch.Tensor]) -> bytes:
    """Return the same file in memory, for a blob that holds its weights, or for tensors of any shape to check with."""
    keys = sorted(storages, key=lambda key: place_in_file(key, storages[key]))
    return b"".join([make_header(keys, storages), *(span_bytes(storages[key]) for key in keys)])
