"""The run half of the reference backend: a plan, run op by op.

Its blob is 8 bytes with the length of the plan, the plan, and a safetensors file of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode, parse_json
from hatch_lower.format.constants import Storage, TensorEntry
from hatch_lower.format.plan import read_plan
from hatch_lower.format.values import DTYPES
from hatch_lower.runtime.delegates import Delegate, DelegateBlob

if TYPE_CHECKING:
    from torch import Tensor

    from hatch_lower.format.plan import Plan
    from hatch_lower.runtime.executor import Executor
    from hatch_lower.runtime.timing import Timing

LENGTH_BYTES = 8
WEIGHTS = "the weights of a delegate of the reference backend are damaged"


class ReferenceDelegate(Delegate):
    """A partition's plan with its weights, and the state of the buffers inside."""

    timed: ClassVar[str] = "hatch_lower.backends.reference.timed:load_timed"

    def __init__(self, executor: Executor) -> None:
        (self._method,) = executor.methods.values()

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> ReferenceDelegate:
        return cls(read_executor(blob, None))

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        outputs: Sequence[object] = self._method(*inputs)
        return outputs


def read_executor(blob: DelegateBlob, timing: Timing | None) -> Executor:
    from hatch_lower.runtime.executor import execute_plan

    where = blob.path.name
    text, weights = split_blob(blob.path.read_bytes(), where)
    plan = read_plan(text, where)
    return execute_plan(plan, read_spans(plan, weights, where), {}, Path(), timing=timing)


def read_spans(plan: Plan, weights: bytes, where: str) -> list[Tensor]:
    try:
        begin = LENGTH_BYTES + int.from_bytes(weights[:LENGTH_BYTES], "little")
        header: Any = parse_json(weights[LENGTH_BYTES:begin], where)
        entries = [decode(TensorEntry, header[storage.key], where) for storage in plan.storages]
        data = memoryview(weights)[begin:]
        return [read_span(storage, entry, data) for storage, entry in zip(plan.storages, entries, strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(WEIGHTS, where, f"{type(error).__name__}: {error}") from error
    except ProgramError as error:
        raise damaged(WEIGHTS, where, error.found) from error


def read_span(storage: Storage, entry: TensorEntry, data: memoryview) -> Tensor:
    import torch

    first, last = entry.data_offsets
    content = bytearray(data[first:last])  # a copy, which the plan may change
    if entry.shape != (storage.length,) or len(content) != storage.length * DTYPES[storage.dtype].size:
        msg = f"{len(content)} bytes of a tensor {list(entry.shape)}, where {storage.length} elements are expected"
        raise ValueError(msg)
    dtype: torch.dtype = getattr(torch, storage.dtype)
    return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)


def join_blob(plan: bytes, weights: bytes) -> bytes:
    return len(plan).to_bytes(LENGTH_BYTES, "little") + plan + weights


def split_blob(data: bytes, where: str) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    end = LENGTH_BYTES + length
    if len(data) < LENGTH_BYTES or end > len(data):
        raise damaged(
            "a delegate of the reference backend is damaged", where, f"{len(data)} bytes instead of at least {end}"
        )
    return data[LENGTH_BYTES:end], data[end:]


def damaged(what: str, where: str, found: str) -> ProgramError:
    return ProgramError(what, where=where, found=found, hint="install the package again, or build it again")
