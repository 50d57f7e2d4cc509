"""The settings of a recipe on which its speed depends; `lowering-times.json` names recipes by their digest."""

from __future__ import annotations

from typing import Any

from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings, Recipe
from hatch_lower.config.tables import BackendChoice


def timed_settings(recipe: Recipe, model: ModelSettings | None = None) -> dict[str, Any]:
    """Return the settings as JSON, without the recipe's name; settings with default values are left out.

    `model`: the model with its layers in float32 and its calibration, on which the program depends.
    """
    settings: dict[str, Any] = {"backends": [choice_json(choice) for choice in recipe.backends]}
    if recipe.precision != "float32":
        settings["precision"] = recipe.precision
    if model is not None and (kept := model.kept.get(recipe.name)):
        settings["float32"] = list(kept)
    if model is not None and recipe.precision == "int8" and model.calibrate:
        settings["calibrated"] = True
    return settings


def choice_json(choice: BackendChoice) -> dict[str, Any]:
    return {"name": choice.name, **({"options": dict(choice.options)} if choice.options else {})}


def recipe_digest(recipe: Recipe, model: ModelSettings | None = None) -> str:
    return digest_of(timed_settings(recipe, model))
