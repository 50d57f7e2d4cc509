"""Search for a model's wrong operations, and heal a build: move the operations from the backend's partitions to torch.

```text
turn fails             a backend refuses a partition            `Healing.leaves_out`, in the stage `compile`
comparison fails       wrong numbers, or a delegate that fails  `next_attempt`, after the stage `compare`
```

The export, the recipe and the tools alone determine the operations to leave out: the limit of a search is a number of
lowered parts, not a time. So every build with the same key leaves out the same operations; a recipe record has the
operations, and a build that finds the record does not search.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hatch_lower.cache.store import Store
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import AnswerError, BackendError, LowerError, ProgramError, VerificationError, nearest
from hatch_lower.events import Event, stage
from hatch_lower.exir.backend.backend_api import cut_methods, merged_keys
from hatch_lower.exir.graph.nodes import is_view
from hatch_lower.exir.lowering.leave_out import PLACE, Places, describe_operation, nodes_by_place
from hatch_lower.exir.lowering.lower import Turn
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.debug_map import Origin
from hatch_lower.format.manifest import LeftOut
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.eager import eager_factory, random_operators
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.exceptions import is_out_of_memory, refuse_out_of_memory
from hatch_lower.pipeline.generated_inputs import InputMaker
from hatch_lower.pipeline.localize.finding import Finding, Findings, Localization, finding_lines, operation_text
from hatch_lower.pipeline.localize.localize import LocalizeCase, LocalizeSubject, localize_method
from hatch_lower.pipeline.localize.partition import MOST_LOWERINGS, find_refusal
from hatch_lower.pipeline.localize.reproduction import write_reproduction
from hatch_lower.pipeline.model_build import BuildInputs, BuiltRecipe, KeptLowering, LeftOutOf, Services
from hatch_lower.pipeline.random_inputs import InputCase
from hatch_lower.pipeline.real_inputs import file_cases
from hatch_lower.pipeline.reuse import KnownRecipes
from hatch_lower.pipeline.rounding import rounding_of
from hatch_lower.pipeline.verify import tolerance_in

SECONDS = 120.0  # of a build's search for the operation that an error names


def recipe_to_localize(inputs: BuildInputs, wanted: Localization) -> Recipe:
    """Return the recipe to lower; raise `ProgramError` if the model lacks the wanted recipe or method."""
    recipes = {recipe.name: recipe for recipe in inputs.recipes}
    methods = [method.name for method in inputs.source.methods]
    for kind, name, known in (("recipe", wanted.recipe, recipes), ("method", wanted.method, methods)):
        if name and name not in known:
            where = f"model `{inputs.model.name}`"
            raise ProgramError(f"the model has no {kind} `{name}`", where=where, hint=nearest(name, known))
    order = [recipe for recipe in inputs.settings.recipe_order if recipe in recipes]
    return replace(recipes[wanted.recipe or order[0]], on_mismatch="fail")


def localize_model(inputs: BuildInputs, services: Services, lowered: BuiltRecipe, wanted: Localization) -> Findings:
    """Search the methods of a model, lowered for a recipe, until a wrong method is found."""
    findings = []
    for method in inputs.source_of(lowered.recipe).methods:
        if wanted.method in ("", method.name):
            finding = look(inputs, services, lowered, method, wanted)
            findings.append(finding)
            if finding.is_wrong:
                break
    return Findings(tuple(findings), tuple(entry.file for entry in lowered.emitted.plan.delegates))


def look(
    inputs: BuildInputs,
    services: Services,
    lowered: BuiltRecipe,
    method: CapturedMethod,
    wanted: Localization,
    first: InputCase | None = None,
    lowerings: int = 0,
) -> Finding:
    """Return the finding for a method, on the inputs `first` and all other inputs."""
    name, recipe = inputs.source.name, lowered.recipe
    if drawing := random_operators(method.program):
        notes = (f"the method draws random numbers: {', '.join(drawing)}",)
        return Finding(name, method.name, recipe.name, "random", notes=notes)
    with (
        stage(services.reporter, "localize", name, recipe.name, method.name) as describe,
        tempfile.TemporaryDirectory(prefix="localize-", dir=services.folder) as folder,
    ):
        program = lowered.programs[method.name]
        sources = SourceRoots([Path(entry) for entry in sys.path if entry])
        tolerance = tolerance_in(recipe)
        subject = LocalizeSubject(
            name,
            method.name,
            recipe.name,
            program,
            inputs.partitioners[recipe.name],
            tolerance,
            rounding_of(method.program),
            services.store,
            Path(folder),
            lambda node: sources.origin(node, str(node.target)),
            None if wanted.reproduction is None else write_reproduction(wanted.reproduction, tolerance),
        )
        cases = list(usable_cases(inputs, inputs.source_of(recipe), method, wanted.inputs, first))
        if not cases:
            raise VerificationError(
                "the eager module refuses all inputs, so that a comparison is impossible",
                where=f"model `{name}`, method `{method.name}`",
                hint="name a file of valid inputs with `--inputs`",
            )
        finding = localize_method(subject, cases, wanted.seconds, lowerings or MOST_LOWERINGS)
        describe(f"{finding.verdict}, {finding.lowerings} lowerings")
    return finding


def usable_cases(
    inputs: BuildInputs,
    source: CapturedModel,
    method: CapturedMethod,
    samples: Path | None,
    first: InputCase | None = None,
) -> Iterator[LocalizeCase]:
    """Yield the inputs that eager takes: from a sample file, or the inputs of a build's comparison."""
    if first is not None and runs(usable := prepared(source, method, first)):
        yield usable
    if samples is not None:
        given = list(file_cases(samples, [method])[method.name])
    elif method.has_examples:
        maker = InputMaker(method)
        real = inputs.real[method.name].cases if method.name in inputs.real else ()
        generated = [*maker.sized(), *maker.constant(has_equal=False), *maker.limits()]
        others = [tried for each in generated for tried in (each, *each.apart)]
        given = [maker.example, *real, maker.random(), *(tried.tries[0] for tried in others if tried.tries)]
        given = [case for case in given if first is None or case.name != first.name]
    else:
        given = []
    for case in given:
        usable = prepared(source, method, case)
        if runs(usable):
            yield usable


def prepared(model: CapturedModel, method: CapturedMethod, case: InputCase) -> LocalizeCase:
    new_eager = eager_factory(model, method)

    def fresh() -> Callable[[], object]:
        eager = new_eager()

        def call() -> object:
            args, kwargs = case.copied()
            with torch.no_grad():
                return eager(*args, **kwargs)

        return call

    return LocalizeCase(case.name, tuple(case.leaves()), fresh)


def runs(case: LocalizeCase) -> bool:
    try:
        case.new_eager()()
    except Exception as error:  # a build leaves refused inputs out, too
        if is_out_of_memory(error):
            raise
        return False
    return True


def search_wrong(
    inputs: BuildInputs, services: Services, lowered: BuiltRecipe, error: VerificationError, lowerings: int = 0
) -> tuple[Finding | None, list[str]]:
    """Return the finding after a failed comparison, and the finding in words, if a wrong operation can be found.

    The search ends after `lowerings` lowered parts; without a number, after `SECONDS`. An operation is left out by a
    search with a number, because the result of a build may not depend on the machine's speed.
    """
    method = getattr(error, "method", None)
    if method is None or (method == "" and not lowerings):
        return None, []
    wanted = Localization(math.inf if lowerings else SECONDS)
    finding, lines = None, []
    try:
        for each in inputs.source_of(lowered.recipe).methods:
            if method in ("", each.name):  # an error of loading has no method
                finding = look(inputs, services, lowered, each, wanted, getattr(error, "case", None), lowerings)
                if finding.is_wrong:
                    break
    except LowerError as other:
        lines = [f"the search for the first wrong operation failed: {other.what}"]
    except Exception as other:  # the failed comparison counts, not an error of the search
        refuse_out_of_memory(other)
        lines = [f"the search for the first wrong operation failed: {type(other).__name__}: {other}"]
    else:
        is_told = finding is not None and finding.verdict not in ("none", "random")
        # the error of a delegate that fails as a whole already has the reason
        if finding is not None and is_told and (finding.verdict != "partition" or finding.error is not None):
            lines = list(finding_lines(finding))
    return finding, lines if method else []


MOST_TIMES = 8  # healings of a recipe; `docs/engines.md` and `on-mismatch` name the number
MOST_TOGETHER = 8  # operations that are wrong only when lowered together; a single operation is left out
HEALING_LOWERINGS = 48  # lowered parts in a search

ROUNDINGS = "the error may be a sum of roundings to integers; `hatch-lower localize` searches for an operation at fault"

WRONG = "left out: the backend computed wrong numbers in this build"
REFUSED = "left out: the backend refused the operation in this build"
FAILED = "left out: the backend failed when the operation ran in this build"


class Attempt(Frozen):
    """An attempt to lower a model's recipes so that they agree with eager."""

    number: int = 0
    known: KnownRecipes = field(default_factory=KnownRecipes)  # recipes of the same files need no comparison
    left_out: Mapping[str, LeftOutOf] = field(default_factory=dict)  # recipe to the operations that torch runs
    kept: Mapping[str, KeptLowering] = field(default_factory=dict)  # recipe to its lowering in an earlier attempt
    renewed: frozenset[str] = frozenset()  # keys of the partitions of earlier attempts


def may_heal(store: Store, recipe: Recipe) -> bool:
    return recipe.on_mismatch == "leave-out" and bool(recipe.backends) and store.mode != "frozen"


class Healing:
    """The operations that a recipe leaves out, extended while the recipe is lowered."""

    def __init__(self, services: Services, recipe: Recipe, attempt: Attempt) -> None:
        self._services = services
        self._recipe = recipe
        self.left_out: LeftOutOf = attempt.left_out.get(recipe.name, {})
        self.times = attempt.kept[recipe.name].healed if recipe.name in attempt.kept else 0

    def places(self, backend: str) -> Mapping[str, Places]:
        return {
            method: {each.place: each.reason for each in several if each.backend == backend}
            for method, several in self.left_out.items()
        }

    def leaves_out(self, turn: Turn, programs: Mapping[str, ExportedProgram], error: BackendError) -> bool:
        """Return whether a failed turn can be tried again, without an operation that the backend refuses."""
        services, recipe = self._services, self._recipe
        if isinstance(error, AnswerError) or not may_heal(services.store, recipe) or self.times == MOST_TIMES:
            return False
        refusal = None
        try:
            with process_restored():  # a partitioner that has failed may fail again
                cut = cut_methods(programs, turn.partitioners, validate=False, left_out=self.places(turn.name))
            refusal = find_refusal(cut, turn.partitioners, services.store, HEALING_LOWERINGS)
        except BaseException as other:  # the turn's error counts, not an error of the search
            refuse_out_of_memory(other)
        if refusal is None or refusal.backend != turn.name:
            return False
        places = [node.meta.get(PLACE, -1) for node in refusal.nodes]
        step = next_step(self.left_out, programs[refusal.method], refusal.method, turn.name, places, REFUSED)
        if step is None:
            return False
        sources = SourceRoots([Path(entry) for entry in sys.path if entry])
        origin = sources.origin(step.node, str(step.node.target))
        why = f"`{turn.name}` refuses to lower the operation{together_text(places)}: {refusal.text}"
        line = left_out_line(origin, step.others, turn.name, why)
        event = Event("compile", "note", services.packager.model, recipe.name, refusal.method, detail=line)
        services.reporter.report(event)
        self.left_out, self.times = step.left_out, self.times + 1
        return True


def first_attempt(services: Services, known: KnownRecipes) -> Attempt:
    left_out = {name: record.left_out for name, record in known.records.items()}
    for name, several in left_out.items():
        if several:
            services.warn(f"the recipe `{name}` leaves out {left_out_text(several)}, like an earlier build")
    return Attempt(known=known, left_out=left_out)


def next_attempt(
    inputs: BuildInputs,
    services: Services,
    attempt: Attempt,
    recipes: Sequence[BuiltRecipe],
    error: VerificationError,
) -> Attempt:
    """Return the attempt after a failed comparison; raise the error without a remedy."""
    keys = merged_keys(lowered.keys for lowered in recipes)
    taken = [key for key, from_cache in keys.items() if from_cache and key not in attempt.renewed]
    attempt = replace(attempt, number=attempt.number + 1, renewed=attempt.renewed | keys.keys())
    left_out = {each.recipe.name: each.left_out for each in recipes}
    if taken and services.store.writes:
        services.warn(f"partitions from the cache are lowered again: {error.what}")
        services.store.forget(taken)
        return replace(attempt, known=KnownRecipes(), left_out=left_out, kept={})
    name, more = healed(inputs, services, recipes, error)
    kept = {each.recipe.name: each.lowering for each in recipes}
    kept[name] = replace(kept[name], healed=kept[name].healed + 1)
    return replace(attempt, left_out=left_out | {name: more}, kept=kept)


def healed(
    inputs: BuildInputs, services: Services, recipes: Sequence[BuiltRecipe], error: VerificationError
) -> tuple[str, LeftOutOf]:
    """Return the recipe of a failed comparison, and its operations to leave out; raise the error if none is found."""
    plain = VerificationError(error.what, where=error.where, found=error.found, hint=error.hint)
    name = getattr(error, "recipe", "")
    lowered = next((each for each in recipes if each.recipe.name == name), None)
    if lowered is None:
        raise plain
    lowering = lowered.lowering
    if getattr(error, "is_rounding", False):
        plain.found = f"{plain.found}\n{ROUNDINGS}"
        raise plain
    heals = may_heal(services.store, lowered.recipe) and lowering.healed < MOST_TIMES
    heals = heals and bool(lowered.emitted.plan.delegates)
    finding, lines = search_wrong(inputs, services, lowered, error, HEALING_LOWERINGS if heals else 0)
    step = None
    # a search that reached its limit may not have found the fewest operations
    is_whole = finding is not None and finding.lowerings < HEALING_LOWERINGS
    if heals and is_whole and finding is not None and finding.verdict in ("operation", "together", "refused"):
        reason = FAILED if finding.verdict == "refused" else WRONG
        program = lowering.methods.edge[finding.method]
        step = next_step(lowered.left_out, program, finding.method, finding.backend, finding.places, reason)
    if step is None or finding is None:
        if lowering.healed == MOST_TIMES:
            lines.append(f"operations were left out {MOST_TIMES} times already, which is the limit")
        plain.found = "\n".join([plain.found, *lines])
        raise plain
    origin = finding.operations[finding.places.index(step.node.meta[PLACE])]
    line = left_out_line(origin, step.others, finding.backend, error_text(finding))
    services.reporter.report(Event("compare", "note", inputs.model.name, name, finding.method, detail=line))
    return name, step.left_out


class HealStep(Frozen):
    node: Node  # the operation that is left out
    others: int  # further operations of the same kind that are left out
    left_out: LeftOutOf  # all operations, earlier steps included


def next_step(
    before: LeftOutOf, program: ExportedProgram, method: str, backend: str, places: Sequence[int], reason: str
) -> HealStep | None:
    """Return the next operation to leave out, given wrong places; `None` if the places are too many, or not found."""
    # If several operations are wrong only together, the last computing operation goes: without that operation the rest
    # is right. If an operation of the same kind is left out already, the kind is at fault, and all further operations
    # of the kind follow, for example in each layer of a model.
    own = {each.place for each in before.get(method, ()) if each.backend == backend}
    nodes = nodes_by_place(program)
    if not places or len(places) > MOST_TOGETHER or not nodes.keys() >= set(places) or own.intersection(places):
        return None
    wrong = [nodes[place] for place in sorted(places)]
    node = ([each for each in wrong if not is_view(each)] or wrong)[-1]
    kind = describe_operation(node)
    alike = [each for each in nodes.values() if each is not node and describe_operation(each) == kind]
    others = [each for each in alike if each.meta[PLACE] not in own]
    chosen = [node, *others] if len(others) < len(alike) else [node]
    new = [LeftOut(each.meta[PLACE], backend, each.meta["debug_handle"], reason) for each in chosen]
    ordered = sorted([*before.get(method, ()), *new], key=lambda each: (each.place, each.backend))
    return HealStep(node, len(chosen) - 1, dict(sorted({**before, method: tuple(ordered)}.items())))


def count_of(left_out: LeftOutOf) -> int:
    return sum(map(len, left_out.values()))


def left_out_text(left_out: LeftOutOf) -> str:
    number = count_of(left_out)
    return "1 operation" if number == 1 else f"{number} operations"


def left_out_line(operation: Origin, others: int, backend: str, error: str) -> str:
    named = operation_text(operation) + (f", and {others} more of the same kind" if others else "")
    return f"{named}: {error}; computed by torch instead; report it to the authors of the backend `{backend}`"


def together_text(operations: Sequence[object]) -> str:
    number = len(operations) - 1
    return f" beside {number} other{'s' * (number > 1)}" if number else ""


def error_text(finding: Finding) -> str:
    beside = together_text(finding.operations)
    if finding.verdict == "refused":
        return f"`{finding.backend}` fails when the operation runs{beside}: {finding.difference}"
    error = finding.difference if finding.error is None else f"largest error {finding.error:.2g}"
    return f"`{finding.backend}` computes the operation wrongly{beside} on {finding.case}, {error}"
