"""The choice written down: recipe tables in the project's file, and the evidence beside the file.

Both files are replaced as wholes. Comments, order and form of other entries stay. A file that has changed since the
measurement began is not replaced.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.tune.choose import TunedModel
from hatch_lower.cli.replaced import replace_files
from hatch_lower.config.settings import Recipe, Settings
from hatch_lower.errors import ConfigError, refused_error
from hatch_lower.format.evidence import EVIDENCE_FILE, Evidence, read_evidence, write_evidence
from hatch_lower.frozen import Frozen

HATCH_FILE, HATCH_PREFIX = "hatch.toml", "tool.hatch."
MEASURED = "measured"  # value of the setting `order`
TOP = "default"  # the recipe of the hook's own `backends`


class WrittenFiles(Frozen):
    """The project's file with the hook's table, and the evidence, with their contents before the measurement."""

    path: Path
    keys: tuple[str, ...]  # of the hook's table in the file
    data: bytes
    evidence_path: Path
    evidence_data: bytes | None  # `None` without the file

    @property
    def evidence(self) -> Evidence:
        if self.evidence_data is None:
            return Evidence()
        return read_evidence(self.evidence_data, str(self.evidence_path))


def read_files(root: Path, table: str) -> WrittenFiles:
    """Read the file that has the hook's table, whose dotted path in pyproject.toml is `table`, and the evidence."""
    path, keys = root / "pyproject.toml", table
    # keys of hatch.toml replace keys of `[tool.hatch]`
    if (root / HATCH_FILE).is_file() and "build" in tomllib.loads((root / HATCH_FILE).read_text(encoding="utf-8")):
        path, keys = root / HATCH_FILE, table.removeprefix(HATCH_PREFIX)
    path = Path(os.path.realpath(path))
    evidence_path = Path(os.path.realpath(root / EVIDENCE_FILE))
    return WrittenFiles(path, tuple(keys.split(".")), path.read_bytes(), evidence_path, contents_of(evidence_path))


def contents_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class Change(Frozen):
    """The recipes of a model after the choice, the first in load order first, and the settings of new recipes."""

    model: str
    recipes: tuple[str, ...]
    new: Mapping[str, Recipe]


def change_of(tuned: TunedModel, settings: Settings, before: Evidence) -> Change:
    """Return the change for a choice; `before` is the evidence without the choice.

    The chosen recipe replaces `default` and the earlier choice of this level. Other recipes of the model stay as
    alternatives, and so do the choices of other levels. A choice that runs only on newer machines gets the best recipe
    of all machines beside it.
    """
    choice = tuned.choice
    (model,) = (each for each in settings.models if each.name == choice.model)
    known = {recipe.name for recipe in settings.recipes}
    earlier = before.choice(choice.model, choice.level)
    replaced = {TOP} & {each.recipe for each in tuned.measurements}
    replaced |= set() if earlier is None else {earlier.recipe}
    names = [choice.recipe]
    if tuned.chosen.needs_level:
        names += fallback(tuned)
    names += [each.recipe for each in before.choices if each.model == choice.model and each.level != choice.level]
    names += [name for name in model.recipes if name not in replaced]
    new = {name: each.recipe for name, each in tuned.candidates.items() if not each.is_written}
    kept = [name for name in dict.fromkeys(names) if name in known or name in new]
    return Change(choice.model, tuple(kept), {name: new[name] for name in kept if name in new})


def fallback(tuned: TunedModel) -> list[str]:
    """Return the best measured recipe that needs no level; a list without one if no such recipe was measured."""
    general = [name for name in tuned.ratios if not tuned.candidates[name].needs_level]
    return [min(general, key=lambda name: (tuned.ratios[name], name))] if general else []


def write_choices(files: WrittenFiles, settings: Settings, tuned: Sequence[TunedModel]) -> list[Path]:
    """Write choices and evidence; return the paths of the changed files."""
    evidence = files.evidence
    changes = [change_of(each, settings, evidence) for each in tuned]
    for each in tuned:
        evidence = evidence.with_model(each.choice, each.measurements)
    wanted = Edit(settings, tuple(changes), order=measured_order(settings, changes, evidence))
    texts = {
        files.path: (files.data, edited(files, wanted)),
        files.evidence_path: (files.evidence_data, write_evidence(evidence)),
    }
    for path, (before, _) in texts.items():
        if contents_of(path) != before:
            raise ConfigError(
                "a file has changed since the measurement began",
                where=str(path),
                hint="run the command again; lowered candidates are in the cache",
            )
    changed = {path: after for path, (before, after) in texts.items() if before != after}
    try:
        replace_files(changed)
    except OSError as error:
        raise refused_error(error, str(files.path)) or error from error
    return list(changed)


class Edit(Frozen):
    settings: Settings
    changes: tuple[Change, ...]
    order: bool  # whether `load` tries the recipes by their measured times


def measured_order(settings: Settings, changes: Sequence[Change], evidence: Evidence) -> bool:
    """Return whether the order of tables cannot be right, and every recipe has a measurement for another order.

    The order of tables cannot be right if levels have different choices, or if two models share recipes and need
    different orders.
    """
    aims = {each.aim for each in evidence.choices}
    tables = table_order(changes, settings.recipe_order)
    kept = {model.name: model.recipes for model in settings.models} | {each.model: each.recipes for each in changes}
    wrong = [each for each in changes if min(each.recipes, key=tables.index) != each.recipes[0]]
    wrong += [each for each in changes if len({one.recipe for one in evidence.choices if one.model == each.model}) > 1]
    known = {(each.model, each.recipe) for each in evidence.measurements}
    needed = {(model, recipe) for model, recipes in kept.items() for recipe in recipes}
    return bool(wrong) and needed <= known and aims <= {"latency", "throughput"}


def edited(files: WrittenFiles, wanted: Edit) -> bytes:
    """Return the project's file with the changes; raise `ConfigError` for a form that cannot be edited."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    text = files.data.decode("utf-8")
    expected = expected_values(tomllib.loads(text), files.keys, wanted)
    try:
        document = tomlkit.parse(text)
        edit_document(document, files.keys, wanted)
        found = spaced(tomlkit.dumps(document), text)
        is_right = with_order(tomllib.loads(found)) == with_order(expected)
    except (TOMLKitError, AttributeError, LookupError, TypeError, ValueError):  # of unusual forms of tables
        is_right = False
    if not is_right:
        raise ConfigError(
            "the hook's table has a form that cannot be edited",
            where=str(files.path),
            found=f"`{'.'.join(files.keys)}`",
            hint="write these settings:\n" + "\n".join(lines_to_write(files.keys, wanted)),
        )
    return found.encode("utf-8")


def spaced(text: str, before: str) -> str:
    """Return the text with the empty lines before headings that the earlier text has."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        end = line[len(line.rstrip("\r\n")) :]
        if line.startswith("[") and lines and lines[-1].strip() and f"{end}{end}{line}" in before:
            lines.append(end)
        while line.startswith("[") and lines[-2:] == [end, end] and f"{end}{end}{end}{line}" not in before:
            lines.pop()
        lines.append(line)
    return "".join(lines)


def with_order(value: Any) -> Any:
    """Return a TOML value in a form that compares the order of the recipes, too."""
    if not isinstance(value, dict):
        return value
    items = [(key, with_order(item)) for key, item in value.items()]
    recipes = value.get("recipes")
    return dict(items), list(recipes) if isinstance(recipes, dict) else recipes


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if recipe.backends:
        values["backends"] = [
            {"name": choice.name, **choice.options} if choice.options else choice.name for choice in recipe.backends
        ]
    return values if recipe.precision == "float32" else {**values, "precision": recipe.precision}


def new_recipes(changes: Sequence[Change]) -> dict[str, dict[str, Any]]:
    return {name: recipe_values(recipe) for change in changes for name, recipe in change.new.items()}


def table_order(changes: Sequence[Change], known: Sequence[str]) -> list[str]:
    """Return the order of all tables of recipes: the first recipe of each model, then the others as before."""
    wanted = [change.recipes[0] for change in changes]
    rest = [name for change in changes for name in change.recipes[1:] if name not in known]
    return list(dict.fromkeys([*wanted, *rest, *known]))


def recipes_of_model(change: Change, settings: Settings) -> list[str] | None:
    """Return the list for `models.<name>.recipes`; `None` if the model has these recipes without a change."""
    (model,) = (each for each in settings.models if each.name == change.model)
    return None if set(model.recipes) == set(change.recipes) else list(change.recipes)


def expected_values(values: dict[str, Any], keys: Sequence[str], wanted: Edit) -> dict[str, Any]:
    values = deepcopy(values)
    hook = values
    for key in keys:
        hook = hook[key]
    known = hook.get("recipes", {})
    tables = {**known, **new_recipes(wanted.changes)}
    if tables:
        hook["recipes"] = {name: tables[name] for name in table_order(wanted.changes, list(known)) if name in tables}
    if wanted.order:
        hook["order"] = MEASURED
    for change in wanted.changes:
        if (recipes := recipes_of_model(change, wanted.settings)) is not None:
            hook.setdefault("models", {}).setdefault(change.model, {})["recipes"] = recipes
    return values


def edit_document(document: Any, keys: Sequence[str], wanted: Edit) -> None:
    import tomlkit

    hook = document
    for key in keys:
        hook = hook[key]
    added = new_recipes(wanted.changes)
    known = list(hook.get("recipes", {}))
    order = [name for name in table_order(wanted.changes, known) if name in known or name in added]
    if wanted.order:
        hook["order"] = MEASURED
    if order != known:
        if "recipes" not in hook:
            hook["recipes"] = tomlkit.table(is_super_table=True)
        recipes = hook["recipes"]
        items = {name: recipes[name] for name in known}
        for name in known:
            del recipes[name]
        for name in order:
            recipes[name] = items[name] if name in items else toml_table(added[name])
    for change in wanted.changes:
        listed = recipes_of_model(change, wanted.settings)
        if listed is None:
            continue
        if "models" not in hook:
            hook["models"] = tomlkit.table(is_super_table=True)
        if change.model not in hook["models"]:
            hook["models"][change.model] = tomlkit.table()
        hook["models"][change.model]["recipes"] = listed


def toml_table(values: Mapping[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.table()
    for key, value in values.items():
        if isinstance(value, list):
            array = tomlkit.array()
            for item in value:
                array.append(inline_table(item) if isinstance(item, dict) else item)
            value = array
        table[key] = value
    return table


def inline_table(values: Mapping[str, Any]) -> Any:
    import tomlkit

    table = tomlkit.inline_table()
    table.update(values)
    return table


def lines_to_write(keys: Sequence[str], wanted: Edit) -> list[str]:
    import tomlkit

    lines = [f"[{'.'.join(keys)}]", f'order = "{MEASURED}"'] if wanted.order else []
    for name, values in new_recipes(wanted.changes).items():
        lines += [f"[{'.'.join(keys)}.recipes.{name}]", *tomlkit.dumps(toml_table(values)).splitlines()]
    for change in wanted.changes:
        lines += [f"[{'.'.join(keys)}.models.{change.model}]", f"recipes = {list(change.recipes)!r}".replace("'", '"')]
    return lines
