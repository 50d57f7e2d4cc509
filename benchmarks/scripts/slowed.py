"""A backend whose delegate is that of `reference`, slower by a share that it is told: for what the gate detects.

Its option `share` says by how much: `backends = [{ name = "slowed", share = 0.05 }]`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hatch_lower.backends.reference.claim import claim, is_operation
from hatch_lower.backends.reference.compile import ReferenceBackend
from hatch_lower.backends.reference.run import ReferenceDelegate
from hatch_lower.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from hatch_lower.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

    from hatch_lower.runtime.delegates import DelegateBlob


class SlowedDelegate(ReferenceDelegate):
    """Waits, busily, after each call for a share of its time."""

    share = 0.0

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> SlowedDelegate:
        loaded = super().load(blob, constants)
        assert isinstance(loaded, SlowedDelegate)
        loaded.share = float(blob.info["share"])
        return loaded

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        begin = time.perf_counter()
        outputs = super().run(inputs)
        end = begin + (time.perf_counter() - begin) * (1 + self.share)
        while time.perf_counter() < end:
            pass
        return outputs


class SlowedBackend(BackendDetails):
    """The compile half of `reference`, which passes the share on."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        (share,) = (float(spec.value) for spec in compile_specs)
        result = ReferenceBackend.preprocess(edge_program, [])
        return replace(result, info={**result.info, "share": share})

    @classmethod
    def partitioner(cls, options: Mapping[str, object]) -> Partitioner:
        return SlowedPartitioner(str(options.get("share", 0.0)))


class SlowedPartitioner(Partitioner):
    """Takes every operation."""

    def __init__(self, share: str) -> None:
        super().__init__()
        self._spec = DelegationSpec("slowed", [CompileSpec("share", share.encode())])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return claim(exported_program, self._spec, is_operation, "it is no operation on tensors")
