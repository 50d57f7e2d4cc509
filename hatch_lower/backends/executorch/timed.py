"""A program of ExecuTorch that measures its instructions, and XNNPACK's operators inside them, in an ETDump."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from hatch_lower.backends.call_map import CallMap
from hatch_lower.backends.executorch.run import ExecutorchDelegate
from hatch_lower.backends.executorch.xnnpack_nodes import Table, nodes_of_operators
from hatch_lower.backends.instructions import CountedRuns, added
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.timing import Run

IDENTIFIER = b"ED00"  # of an ETDump, behind the place of its root
WHOLE = "Method::execute"  # the event that ends a run
CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")  # the events of instructions
# the numbers of fields in ExecuTorch's schema
RUN_DATA, EVENTS, PROFILE_EVENT = 1, 3, 0
NAME, INSTRUCTION, OPERATOR, START, END = 0, 2, 4, 6, 7

Names = Mapping[str, Sequence[str]]  # by number, the id of an instruction, and the ids of the nodes inside


class TimedExecutorchDelegate(CountedRuns, ExecutorchDelegate):
    untimed: ClassVar[str] = "the installed ExecuTorch was built without its event tracer, which 1.5 and later have"

    def __init__(self, path: Path, module: Any, call: CallMap, names: Names) -> None:
        super().__init__(path, module, call)
        self._names = names

    def take_runs(self) -> Sequence[Run]:
        with tempfile.TemporaryDirectory(prefix="hatch-lower-") as folder:
            target = Path(folder, "events.etdp")
            self._module.write_etdump_result_to_file(str(target))
            runs = list(read_dump_runs(target.read_bytes(), self._names)) if target.exists() else []
        return runs[self.forgotten :]


def load_timed(blob: DelegateBlob, constants: Sequence[Tensor]) -> TimedExecutorchDelegate:
    names = blob.info.get("names", {})
    return TimedExecutorchDelegate(*ExecutorchDelegate.open(blob, is_timed=True), names)


def read_dump_runs(dump: bytes, names: Names) -> Iterator[Run]:
    """Yield the nanoseconds of the instructions of each run in an ETDump."""
    parts: list[tuple[tuple[str, ...], float]] = []
    operators: list[tuple[str, int]] = []  # XNNPACK's events, before the event of the instruction that calls XNNPACK
    prefix = 4 if dump[8:12] == IDENTIFIER else 0  # the size of the following data
    for data in Table.root(memoryview(dump)[prefix:]).tables(RUN_DATA):
        for event in data.tables(EVENTS):
            measured = event.table(PROFILE_EVENT)
            if measured is None:
                continue
            name, nanoseconds = measured.text(NAME), measured.number(END, "Q") - measured.number(START, "Q")
            if operator := measured.text(OPERATOR):
                operators.append((operator, nanoseconds))
            elif name in CALLS:
                parts += instruction_parts(
                    names.get(str(measured.number(INSTRUCTION, "i")), ()), nanoseconds, operators
                )
                operators = []
            elif name == WHOLE:
                yield added(parts)
                parts = []


def instruction_parts(
    names: Sequence[str], nanoseconds: int, operators: Sequence[tuple[str, int]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Divide an instruction among the operators inside, if any."""
    if not names:
        return
    whole, *nodes = names
    places = nodes_of_operators([name for name, _ in operators], [node.split(":", 2)[2] for node in nodes])
    for (_, own), inside in zip(operators, places, strict=True):
        yield tuple(nodes[place] for place in inside) or (whole,), own
    if not operators:
        yield (whole,), nanoseconds
