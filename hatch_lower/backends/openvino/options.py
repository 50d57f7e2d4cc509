"""The options of the `openvino` backend, from a recipe's table to the run half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hatch_lower.exir.backend.backend_details import CompileSpec
from hatch_lower.exir.backend.options import GivenOptions, is_number_from, json_specs

BACKEND_ID = "openvino"


@dataclass(frozen=True, slots=True)
class OpenvinoOptions:
    # OpenVINO's name of the device that runs the partitions (`CPU`, `GPU.0`, `AUTO`)
    device: str = "CPU"
    # how many threads a call uses; 0: as many as OpenVINO chooses
    threads: int = 0
    # ATen overloads (`aten.gelu.default`) that are left to other backends
    exclude: tuple[str, ...] = ()
    # the model computes with finite numbers only; else operators whose kernels lose a NaN are left out
    finite: bool = True

    def to_specs(self) -> list[CompileSpec]:
        # The settings that shape the result of a partition. The choice of nodes is not among them.
        return json_specs({"device": self.device, "threads": self.threads})


def parse_options(options: Mapping[str, object]) -> OpenvinoOptions:
    given = GivenOptions(BACKEND_ID, options)
    parsed = OpenvinoOptions(
        device=given.read("device", "CPU", lambda value: value and isinstance(value, str), 'a name such as "CPU"'),
        threads=given.read("threads", 0, is_number_from(0), "a number from 0 (OpenVINO chooses)"),
        exclude=given.excluded("aten.gelu.default"),
        finite=given.flag("finite-only", True),
    )
    given.check()
    return parsed
