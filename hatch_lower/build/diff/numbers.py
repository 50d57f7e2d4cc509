"""How much the numbers of two tensors differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hatch_lower.format.dtypes import DTYPES

NAMES = {stored.safetensors: name for name, stored in DTYPES.items()} | {"C64": "float32"}
"""Safetensors' name of a dtype to torch's; complex numbers are pairs of others."""
PIECE = 1 << 20
SHOWN = 3
CLOSE = 1e-4
"""Relative: numbers that differ by less are the same sum in another order."""
FAR = 1e-2


@dataclass(slots=True)
class NumberChange:
    """What differs between the numbers of two tensors of one dtype and shape.

    Args:
        dtype: as safetensors calls it.
        total: how many numbers there are.
        different: how many differ; 0 where only their bits do (-0, NaN), or the dtype is not known here.
        largest: the largest difference; infinite where one number is not finite.
        relative: the largest difference by the larger of the two numbers.
        first: the first few that differ, in the one tensor.
        second: the same in the other.
    """

    dtype: str
    total: int = 0
    different: int = 0
    largest: float = 0.0
    relative: float = 0.0
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()

    def text(self) -> str:
        if not self.different:
            return "equal numbers of other bits, or an unknown dtype"
        return (
            f"{self.different:,} of {self.total:,} numbers differ, by up to {self.largest:.2g}, "
            f"or {self.relative:.2g} of their size"
        )

    def sides(self) -> tuple[str, str]:
        more = ", …" * (self.different > SHOWN)
        one, other = (", ".join(f"{value:.9g}" for value in side) + more for side in (self.first, self.second))
        return one, other


def compare_numbers(dtype: str, first: memoryview, second: memoryview) -> NumberChange:
    change = NumberChange(dtype)
    name = NAMES.get(dtype)
    if name is None:
        return change
    size = DTYPES[name].size
    end = min(len(first), len(second)) // size * size
    change.total = end // size
    for start in range(0, end, PIECE):
        one, other = (bytearray(side[start : min(start + PIECE, end)]) for side in (first, second))
        if one != other:
            compare_piece(name, one, other, change)
    return change


def compare_piece(name: str, first: bytearray, second: bytearray, change: NumberChange) -> None:
    import torch  # only where numbers differ, and once all else is known

    exact = [torch.frombuffer(side, dtype=getattr(torch, name)) for side in (first, second)]
    one, other = (side.to(torch.float64) for side in exact)
    different = (one != other) & ~(one.isnan() & other.isnan())
    if name in ("int64", "uint64"):  # float64 has not all of them
        different = exact[0] != exact[1]
    one, other = one[different], other[different]
    if not len(one):
        return
    change.different += len(one)
    missing = SHOWN - len(change.first)
    change.first += tuple(one[:missing].tolist())
    change.second += tuple(other[:missing].tolist())
    distance = (one - other).abs()
    larger = torch.maximum(one.abs(), other.abs())
    # a number that is not finite is infinitely far from every other
    change.largest = max(change.largest, float(distance.nan_to_num(math.inf, math.inf).max()))
    change.relative = max(change.relative, float((distance / larger).nan_to_num(math.inf, math.inf).max()))
