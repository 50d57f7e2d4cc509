"""Options of `to_edge` and its like."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from hatch_lower.runtime.torch_private.operators import OpOverload


@dataclass(frozen=True, slots=True)
class EdgeCompileConfig:
    """How programs are converted and checked; the names are ExecuTorch's."""

    _check_ir_validity: bool = True  # against the rules of the dialect, when programs are finished
    _skip_dim_order: bool = False  # without effect: memory formats stay arguments of ATen's operators here
    _core_aten_ops_exception_list: list[OpOverload] | None = field(
        default_factory=list
    )  # may stay though not core ATen
    preserve_ops: list[OpOverload] = field(default_factory=list)  # stay whole, whether a backend takes them or not

    def exempt(self) -> frozenset[OpOverload]:
        return frozenset((*(self._core_aten_ops_exception_list or ()), *self.preserve_ops))


class ExecutorchBackendConfig(SimpleNamespace):
    """Options of ExecuTorch's own program format, taken so that calls can stay as they are; they have no effect."""
