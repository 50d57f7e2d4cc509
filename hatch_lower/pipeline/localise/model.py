"""A model's methods in one recipe, searched for what is wrong: on demand, and where a build's comparison fails."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from hatch_lower.config.settings import Recipe
from hatch_lower.errors import LowerError, ProgramError, VerificationError, nearest
from hatch_lower.events import stage
from hatch_lower.pipeline.capture import CapturedMethod
from hatch_lower.pipeline.eager import eager_factory, random_operators
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.exceptions import is_out_of_memory, refuse_out_of_memory
from hatch_lower.pipeline.localise.finding import Finding, Findings, Localisation, finding_lines
from hatch_lower.pipeline.localise.localise import Case, Subject, localise_method
from hatch_lower.pipeline.localise.reproduction import write_reproduction
from hatch_lower.pipeline.model_build import LoweredRecipe, ModelBuild
from hatch_lower.pipeline.random_inputs import InputCase, example_case, random_case, resized_cases
from hatch_lower.pipeline.real_inputs import file_cases
from hatch_lower.pipeline.rounding import rounding_of
from hatch_lower.pipeline.verify import tolerance_in


def localise_model(
    build: ModelBuild, wanted: Localisation, lower: Callable[[ModelBuild, Recipe], LoweredRecipe]
) -> Findings:
    """Lower a model for one recipe, through the cache, and look for the first of its methods that is wrong."""
    recipe = chosen_recipe(build, wanted.recipe)
    known = [method.name for method in build.source.methods]
    if wanted.method and wanted.method not in known:
        raise ProgramError(
            "the model has no such method", where=f"model `{build.model.name}`", found=nearest(wanted.method, known)
        )
    lowered = lower(build, recipe)
    findings = []
    for method in build.source.methods:
        if wanted.method in ("", method.name):
            finding = look(build, lowered, method, wanted)
            findings.append(finding)
            if finding.is_wrong:
                break
    return Findings(tuple(findings), tuple(entry.file for entry in lowered.emitted.plan.delegates))


def chosen_recipe(build: ModelBuild, name: str) -> Recipe:
    recipes = {recipe.name: recipe for recipe in build.recipes}
    order = [recipe for recipe in build.settings.recipe_order if recipe in recipes]
    if name and name not in recipes:
        raise ProgramError("there is no such recipe", where=f"model `{build.model.name}`", found=nearest(name, recipes))
    return recipes[name or order[0]]


def look(build: ModelBuild, lowered: LoweredRecipe, method: CapturedMethod, wanted: Localisation) -> Finding:
    name, recipe = build.source.name, lowered.recipe
    if drawing := random_operators(method.program):
        notes = (f"it draws random numbers: {', '.join(drawing)}",)
        return Finding(name, method.name, recipe.name, "random", notes=notes)
    with (
        stage(build.reporter, "localise", name, recipe.name, method.name) as describe,
        tempfile.TemporaryDirectory(prefix="localise-", dir=build.folder) as folder,
    ):
        program = lowered.programs[method.name]
        sources = SourceRoots([Path(entry) for entry in sys.path if entry])
        tolerance = tolerance_in(recipe)
        subject = Subject(
            name,
            method.name,
            recipe.name,
            program,
            build.partitioners[recipe.name],
            tolerance,
            rounding_of(method.program),
            build.store,
            Path(folder),
            lambda node: sources.origin(node, str(node.target)),
            None if wanted.reproduction is None else write_reproduction(wanted.reproduction, tolerance),
        )
        cases = list(usable_cases(build, method, program, wanted.inputs))
        if not cases:
            raise VerificationError(
                "the eager module takes none of the inputs, so that there is nothing to compare with",
                where=f"model `{name}`, method `{method.name}`",
                hint="give a file of inputs that it takes with `--inputs`",
            )
        finding = localise_method(subject, cases, wanted.seconds)
        describe(f"{finding.verdict}, {finding.lowerings} lowerings")
    return finding


def usable_cases(
    build: ModelBuild, method: CapturedMethod, program: ExportedProgram, inputs: Path | None
) -> Iterator[Case]:
    """Yield the inputs that eager takes: those of a sample file, or those that a build compares with."""
    if inputs is not None:
        given = list(file_cases(inputs, [method])[method.name])
    elif method.has_examples:
        seed = build.settings.seed + 1
        resized = [tries[0] for _, tries in resized_cases(method, seed) if tries]
        real = build.real[method.name].cases if method.name in build.real else ()
        given = [example_case(method), *real, random_case(method, seed), *resized]
    else:
        given = []
    for case in given:
        usable = prepared(build, method, case)
        if runs(usable):
            yield usable


def prepared(build: ModelBuild, method: CapturedMethod, case: InputCase) -> Case:
    new_eager = eager_factory(build.source, method)

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
    except Exception as error:  # a build leaves such inputs out, too
        if is_out_of_memory(error):
            raise
        return False
    return True


def with_first_wrong(
    build: ModelBuild, recipes: Sequence[LoweredRecipe], error: VerificationError
) -> VerificationError:
    """Return the error of a failed comparison with the first operation that is wrong, if it can be found in time."""
    plain = VerificationError(error.what, where=error.where, found=error.found, hint=error.hint)
    place: Mapping[str, str] = {name: getattr(error, name, "") for name in ("recipe", "method")}
    if not build.settings.localise or not all(place.values()):
        return plain
    lowered = next(each for each in recipes if each.recipe.name == place["recipe"])
    method = next(each for each in build.source.methods if each.name == place["method"])
    try:
        finding = look(build, lowered, method, Localisation(float(build.settings.localise)))
    except LowerError as other:
        lines = [f"the first wrong operation could not be looked for: {other.what}"]
    except Exception as other:  # the comparison has failed, whatever happens here
        refuse_out_of_memory(other)
        lines = [f"the first wrong operation could not be looked for: {type(other).__name__}: {other}"]
    else:
        lines = list(finding_lines(finding)) if finding.verdict not in ("none", "random") else []
    return VerificationError(plain.what, where=plain.where, found="\n".join([plain.found, *lines]), hint=plain.hint)
