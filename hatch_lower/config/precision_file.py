"""`precision.toml` of a project: modules that stay in float32 in a recipe with another precision.

The search of mixed precision writes the file, and the file is checked in: a build reads it and searches nothing.

```toml
[digits.int8]                   # model and recipe
float32 = ["layers.0", "head"]  # paths of modules
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_lower.config.tables import Precision, quote_key
from hatch_lower.errors import ConfigError, nearest

PRECISION_FILE = "precision.toml"
FLOAT_MODULES = "float32"

Recipes = Mapping[str, Precision]  # precisions by recipe


def read_kept(root: Path, models: Mapping[str, Recipes]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return modules in float32 by model and recipe; raise `ConfigError` with all problems of the file.

    `models` have their recipes with the precisions. Without the file no module stays in float32.
    """
    problems: list[str] = []
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for model, recipes in read_precision_file(root / PRECISION_FILE, problems).items():
        if not isinstance(recipes, dict):
            problems.append(f"`{quote_key(model)}` must be in a table of a model and a recipe, as `[digits.int8]`")
            continue
        if model not in models:
            problems.append(f"`[{quote_key(model)}]` names no model; {nearest(model, models)}")
            continue
        for recipe, lists in recipes.items():
            if paths := read_float_modules(model, recipe, lists, models[model], problems):
                found.setdefault(model, {})[recipe] = tuple(sorted(set(paths)))
    if problems:
        number = "an entry" if len(problems) == 1 else f"{len(problems)} entries"
        raise ConfigError(
            f"{number} of `{PRECISION_FILE}` {'is' if len(problems) == 1 else 'are'} wrong",
            where=str(root / PRECISION_FILE),
            found="\n".join(problems),
            hint=f"correct {PRECISION_FILE}; `hatch-lower precision MODEL --recipe RECIPE --write` writes a list",
        )
    return found


def read_precision_file(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(f"the file is no TOML: {error}")
    except UnicodeDecodeError as error:
        problems.append(f"the file is no text in UTF-8: {error}")
    except OSError as error:
        problems.append(f"the file cannot be read: {error.strerror}")
    return {}


def read_float_modules(model: str, recipe: str, lists: object, known: Recipes, problems: list[str]) -> list[str]:
    """Return the paths in the table of a recipe; append a sentence for each problem of the table."""
    here = f"[{quote_key(model)}.{quote_key(recipe)}]"
    precise = [f"`{name}`" for name, precision in known.items() if precision != FLOAT_MODULES]
    if recipe == FLOAT_MODULES and isinstance(lists, list):
        problems.append(f"`[{quote_key(model)}]` must name a recipe, too, as `[{quote_key(model)}.int8]`")
    elif recipe not in known:
        problems.append(f"`{here}` names no recipe of the model; {nearest(recipe, known)}")
    elif f"`{recipe}`" not in precise:
        problems.append(
            f"`{here}` names a recipe that is in float32 as a whole; recipes with another precision:"
            f" {', '.join(precise) or 'none'}"
        )
    elif not isinstance(lists, dict):
        problems.append(f'`{here}` must be a table with a list of modules, `{FLOAT_MODULES} = ["head"]`')
    else:
        unknown = [name for name in lists if name != FLOAT_MODULES]
        problems += [f"`{here}` has no key `{name}`; {nearest(name, [FLOAT_MODULES])}" for name in unknown]
        paths = lists.get(FLOAT_MODULES)
        if isinstance(paths, list) and all(isinstance(path, str) and path for path in paths):
            return paths
        if not unknown or paths is not None:
            problems.append(f'`{here}` must have a list of paths of modules, as `{FLOAT_MODULES} = ["head"]`')
    return []
