"""What was found out about a wrong result, as data and in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hatch_lower.format.debug_map import Origin
from hatch_lower.frozen import Frozen

FINDINGS = "findings.json"  # in the folder of a child process

Verdict = Literal[
    "operation",  # one operation is wrong, alone and where it stands
    "together",  # operations are wrong when a backend lowers them together, and none of them alone
    "among",  # it is one or several of these operations; no smaller set could be tried
    "partition",  # a partition is wrong as a whole, and none of its parts
    "refused",  # the backend loads or runs no program that has these operations
    "state",  # a partition does not go on from call to call as eager does
    "outside",  # an operation outside of partitions is wrong
    "conversion",  # the graph that backends were given computes something else than the module
    "rounding",  # nothing is off by more than rounding, and the method as a whole is
    "random",  # the method draws random numbers, or computes something else in each call
    "none",  # nothing is wrong
]


class Localisation(Frozen):
    """Where to look for something wrong, and with what."""

    seconds: float
    recipe: str = ""  # the first of the model, if it is empty
    method: str = ""  # all, one after the other, if it is empty
    inputs: Path | None = None  # a sample file
    reproduction: Path | None = None  # a new folder for a project that shows it


class Finding(Frozen):
    model: str
    method: str
    recipe: str
    verdict: Verdict
    case: str = ""  # the inputs that show it, and the call, if it is not the first one
    operations: tuple[Origin, ...] = ()
    places: tuple[int, ...] = ()  # of the operations in their method, as `exir/lowering/leave_out.py` counts
    handles: tuple[int, ...] = ()  # their debug handles
    backend: str = ""
    partition: int = 0  # counted from 1 over the delegate calls of the method
    agree: float = 0.0  # by how much the inputs of the operation were off
    error: float | None = None  # by how much its output is; `None` if it is not finite, or no number
    difference: str = ""  # the same in words
    lowerings: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    reproduction: str = ""  # the folder that was written

    @property
    def is_wrong(self) -> bool:
        return self.verdict not in ("none", "random")


class Findings(Frozen):
    findings: tuple[Finding, ...]
    delegates: tuple[str, ...]  # paths of the delegates that were looked at; they have the digests


HEADS = {
    "operation": "first wrong: {first}, inside {place}",
    "together": "wrong only when lowered together: {count} operations inside {place}",
    "among": "wrong: one or several of {count} operations inside {place}",
    "refused": "refused: {first}, inside {place}",
    "partition": "wrong: {place}, as a whole; the same operations are right in every part of it that was tried",
    "state": "wrong: what {place} keeps from one call to the next",
    "outside": "first wrong: {first}, which the program runs itself",
    "conversion": "wrong before any backend: the graph that backends are given, run by torch, differs from the module",
    "rounding": "no operation: on eager's values nothing is off by more than the tolerance for its greatest number;"
    " small differences add up",
    "random": "nothing can be said: the method computes something else in each call",
    "none": "nothing is wrong: every partition computes what eager does",
}
LISTED = 12


def finding_lines(finding: Finding) -> Iterator[str]:
    """Yield a finding in words: what is wrong and where, by how much, and what is to be known of it."""
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
        yield f"  a project that shows it is in {finding.reproduction}"


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
