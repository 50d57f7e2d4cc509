"""A bench of `hatch-lower tune` with scripted candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.tune.candidates import TunedCandidate
from hatch_lower.cli.measure.tune.lowered import LeftOutError, LoweredCandidate
from hatch_lower.cli.measure.tune.race import EAGER, Heat
from hatch_lower.config.settings import Metadata, Settings, read_settings
from hatch_lower.errors import LowerError
from hatch_lower.format.evidence import MeasuredAccuracy

SECONDS = {"default": 1.2, "portable": 1.3, "onnxruntime": 0.5, "openvino": 1.1, "executorch": 2.0}
BYTES = {"default": 700, "portable": 699, "onnxruntime": 130, "openvino": 230, "executorch": 900}


class ScriptedBench:
    """Candidates of known times and sizes; each heat takes a second of the clock."""

    least = 0.0  # seconds of a heat, by the calls of eager
    calls = ((FigureSubject("digits", "", "forward", "", 2), {}),)

    def __init__(
        self,
        faults: Mapping[str, BaseException] = {},
        memory: Mapping[str, int] = {},
        programs: Mapping[str, str] = {},
    ) -> None:
        self.faults = faults
        self.programs = programs  # of candidates whose program is another candidate's
        self.memory = memory
        self.notes: dict[str, None] = {}
        self.samples: dict[str, list[tuple[float, ...]]] = {}
        self.now = 0.0
        self.open: set[str] = set()
        self.order: list[str] = []

    @contextmanager
    def lowered(self, candidate: TunedCandidate) -> Iterator[LoweredCandidate]:
        self.order.append(candidate.name)
        if isinstance(fault := self.faults.get(candidate.name), (LowerError, LeftOutError)):
            raise fault
        self.open.add(candidate.name)
        try:
            yield LoweredCandidate(
                candidate,
                SimpleNamespace(),
                Path("/lowered"),
                self.programs.get(candidate.name, candidate.name),
                wheel_bytes=10,
                installed_bytes=BYTES.get(candidate.name, 1000),
                accuracy=MeasuredAccuracy("error", 1e-6),
                versions={"torch": "2.13.0"},
                process_settings={},
            )
        finally:
            self.open.remove(candidate.name)

    def least_heat(self, timer: ScriptedBench) -> float:
        return self.least

    @contextmanager
    def timer(self, candidates: Mapping[str, LoweredCandidate]) -> Iterator[ScriptedBench]:
        yield self

    def load(self, name: str, loads: int) -> dict[str, float]:
        if f"load {name}" in self.faults:
            raise self.faults[f"load {name}"]
        return {"load-seconds": 0.1, "memory-bytes": float(self.memory.get(name, 10 << 20))}

    def heat(self, names: Sequence[str], *, with_eager: bool) -> Heat:
        assert self.open.issuperset(names)
        self.now += 1
        found = {name: (SECONDS.get(name, 1.5),) for name in names}
        for name in names:
            self.samples.setdefault(name, []).extend([(0.9 * found[name][0],), (1.1 * found[name][0],)])
        return {**found, EAGER: (1.0,)} if with_eager else found


def settings_of(**table: Any) -> Settings:
    project = Metadata("digits", "1.0", {"digits": "digits:export"})
    return read_settings(
        {"backends": ["aoti"], **table}, project, root=Path("/project"), packages=["digits"], regular=["digits"]
    )
