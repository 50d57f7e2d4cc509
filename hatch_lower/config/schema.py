"""The JSON schema of the hook's table and the reference page, both made from the dataclasses in `tables`."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hatch_lower.config import tables
from hatch_lower.config.settings import HOOK_PATH
from hatch_lower.config.tables import RESERVED_KEYS, BackendChoice, HookTable, toml_key

INTRODUCTION = f"""\
# Configuration

<!-- Made from hatch_lower/config/tables.py by `python tools/settings_page.py > docs/configuration.md`. -->

Settings live in `pyproject.toml` under `[{HOOK_PATH}]`
(in `hatch.toml`: `[{HOOK_PATH.removeprefix("tool.hatch.")}]`). A table
`[tool.hatch.build.targets.wheel.hooks.lower]` replaces the settings for wheels; source distributions do not see
the table, nor its `inputs`. An example:

```toml
[project.entry-points."hatch_lower.models"]
digits = "digits.model:export"

[{HOOK_PATH}]
backends = ["aoti"]                      # the recipe `default`
inputs = ["weights/*.safetensors"]
rtol = 1e-4

[{HOOK_PATH}.recipes.portable]
backends = []                            # ATen operators only: runs wherever torch does

[{HOOK_PATH}.models.teacher]
export = "tools.export:teacher"          # a model that is not an entry point
recipes = ["portable"]

[{HOOK_PATH}.models.digits]
card = "card.json"                       # the model's card, for the wheel's SBOM

[{HOOK_PATH}.bench]
max-call-ratio = 1.03                    # `hatch-lower bench` fails if a call takes 3 % longer
sizes = [{{ batch = 1 }}, {{ batch = 32 }}]

[{HOOK_PATH}.bench.models.digits.recipes.default]
min-delegated = 0.95
```

Unknown keys and wrong values are errors, all reported at once. hatchling itself reads four more keys in every hook's
table:
{", ".join(f"`{key}`" for key in RESERVED_KEYS)}.

An editor can complete and check these settings with `hatch-lower schema`, a JSON schema of the table.

Two files beside `pyproject.toml` belong to the settings and into version control:

- `precision.toml`: the modules that stay in float32 in a recipe with another `precision`, from
  [`hatch-lower precision --write`](guides/precision.md#keep-layers-in-float32) or by hand.
- `lowering-times.json`: the measured times of recipes, from [`hatch-lower tune --write`](guides/fastest-recipe.md).
"""


def json_schema() -> dict[str, object]:
    schema = table_schema(HookTable)
    for key, text in RESERVED_KEYS.items():
        schema["properties"][key] = {"description": text}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"[{HOOK_PATH}]", **schema}


def schema_text() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def reference_markdown() -> str:
    sections = [INTRODUCTION]
    for kind, title in (
        (HookTable, "`[….hooks.lower]`"),
        (tables.RecipeTable, "`[….hooks.lower.recipes.<name>]`"),
        (tables.ModelTable, "`[….hooks.lower.models.<name>]`"),
        (tables.CacheSettings, "`[….hooks.lower.cache]`"),
        (tables.BenchTable, "`[….hooks.lower.bench]`"),
        (tables.RecipeLimits, "Limits of recipes in `bench`"),
        (tables.MethodLimits, "Limits of methods in `bench`"),
        (tables.ModelLimits, "`[….hooks.lower.bench.models.<name>]`"),
    ):
        sections.append(f"## {title}\n\n{class_summary(kind)}\n")
        sections += setting_sections(kind)
    return "\n".join(sections)


def setting_sections(kind: type) -> Iterator[str]:
    hints, texts = get_type_hints(kind), field_docstrings(kind)
    for setting in fields(kind):
        if setting.name not in kind.__annotations__:
            continue  # described with the base class
        default = read_default(setting)
        shown = "" if default in (None, [], {}) or is_dataclass(default) else f"; default `{json.dumps(default)}`"
        words = type_words(hints[setting.name], setting.metadata)
        yield f"### `{toml_key(setting.name)}`\n\n*{words}{shown}*\n\n{texts[setting.name]}\n"


def table_schema(kind: type) -> dict[str, Any]:
    hints, texts = get_type_hints(kind), field_docstrings(kind)
    properties = {}
    for setting in fields(kind):
        default = read_default(setting)
        properties[toml_key(setting.name)] = {
            "description": " ".join(texts[setting.name].split()),
            **value_schema(hints[setting.name], setting.metadata),
            **({} if default is None or is_dataclass(default) else {"default": default}),
        }
    return {
        "type": "object",
        "description": class_summary(kind),
        "additionalProperties": False,
        "properties": properties,
    }


def value_schema(hint: Any, limits: Mapping[str, Any]) -> dict[str, object]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return value_schema(arguments[0], limits)  # `T | None`
    if origin is tuple:
        item = value_schema(arguments[0], limits)
        array: dict[str, object] = {"type": "array", "items": item}
        return {"anyOf": [item, array]} if "single" in limits else array
    if origin is Mapping:
        return {"type": "object", "additionalProperties": value_schema(arguments[1], limits)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if hint is BackendChoice:
        name = {"type": "string", "minLength": 1, "description": field_docstrings(BackendChoice)["name"]}
        return {"anyOf": [name, {"type": "object", "required": ["name"], "properties": {"name": name}}]}
    if is_dataclass(hint):
        return table_schema(hint)  # type: ignore[arg-type]
    words = {bool: "boolean", int: "integer", float: "number", str: "string"}
    numbers = {key: limit for key, limit in limits.items() if key in ("minimum", "maximum")}
    pattern = {"pattern": f"^{limits['pattern']}$"} if "pattern" in limits else {}
    return {"type": words[hint], **({"minLength": 1} if hint is str else {}), **numbers, **pattern}


def type_words(hint: object, limits: Mapping[str, object]) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    least = f", at least {limits['minimum']}" if "minimum" in limits else ""
    if origin in (Union, types.UnionType):
        return type_words(arguments[0], limits)
    if origin is tuple:
        kinds = {BackendChoice: "backends", int: "integers", str: "strings"}
        array = f"array of {kinds.get(arguments[0], 'tables of integers')}{least}"
        return f"string, or {array}" if "single" in limits else array
    if origin is Mapping:
        return "table of tables, described below"
    if origin is Literal:
        *first, last = (f"`{json.dumps(argument)}`" for argument in arguments)
        return f"{', '.join(first)} or {last}"
    if is_dataclass(hint):
        return "table, described below"
    words: dict[object, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return words[hint] + least


def read_default(each: Field[object]) -> object:
    # `None` where the field's docstring has the default
    value = each.default_factory() if each.default_factory is not MISSING else each.default
    value = each.metadata.get("default", value)
    if value is MISSING:
        return None
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def class_summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def field_docstrings(kind: type) -> dict[str, str]:
    # a class does not keep the docstrings of its fields
    texts = {}
    for each in reversed([each for each in kind.__mro__ if is_dataclass(each)]):
        body = ast.parse(inspect.getsource(each)).body[0].body  # type: ignore[attr-defined]
        for statement, after in itertools.pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                texts[statement.target.id] = inspect.cleandoc(ast.literal_eval(after.value))
    return texts
