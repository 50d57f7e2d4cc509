"""The stage `verify`: what was written for the recipes, compared with eager here and in a fresh process."""

from __future__ import annotations

from collections.abc import Sequence

from hatch_lower.cache.quarantine import suspected
from hatch_lower.events import stage
from hatch_lower.pipeline.eager import dtypes_of
from hatch_lower.pipeline.emit.constants_file import write_constants
from hatch_lower.pipeline.fresh_process import Packaged
from hatch_lower.pipeline.model_build import LoweredRecipe, ModelBuild
from hatch_lower.pipeline.package import CONSTANTS
from hatch_lower.pipeline.recipes import wheel_requirements
from hatch_lower.pipeline.verify import verify_recipe
from hatch_lower.runtime.numbers import Tolerance

EXAMPLES = "examples.safetensors"  # the example inputs and eager's outputs in full; only some are packaged


def verify_recipes(build: ModelBuild, recipes: Sequence[LoweredRecipe]) -> None:
    """Compare each packaged recipe with eager, as far as it asks for that."""
    for lowered in recipes:
        if not lowered.recipe.verify:
            continue
        place = build.place(lowered.recipe)
        with suspected(build.folder, tuple(lowered.keys)):
            verify_recipe(
                build.source, lowered.recipe, lowered.files, build.packager, build.settings.seed, build.reporter
            )
            build.packager.refuse_changed(lowered.files, place)
            verify_afresh(build, lowered)
            build.packager.refuse_changed(lowered.files, place)


def verify_afresh(build: ModelBuild, lowered: LoweredRecipe) -> None:
    if build.fresh is None or build.examples is None:
        return
    source, recipe, packager = build.source, lowered.recipe, build.packager
    examples = build.folder / EXAMPLES
    if not examples.exists():
        write_constants(examples, build.examples[0])
    with stage(build.reporter, "verify", source.name, recipe.name) as describe:
        tolerance = Tolerance(recipe.rtol, recipe.atol)
        packaged = Packaged(
            folder=packager.folder,
            plan=packager.source(lowered.files.plan.path),
            constants=packager.source(f"{source.name}/{CONSTANTS}") if lowered.emitted.plan.storages else None,
            imports=recipe.imports,
            examples=examples,
            tolerances={method.name: tolerance.widened(dtypes_of(method)) for method in source.methods},
            requirements=wheel_requirements(build.settings, lowered),
        )
        asked = build.fresh.check(packaged, build.place(recipe))
        describe("in a fresh process" if asked else "not in a fresh process: a backend or the model closed its pipes")
