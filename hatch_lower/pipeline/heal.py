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
from hatch_lower.exir.lowering.leave_out import PLACE, Places, kind_of, nodes_by_place
from hatch_lower.exir.lowering.lower import Turn
from hatch_lower.format.debug_map import Origin
from hatch_lower.format.manifest import LeftOut
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.localise.finding import Finding, operation_text
from hatch_lower.pipeline.localise.model import search_wrong
from hatch_lower.pipeline.localise.refusal import find_refusal
from hatch_lower.pipeline.model_build import LeftOutOf, LoweredRecipe, ModelBuild

MOST_TIMES = 8  # that a recipe is healed; `docs/engines.md` and `on-mismatch` name the number
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
        self.times = build.kept[recipe.name].healed if recipe.name in build.kept else 0

    def places(self, backend: str) -> Mapping[str, Places]:
        return {
            method: {each.place: each.reason for each in several if each.backend == backend}
            for method, several in self.left_out.items()
        }

    def leaves_out(self, turn: Turn, programs: Mapping[str, ExportedProgram], error: BackendError) -> bool:
        """Return whether a failed turn can be tried again, without an operation that the backend refuses."""
        build, recipe = self._build, self._recipe
        if isinstance(error, AnswerError) or not may_heal(build, recipe) or self.times == MOST_TIMES:
            return False
        cut = cut_methods(programs, turn.partitioners, validate=False, left_out=self.places(turn.name))
        refusal = find_refusal(cut, turn.partitioners, build.store, MOST_LOWERINGS)
        if refusal is None or refusal.backend != turn.name:
            return False
        places = [node.meta.get(PLACE, -1) for node in refusal.nodes]
        wider = extended(self.left_out, programs[refusal.method], refusal.method, turn.name, places, REFUSED)
        if wider is None:
            return False
        sources = SourceRoots([Path(entry) for entry in sys.path if entry])
        origins = [sources.origin(node, str(node.target)) for node in refusal.nodes]
        why = f"`{turn.name}` refuses to lower {number_text(origins)}: {refusal.text}"
        line = left_out_line(origins, turn.name, why, count_of(wider) - count_of(self.left_out))
        build.reporter.report(Event("lower", "note", build.source.name, recipe.name, refusal.method, detail=line))
        self.left_out, self.times = wider, self.times + 1
        return True


def healed(build: ModelBuild, recipes: Sequence[LoweredRecipe], error: VerificationError) -> ModelBuild:
    """Return a build that leaves out what a comparison has shown to be wrong; the error, if there is no such thing."""
    plain = VerificationError(error.what, where=error.where, found=error.found, hint=error.hint)
    name = getattr(error, "recipe", "")
    lowered = next((each for each in recipes if each.recipe.name == name), None)
    if lowered is None:
        raise plain
    before, lowering = lowered.left_out, lowered.lowering
    heals = may_heal(build, lowered.recipe) and bool(lowered.emitted.plan.delegates) and lowering.healed < MOST_TIMES
    finding, lines = search_wrong(build, lowered, error, MOST_LOWERINGS if heals else 0)
    wider = None
    if heals and finding is not None and finding.verdict in ("operation", "together", "refused"):
        reason = FAILED if finding.verdict == "refused" else WRONG
        program = lowering.methods.edge[finding.method]
        wider = extended(before, program, finding.method, finding.backend, finding.places, reason)
    if wider is None or finding is None:
        if lowering.healed == MOST_TIMES:
            lines.append(f"operations were left out {MOST_TIMES} times already, and no more often is tried")
        plain.found = "\n".join([plain.found, *lines])
        raise plain
    more = count_of(wider) - count_of(before)
    line = left_out_line(finding.operations, finding.backend, error_text(finding), more)
    build.reporter.report(Event("verify", "note", build.source.name, name, finding.method, detail=line))
    kept = {each.recipe.name: each.lowering for each in recipes}
    kept[name] = replace(lowering, healed=lowering.healed + 1)
    known = {each.recipe.name: each.left_out for each in recipes} | {name: wider}
    return replace(build, left_out=known, kept=kept, ask=None)


def extended(
    before: LeftOutOf, program: ExportedProgram, method: str, backend: str, places: Sequence[int], reason: str
) -> LeftOutOf | None:
    """Return what is left out with the operations at some places more; `None` if that is too much, or nothing new."""
    # Where one of the same kind is left out already, the kind is at fault: all others of it follow, as those of the
    # layers of a transformer.
    own = {each.place for each in before.get(method, ()) if each.backend == backend}
    nodes = nodes_by_place(program)
    if not places or len(places) > MOST_TOGETHER or not nodes.keys() >= set(places) or own.intersection(places):
        return None
    kinds = {place: kind_of(node) for place, node in nodes.items()}
    known = {kinds[place] for place in own if place in kinds} & {kinds[place] for place in places}
    chosen = [nodes[place] for place in nodes if place in places or kinds[place] in known]
    handles = {node.meta[PLACE]: node.meta["debug_handle"] for node in chosen}
    new = [LeftOut(place, backend, handle, reason) for place, handle in handles.items() if place not in own]
    ordered = sorted([*before.get(method, ()), *new], key=lambda each: (each.place, each.backend))
    return dict(sorted({**before, method: tuple(ordered)}.items()))


def count_of(left_out: LeftOutOf) -> int:
    return sum(map(len, left_out.values()))


def count_text(left_out: LeftOutOf) -> str:
    number = count_of(left_out)
    return "1 operation" if number == 1 else f"{number} operations"


def left_out_line(operations: Sequence[Origin], backend: str, error: str, number: int) -> str:
    named = ", ".join(map(operation_text, operations))
    if number > len(operations):  # the second of its kind
        named += f", and {number - len(operations)} more of the same kind"
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
