"""The reference backend's blob: 8 bytes with the length of the plan, the plan, a safetensors file of its weights."""

from __future__ import annotations

from hatch_lower.errors import ProgramError

LENGTH_BYTES = 8


def join_blob(plan: bytes, weights: bytes) -> bytes:
    """Return the blob of a plan and its weights."""
    return len(plan).to_bytes(LENGTH_BYTES, "little") + plan + weights


def split_blob(data: bytes, where: str) -> tuple[bytes, bytes]:
    """Return the plan and the weights in a blob; `where` names the file.

    Raises:
        ProgramError: if it is too short to hold what its first bytes promise.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    end = LENGTH_BYTES + length
    if len(data) < LENGTH_BYTES or end > len(data):
        raise ProgramError(
            "a delegate of the reference backend is damaged",
            where=where,
            found=f"{len(data)} bytes instead of at least {end}",
            hint="install the package again, or build it again",
        )
    return data[LENGTH_BYTES:end], data[end:]
