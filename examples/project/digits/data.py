"""Reading a split of the digits data."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

BRIGHTEST = 16


def read_split(path: Path) -> tuple[Tensor, Tensor]:
    """Return the images, float32 [n, 1, 8, 8] in 0..1, and their labels, int64 [n].

    The file holds `images`, uint8 [n, 8, 8] in 0..16, and `labels`, uint8 [n].
    """
    split = load_file(path)
    return split["images"].unsqueeze(1).float() / BRIGHTEST, split["labels"].long()
