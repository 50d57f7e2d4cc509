"""`DataEntry`: the location and layout of a named blob."""

from __future__ import annotations

from dataclasses import dataclass

from hatch_lower.exir.tensor_layout import TensorLayout


@dataclass(frozen=True, slots=True)
class DataEntry:
    """A named blob: its index among the buffers, its alignment in bytes, and for a tensor its layout."""

    buffer_index: int
    alignment: int
    tensor_layout: TensorLayout | None = None
