"""`DataEntry`: where a named blob is."""

from __future__ import annotations

from dataclasses import dataclass

from hatch_lower.exir.tensor_layout import TensorLayout


@dataclass(frozen=True, slots=True)
class DataEntry:
    """One name's blob: its index among the buffers, its alignment in bytes, and how it is a tensor, if it is one."""

    buffer_index: int
    alignment: int
    tensor_layout: TensorLayout | None = None
