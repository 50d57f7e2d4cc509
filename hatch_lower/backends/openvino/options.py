"""The options of the `openvino` backend, from a recipe's table to the run half."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hatch_lower.canonical import canonical_json
from hatch_lower.errors import BackendError
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.options import GivenOptions, is_number_from

KNOWN = ("device", "exclude", "finite-only", "threads")


@dataclass(frozen=True, slots=True)
class Options:
    """A recipe's options for this backend.

    Args:
        device: OpenVINO's name of the device that runs the partitions (`CPU`, `GPU.0`, `AUTO`).
        threads: how many threads a call uses; 0: as many as OpenVINO chooses.
        exclude: ATen overloads (`aten.gelu.default`) that are left to others.
        finite: the model computes with finite numbers only; else operators whose kernels lose a NaN are left out.
    """

    device: str = "CPU"
    threads: int = 0
    exclude: tuple[str, ...] = ()
    finite: bool = True

    def to_specs(self) -> list[CompileSpec]:
        """Return what shapes the result of one partition; which nodes it has is not among it."""
        return [
            CompileSpec("device", canonical_json(self.device)),
            CompileSpec("threads", canonical_json(self.threads)),
        ]


def parse_options(options: Mapping[str, Any]) -> Options:
    """Return the options of a recipe, given as TOML values.

    Raises:
        BackendError: naming every unknown or ill-typed option.
    """
    given = GivenOptions("openvino", options, KNOWN)
    found = Options(
        device=given.read("device", "CPU", lambda value: value and isinstance(value, str), 'a name such as "CPU"'),
        threads=given.read("threads", 0, is_number_from(0), "a number from 0 (OpenVINO chooses)"),
        exclude=given.excluded("aten.gelu.default"),
        finite=given.flag("finite-only", True),
    )
    given.check()
    return found


def options_from_specs(specs: Sequence[CompileSpec]) -> Options:
    """Return the options that compile specs carry.

    Raises:
        BackendError: for an unknown key or value.
    """
    try:
        values = {spec.key: json.loads(spec.value) for spec in specs}
    except ValueError as error:
        raise BackendError(
            "a compile spec of the backend `openvino` is no JSON",
            found=str(error),
            hint="make the specs with the backend's partitioner",
        ) from error
    return parse_options(values)
