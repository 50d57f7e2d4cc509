"""Search a model's methods in a recipe for the wrong operation: on demand, and after a build's failed comparison."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from hatch_lower.config.settings import Recipe
from hatch_lower.errors import LowerError, ProgramError, VerificationError, nearest
from hatch_lower.events import stage
from hatch_lower.pipeline.capture import CapturedMethod, CapturedModel
from hatch_lower.pipeline.eager import eager_factory, random_operators
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.exceptions import is_out_of_memory, refuse_out_of_memory
from hatch_lower.pipeline.generated_inputs import InputMaker
from hatch_lower.pipeline.localize.finding import Finding, Findings, Localization, finding_lines
from hatch_lower.pipeline.localize.localize import Case, Subject, localize_method
from hatch_lower.pipeline.localize.partition import MOST_LOWERINGS
from hatch_lower.pipeline.localize.reproduction import write_reproduction
from hatch_lower.pipeline.model_build import BuildInputs, LoweredRecipe, Services
from hatch_lower.pipeline.random_inputs import InputCase
from hatch_lower.pipeline.real_inputs import file_cases
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


def localize_model(inputs: BuildInputs, services: Services, lowered: LoweredRecipe, wanted: Localization) -> Findings:
    """Search the methods of a model, lowered for a recipe, until a wrong method is found."""
    findings = []
    for method in inputs.source.methods:
        if wanted.method in ("", method.name):
            finding = look(inputs, services, lowered, method, wanted)
            findings.append(finding)
            if finding.is_wrong:
                break
    return Findings(tuple(findings), tuple(entry.file for entry in lowered.emitted.plan.delegates))


def look(
    inputs: BuildInputs,
    services: Services,
    lowered: LoweredRecipe,
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
        subject = Subject(
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
        cases = list(usable_cases(inputs, method, wanted.inputs, first))
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
    inputs: BuildInputs, method: CapturedMethod, samples: Path | None, first: InputCase | None = None
) -> Iterator[Case]:
    """Yield the inputs that eager takes: from a sample file, or the inputs of a build's comparison."""
    if first is not None and runs(usable := prepared(inputs.source, method, first)):
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
        usable = prepared(inputs.source, method, case)
        if runs(usable):
            yield usable


def prepared(model: CapturedModel, method: CapturedMethod, case: InputCase) -> Case:
    new_eager = eager_factory(model, method)

    def fresh() -> Callable[[], object]:
        eager = new_eager()

        def call() -> object:
            args, kwargs = case.copied()
            with torch.no_grad():
                return eager(*args, **kwargs)

        return call

    return Case(case.name, tuple(case.leaves()), fresh)


def runs(case: Case) -> bool:
    try:
        case.new_eager()()
    except Exception as error:  # a build leaves refused inputs out, too
        if is_out_of_memory(error):
            raise
        return False
    return True


def search_wrong(
    inputs: BuildInputs, services: Services, lowered: LoweredRecipe, error: VerificationError, lowerings: int = 0
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
        for each in inputs.source.methods:
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
