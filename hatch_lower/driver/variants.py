"""Wheel variants of a build's result: one for each instruction set level of its recipes, and the null variant.

PEP 825 is a draft. Labels and properties are those of variantlib and uv: `x86_64 :: level :: v3`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.config.settings import Settings
from hatch_lower.driver.build import collect_payload
from hatch_lower.errors import ConfigError
from hatch_lower.format.results import BuildResult, ModelResult
from hatch_lower.frozen import Frozen

NULL = "null"  # label of the variant for every machine
SETTING = "tool.hatch.build.hooks.lower.variants"

Properties = Mapping[str, Mapping[str, tuple[str, ...]]]  # namespace to feature to values


class LevelProperty(Frozen):
    """An instruction set level as a property of wheel variants."""

    namespace: str
    feature: str
    value: str

    @property
    def label(self) -> str:
        return f"{self.namespace}_{self.value}"


VNNI = "x86-64-v4-vnni"  # not all processors of the level have the instructions

# The level of a recipe's target. Code for VNNI belongs to the level below: no installer knows the instructions as a
# level, and `load` tests the processor.
PROPERTIES: Mapping[str, LevelProperty] = {
    "x86-64": LevelProperty("x86_64", "level", "v1"),
    "x86-64-v2": LevelProperty("x86_64", "level", "v2"),
    "x86-64-v3": LevelProperty("x86_64", "level", "v3"),
    "x86-64-v4": LevelProperty("x86_64", "level", "v4"),
    VNNI: LevelProperty("x86_64", "level", "v4"),
    "armv8-a": LevelProperty("aarch64", "version", "8a"),
}


class Variant(Frozen):
    """A wheel variant: its recipes, and the properties of the machines that run them."""

    label: str
    properties: Properties  # empty for the null variant
    result: BuildResult  # with the variant's recipes alone


def split_variants(result: BuildResult, settings: Settings, work: Path) -> tuple[Variant, ...]:
    """Return the null variant, then a variant for each level and version of CUDA, by label.

    A variant has the recipes for its level, and the recipes without a target as fallbacks.

    Raises:
        ConfigError: no recipe has a target, or a variant would lack a model or the code of a model.
    """
    targets = [target for model in result.models for target in targets_in(model.entry["recipes"].values())]
    if not targets:
        raise ConfigError(
            "wheel variants need a recipe for an instruction set level",
            where=SETTING,
            found="no recipe with native code",
            hint='add a recipe with `{ name = "aoti", isa = "x86-64-v3" }`, or remove `variants = true`',
        )
    refuse_unknown_levels(targets)
    properties: dict[str, Properties] = {NULL: {}}
    properties |= {label: needed_properties(targets, label) for label in sorted(set(map(label_for, targets)))}
    problems = [problem for label in properties for problem in missing_recipes(result.models, label)]
    if problems:
        hint = (
            "add the recipes: a model with native code needs a recipe for each level, and every model a recipe without "
            "native code, such as `[tool.hatch.build.hooks.lower.recipes.portable]`; or remove `variants = true`"
        )
        raise ConfigError("wheel variants lack recipes", where=SETTING, found="\n".join(problems), hint=hint)
    return tuple(
        Variant(label, needed, restrict(result, label, settings, work / label)) for label, needed in properties.items()
    )


def targets_in(recipes: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (recipe["target"] for recipe in recipes if recipe.get("target") is not None)


def refuse_unknown_levels(targets: Sequence[Mapping[str, Any]]) -> None:
    unknown = sorted({target["isa"] for target in targets} - PROPERTIES.keys())
    if unknown:
        raise ConfigError(
            "an instruction set level has no property of wheel variants",
            where=SETTING,
            found=", ".join(f"`{isa}`" for isa in unknown),
            hint=f"choose from {', '.join(PROPERTIES)}, or remove `variants = true`",
        )


def label_for(target: Mapping[str, Any]) -> str:
    """Return the label of the variant for a target: `x86_64_v3`, or `cu13_x86_64_v3` with code for GPUs."""
    level = PROPERTIES[target["isa"]].label
    return f"cu{target['cuda']}_{level}" if target.get("cuda") else level


def needed_properties(targets: Sequence[Mapping[str, Any]], label: str) -> Properties:
    """Return the needs of a variant: the level, and for GPUs an architecture and the version of CUDA."""
    own = [target for target in targets if label_for(target) == label]
    level = PROPERTIES[own[0]["isa"]]
    properties: dict[str, Mapping[str, tuple[str, ...]]] = {level.namespace: {level.feature: (level.value,)}}
    if cuda := own[0].get("cuda"):
        code = {f"{name.removeprefix('sm_')}_real" for target in own for name in target.get("arch", ())}
        ptx = {f"{target['ptx'].removeprefix('compute_')}_virtual" for target in own if target.get("ptx")}
        properties["nvidia"] = {"cuda_version_lower_bound": (f"{cuda}.0",), "sm_arch": tuple(sorted(code | ptx))}
    return properties


def belongs(recipe: Mapping[str, Any], label: str) -> bool:
    """Return whether a recipe is in a variant; a variant for GPUs has the recipes of its processor's level, too."""
    target = recipe.get("target")
    return target is None or label_for(target) in (label, label.partition("_")[2])


def missing_recipes(models: Sequence[ModelResult], label: str) -> Iterator[str]:
    """Yield a sentence for each model without a recipe in a variant, or with slower recipes than in other variants."""
    for model in models:
        recipes = model.entry["recipes"].values()
        own = [recipe for recipe in recipes if belongs(recipe, label)]
        everywhere = [target for target in targets_in(own) if target["isa"] != VNNI]
        if not own:
            what = "without native code" if label == NULL else f"for the variant `{label}`"
            yield f"model `{model.model}` has no recipe {what}"
        elif label != NULL and not everywhere and any(not belongs(recipe, label) for recipe in recipes):
            yield f"model `{model.model}` has native code, but not for every processor of the variant `{label}`"


def restrict(result: BuildResult, label: str, settings: Settings, work: Path) -> BuildResult:
    """Return a result with the recipes of a variant, with manifests of their own below `work`."""
    models = tuple(restrict_model(model, label) for model in result.models)
    kept = {model.model: model.entry["recipes"] for model in models}
    return replace(
        result,
        payload=collect_payload(settings, models, work),
        rows=tuple(row for row in result.rows if row.recipe in kept[row.model]),
        native=tuple(path for model in models for path in model.native),
        models=models,
    )


def restrict_model(model: ModelResult, label: str) -> ModelResult:
    recipes: Mapping[str, Mapping[str, Any]] = model.entry["recipes"]
    kept = {name: recipe for name, recipe in recipes.items() if belongs(recipe, label)}
    left_out = recipe_files(recipes.values()) - recipe_files(kept.values())
    gone = {file.source for file in model.files if file.path in left_out}
    order = [name for name in model.entry["order"] if name in kept]
    return replace(
        model,
        entry={**model.entry, "order": order, "recipes": kept},
        files=tuple(file for file in model.files if file.path not in left_out),
        rows=tuple(row for row in model.rows if row.recipe in kept),
        native=tuple(path for path in model.native if path not in gone),
    )


def recipe_files(recipes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the files of recipes alone, below `_lowered`; weights and check data belong to the model."""
    return {
        file["path"] for recipe in recipes for file in (recipe["plan"], recipe["debug"], *recipe.get("delegates", ()))
    }
