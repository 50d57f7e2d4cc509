"""`precision.toml` of a project: modules that stay in float32 in a recipe with another precision.

The search of mixed precision writes the file, and the file is checked in: a build reads it and searches nothing.

```toml
[digits.int8]                   # model and recipe
float32 = ["layers.0", "head"]  # paths of modules
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hatch_lower.config.tables import quote_key

PRECISION_FILE = "precision.toml"
FLOAT_MODULES = "float32"


def read_kept(
    root: Path, models: Mapping[str, Collection[str]], problems: list[str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return modules in float32 by model and recipe; append a sentence for each problem of the file.

    `models` have, by name, the recipes with a precision. Without the file no module stays in float32.
    """
    try:
        text = (root / PRECISION_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"`{PRECISION_FILE}` cannot be read: {error}")
        return {}
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"`{PRECISION_FILE}` is no TOML: {error}")
        return {}
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for model, recipes in table.items():
        for recipe, lists in (recipes if isinstance(recipes, dict) else {"": None}).items():
            here = f"{PRECISION_FILE}: [{quote_key(model)}.{quote_key(recipe)}]"
            paths = lists.get(FLOAT_MODULES) if isinstance(lists, dict) and lists.keys() == {FLOAT_MODULES} else None
            if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
                problems.append(f"`{here}` must have a list of module paths alone, `{FLOAT_MODULES} = [...]`")
            elif recipe not in models.get(model, ()):
                problems.append(f"`{here}` names no model with such a recipe, or a recipe without `precision`")
            else:
                found.setdefault(model, {})[recipe] = tuple(sorted(set(paths)))
    return found
