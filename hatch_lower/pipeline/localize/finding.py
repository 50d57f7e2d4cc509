"""The finding of a search for a wrong result, as data and in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hatch_lower.format.debug_map import Origin
from hatch_lower.frozen import Frozen

FINDINGS = "findings.json"  # in the folder of a child process

Verdict = Literal[
    "operation",  # a single operation is wrong, alone and in its partition
    "together",  # operations are wrong when lowered together, and right alone
    "among",  # some of the operations are wrong; no smaller set could be tried
    "partition",  # a partition is wrong as a whole, and all its parts are right
    "refused",  # the backend loads or runs no program that has these operations
    "state",  # a partition's state after a call differs from eager's
    "outside",  # an operation outside of partitions is wrong
    "conversion",  # the graph for the backends computes other numbers than the module
    "rounding",  # each value is off by rounding only, but the method as a whole is wrong
    "random",  # the method draws random numbers, or returns other results in each call
    "none",  # all results are right
]


class Localization(Frozen):
    """A request for a search: recipe, method, inputs, and the time limit."""

    seconds: float
    recipe: str = ""  # empty: the model's first recipe
    method: str = ""  # empty: all methods in turn
    inputs: Path | None = None  # a sample file
    reproduction: Path | None = None  # a new folder for a project that reproduces the error


class Finding(Frozen):
    model: str
    method: str
    recipe: str
    verdict: Verdict
    case: str = ""  # the inputs that show the error, and the number of the call after the first
    operations: tuple[Origin, ...] = ()
    places: tuple[int, ...] = ()  # places of the operations in their method (`exir/lowering/leave_out.py`)
    handles: tuple[int, ...] = ()  # their debug handles
    backend: str = ""
    partition: int = 0  # counted from 1 over the delegate calls of the method
    agree: float = 0.0  # error of the operation's inputs
    error: float | None = None  # error of the output; `None` if the error is not finite, or not a number
    difference: str = ""  # the error in words
    lowerings: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    reproduction: str = ""  # the written folder

    @property
    def is_wrong(self) -> bool:
        return self.verdict not in ("none", "random")


class Findings(Frozen):
    findings: tuple[Finding, ...]
    delegates: tuple[str, ...]  # paths of the searched delegates, digests included


HEADS = {
    "operation": "first wrong: {first}, inside {place}",
    "together": "wrong only when lowered together: {count} operations inside {place}",
    "among": "wrong: some of {count} operations inside {place}",
    "refused": "refused: {first}, inside {place}",
    "partition": "wrong: {place}, as a whole; the same operations are right in every part that was tried",
    "state": "wrong: the state that {place} keeps between calls",
    "outside": "first wrong: {first}, which the program runs itself",
    "conversion": "wrong before any backend: the graph for the backends, run by torch, differs from the module",
    "rounding": "no operation: on eager's values each operation is within the tolerance for its greatest number; small"
    " differences add up",
    "random": "no verdict: the method returns other results in each call",
    "none": "all right: every partition computes eager's numbers",
}
LISTED = 12


def finding_lines(finding: Finding) -> Iterator[str]:
    """Yield a finding in words: the wrong operations, their source lines, the error, and notes."""
    first = operation_text(finding.operations[0]) if finding.operations else ""
    place = f"partition {finding.partition} of {finding.backend}"
    head = HEADS[finding.verdict].format(first=first, place=place, count=len(finding.operations))
    yield head + (f": {difference_text(finding)}" if finding.difference else "")
    if len(finding.operations) > 1:
        yield from (f"  {operation_text(operation)}" for operation in finding.operations[:LISTED])
        if len(finding.operations) > LISTED:
            yield f"  and {len(finding.operations) - LISTED} more"
    yield from (f"  {note}" for note in finding.notes)
    if finding.reproduction:
        yield f"  a project that reproduces the error is in {finding.reproduction}"


def difference_text(finding: Finding) -> str:
    if finding.verdict == "refused":
        return f"{finding.difference}, on {finding.case}"
    off = f"off by {finding.error:.2g}" if finding.error is not None else finding.difference
    if finding.verdict != "operation":
        return f"{off}, on {finding.case}"
    agree = f"agree to {finding.agree:.0e}" if finding.agree else "are eager's own"
    return f"its inputs {agree}, its output is {off}, on {finding.case}"


def operation_text(operation: Origin) -> str:
    name = operation.op.removeprefix("aten.").partition(".")[0]
    return f"{name} at {operation.source or 'an unknown line'}" + (f" ({operation.module})" * bool(operation.module))
