"""A build that heals itself: operations that a backend gets wrong are left out of its partitions, and torch runs them.

```text
turn fails             a backend refuses a partition            `Healing.leaves_out`, in the stage `lower`
comparison fails       wrong numbers, or a delegate that fails  `healed`, after the stage `verify`
```

What is left out follows from the export, the recipe and the tools alone: a search is limited by the number of parts
that it lowers, and by no time. So every build with the same key leaves out the same operations; a recipe record has
the operations, and a build that finds the record does not search.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch.export import ExportedProgram

from hatch_lower.config.settings import Recipe
from hatch_lower.errors import AnswerError, BackendError, VerificationError
from hatch_lower.events import Event
from hatch_lower.exir.backend.backend_api import cut_methods
from hatch_lower.exir.lowering.leave_out import PLACE, Places
from hatch_lower.exir.lowering.lower import Turn
from hatch_lower.format.debug_map import Origin
from hatch_lower.format.manifest import LeftOut
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.localise.finding import Finding, operation_text
from hatch_lower.pipeline.localise.model import search_wrong
from hatch_lower.pipeline.localise.refusal import find_refusal
from hatch_lower.pipeline.model_build import LeftOutOf, LoweredRecipe, ModelBuild

MOST_LEFT_OUT = 8  # operations of a recipe; `docs/engines.md` and `on-mismatch` name the number
MOST_TOGETHER = 4  # operations that are wrong only when lowered together, and are left out together
MOST_LOWERINGS = 48  # parts that one search lowers

WRONG = "left out: the backend computed wrong numbers in this build"
REFUSED = "left out: the backend refused the operation in this build"
FAILED = "left out: the backend failed when the operation ran in this build"


def may_heal(build: ModelBuild, recipe: Recipe) -> bool:
    return (
        recipe.on_mismatch == "leave-out"
        and bool(recipe.backends)
        and build.settings.localise > 0
        and build.store.mode != "frozen"
    )


class Healing:
    """The operations that one recipe leaves out, while it is lowered."""

    def __init__(self, build: ModelBuild, recipe: Recipe) -> None:
        self._build = build
        self._recipe = recipe
        self.left_out: LeftOutOf = build.left_out.get(recipe.name, {})

    def places(self, backend: str) -> Mapping[str, Places]:
        return {
            method: {each.place: each.reason for each in several if each.backend == backend}
            for method, several in self.left_out.items()
        }

    def leaves_out(self, turn: Turn, programs: Mapping[str, ExportedProgram], error: BackendError) -> bool:
        """Return whether a failed turn can be tried again, without an operation that the backend refuses."""
        build, recipe = self._build, self._recipe
        if isinstance(error, AnswerError) or not may_heal(build, recipe):
            return False
        cut = cut_methods(programs, turn.partitioners, validate=False, left_out=self.places(turn.name))
        refusal = find_refusal(cut, turn.partitioners, build.store, MOST_LOWERINGS)
        if refusal is None or refusal.backend != turn.name:
            return False
        more = [
            left_out(node.meta.get(PLACE, -1), turn.name, node.meta["debug_handle"], REFUSED) for node in refusal.nodes
        ]
        if (wider := extended(self.left_out, refusal.method, more)) is None:
            return False
        self.left_out = wider
        sources = SourceRoots([Path(entry) for entry in sys.path if entry])
        origins = [sources.origin(node, str(node.target)) for node in refusal.nodes]
        why = f"`{turn.name}` refuses to lower {number_text(origins)}: {refusal.text}"
        line = left_out_line(origins, turn.name, why)
        build.reporter.report(Event("lower", "note", build.source.name, recipe.name, refusal.method, detail=line))
        return True


def healed(build: ModelBuild, recipes: Sequence[LoweredRecipe], error: VerificationError) -> ModelBuild:
    """Return a build that leaves out what a comparison has shown to be wrong; the error, if there is no such thing."""
    plain = VerificationError(error.what, where=error.where, found=error.found, hint=error.hint)
    name = getattr(error, "recipe", "")
    lowered = next((each for each in recipes if each.recipe.name == name), None)
    if lowered is None:
        raise plain
    heals = may_heal(build, lowered.recipe) and bool(lowered.emitted.plan.delegates)
    finding, lines = search_wrong(build, lowered, error, MOST_LOWERINGS if heals else 0)
    wider = None
    if heals and finding is not None and finding.verdict in ("operation", "together", "refused"):
        reason = FAILED if finding.verdict == "refused" else WRONG
        pairs = zip(finding.places, finding.handles, strict=True)
        more = [left_out(place, finding.backend, handle, reason) for place, handle in pairs]
        wider = extended(lowered.left_out, finding.method, more)
    if wider is None or finding is None:
        if heals and count_of(lowered.left_out) == MOST_LEFT_OUT:
            lines.append(f"{MOST_LEFT_OUT} operations are left out already, which is the most")
        plain.found = "\n".join([plain.found, *lines])
        raise plain
    line = left_out_line(finding.operations, finding.backend, error_text(finding))
    build.reporter.report(Event("verify", "note", build.source.name, name, finding.method, detail=line))
    kept = {each.recipe.name: each.lowering for each in recipes}
    known = {each.recipe.name: each.left_out for each in recipes} | {name: wider}
    return replace(build, left_out=known, kept=kept, ask=None)


def left_out(place: int, backend: str, handle: int, reason: str) -> LeftOut:
    return LeftOut(place, backend, handle, reason)


def extended(before: LeftOutOf, method: str, more: Sequence[LeftOut]) -> LeftOutOf | None:
    """Return what is left out with some operations more; `None` if that is too much, or no more than before."""
    known = {(each.place, each.backend) for each in before.get(method, ())}
    if not more or len(more) > MOST_TOGETHER or any(each.place < 0 for each in more):
        return None
    if any((each.place, each.backend) in known for each in more):
        return None
    if count_of(before) + len(more) > MOST_LEFT_OUT:
        return None
    several = sorted([*before.get(method, ()), *more], key=lambda each: (each.place, each.backend))
    return dict(sorted({**before, method: tuple(several)}.items()))


def count_of(left_out: LeftOutOf) -> int:
    return sum(map(len, left_out.values()))


def count_text(left_out: LeftOutOf) -> str:
    number = count_of(left_out)
    return "1 operation" if number == 1 else f"{number} operations"


def left_out_line(operations: Sequence[Origin], backend: str, error: str) -> str:
    named = ", ".join(map(operation_text, operations))
    return f"{named}: {error}; computed by torch instead; report it to the authors of the backend `{backend}`"


def number_text(operations: Sequence[object]) -> str:
    return "the operation" if len(operations) == 1 else f"the {len(operations)} operations together"


def error_text(finding: Finding) -> str:
    subject = number_text(finding.operations)
    if finding.verdict == "refused":
        return (
            f"`{finding.backend}` fails when {subject} run{'s' * (len(finding.operations) == 1)}: {finding.difference}"
        )
    error = finding.difference if finding.error is None else f"largest error {finding.error:.2g}"
    return f"`{finding.backend}` computes {subject} wrongly on {finding.case}, {error}"
