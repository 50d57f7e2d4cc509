"""The settings of a recipe on which its speed depends; `lowering-times.json` names recipes by their digest."""

from __future__ import annotations

from typing import Any

from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import Recipe
from hatch_lower.config.tables import BackendChoice


def timed_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings as JSON, without the recipe's name; settings with default values are left out."""
    settings: dict[str, Any] = {"backends": [choice_json(choice) for choice in recipe.backends]}
    return settings if recipe.precision == "float32" else {**settings, "precision": recipe.precision}


def choice_json(choice: BackendChoice) -> dict[str, Any]:
    return {"name": choice.name, **({"options": dict(choice.options)} if choice.options else {})}


def recipe_digest(recipe: Recipe) -> str:
    return digest_of(timed_settings(recipe))
