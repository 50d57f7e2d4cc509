"""Files that `hatch-lower profile --json` wrote: how long the operations of source lines take."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hatch_lower.cli.measure.profile.rows import PROFILE_SCHEMA
from hatch_lower.errors import ProgramError

TEXTS = ("source", "module", "op", "engine")


def read_profile(path: Path, methods: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Return the profile in a file, whose model and recipes are among `methods` (by name)."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: refuse_profile(path, name))
    except (OSError, RecursionError, ValueError) as error:
        refuse_profile(path, f"{type(error).__name__}: {error}")
    if not isinstance(document, dict) or type(document.get("schema")) is not int:
        refuse_profile(path, "no JSON object with the key `schema`")
    if document["schema"] != PROFILE_SCHEMA:
        refuse_profile(path, f"schema {document['schema']}; this hatch-lower reads schema {PROFILE_SCHEMA}")
    model, method, recipes = (document.get(key) for key in ("model", "method", "recipes"))
    if not isinstance(recipes, dict) or not all(isinstance(recipe, dict) for recipe in recipes.values()):
        refuse_profile(path, "no object `recipes` with an object for each recipe")
    known = methods.get(model) if isinstance(model, str) else None
    if known is None or method not in known:
        raise ProgramError(
            "the profile is not of a method that is here",
            where=path.name,
            found=f"method `{method}` of model `{model}`",
            hint="name a file that `hatch-lower profile --json` wrote for this wheel",
        )
    read = {name: read_recipe(path, name, recipe) for name, recipe in recipes.items()}
    return {"model": model, "method": method, "recipes": read}


def read_recipe(path: Path, name: str, recipe: Mapping[str, object]) -> dict[str, object]:
    rows = recipe.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        refuse_profile(path, f"no list `rows` of objects for the recipe `{name}`")
    return {
        "seconds": seconds_of(path, recipe),
        "rows": [
            {**{key: profile_text(path, row, key) for key in TEXTS}, "seconds": seconds_of(path, row)} for row in rows
        ],
    }


def profile_text(path: Path, row: Mapping[str, object], key: str) -> str:
    value = row.get(key) or ""
    if not isinstance(value, str):
        refuse_profile(path, f"{value!r:.40} instead of a text for `{key}`")
    return value


def seconds_of(path: Path, row: Mapping[str, object]) -> float:
    value = row.get("seconds")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        refuse_profile(path, f"{value!r:.40} instead of a number of seconds")
    return float(value)


def refuse_profile(path: Path, found: str) -> NoReturn:
    raise ProgramError(
        "the profile cannot be read",
        where=path.name,
        found=found,
        hint="name a file that `hatch-lower profile --json` wrote",
    )
