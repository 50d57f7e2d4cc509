"""The choice written down: recipe tables in the project's file, and the evidence beside the file.

Both files are replaced as wholes. Comments, order and form of other entries stay. A file that has changed since the
measurement began is not replaced.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.tune.candidates import TunedCandidate
from hatch_lower.cli.measure.tune.choose import TunedModel
from hatch_lower.cli.replaced import edited_text, replace_files
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.config.tables import HookTable, quote_key
from hatch_lower.driver.measured import measured_calls
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
    except OSError as error:
        raise ConfigError("a file cannot be read", where=str(path), found=str(error.strerror)) from error


class Change(Frozen):
    """The recipes of a model after the choice, the first in load order first, and the settings of new recipes."""

    model: str
    recipes: tuple[str, ...]
    new: Mapping[str, TunedCandidate]


def change_of(tuned: TunedModel, settings: Settings, before: Evidence) -> Change:
    """Return the change for a choice; `before` is the evidence without the choice.

    The chosen recipe replaces `default` and the earlier choice of this level, unless other settings name these. Other
    recipes of the model stay as alternatives, and so do the choices of other levels. A choice that runs only on newer
    machines gets the best recipe of all machines beside it.
    """
    choice = tuned.choice
    (model,) = (each for each in settings.models if each.name == choice.model)
    known = {recipe.name for recipe in settings.recipes}
    earlier = before.choice(choice.model, choice.level)
    replaced = {TOP} & {each.recipe for each in tuned.measurements}
    replaced |= set() if earlier is None else {earlier.recipe}
    replaced -= named_recipes(settings, model)
    names = [choice.recipe]
    if tuned.chosen.needs_level:
        names += fallback(tuned)
    names += [each.recipe for each in before.choices if each.model == choice.model and each.level != choice.level]
    names += [name for name in model.recipes if name not in replaced]
    new = {name: each for name, each in tuned.candidates.items() if not each.is_written}
    kept = [name for name in dict.fromkeys(names) if name in known or name in new]
    return Change(choice.model, tuple(kept), {name: new[name] for name in kept if name in new})


def named_recipes(settings: Settings, model: ModelSettings) -> set[str]:
    """Return the recipes of limits and of `precision.toml`, without which a build refuses the settings."""
    limited = {recipe.name for recipe in settings.recipes if recipe.max_drop is not None}
    bench = settings.bench.models.get(model.name)
    return limited | model.kept.keys() | (bench.recipes.keys() if bench is not None else set())


def fallback(tuned: TunedModel) -> list[str]:
    """Return the best measured recipe that needs no level; a list without one if no such recipe was measured."""
    general = [name for name in tuned.ratios if not tuned.candidates[name].needs_level]
    return [min(general, key=lambda name: (tuned.ratios[name], name))] if general else []


def write_choices(files: WrittenFiles, settings: Settings, tuned: Sequence[TunedModel]) -> Written:
    evidence = files.evidence
    changes = [change_of(each, settings, evidence) for each in tuned]
    for each in tuned:
        left_out = [name for name in each.left_out if each.candidates[name].is_written]
        evidence = evidence.with_model(each.choice, each.measurements, left_out)
    changed_models = {each.model for each in changes}
    others = [Change(each.name, each.recipes, {}) for each in settings.models if each.name not in changed_models]
    hook = hook_table(tomllib.loads(files.data.decode("utf-8")), files.keys)
    wanted = Edit(settings, tuple(changes), tuple(others), tuple(hook.get("recipes", {})), inherited_values(hook))
    wanted = replace(wanted, order=measured_order(wanted, evidence))
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
    return Written(tuple(changed), () if wanted.order or settings.order == MEASURED else tuple(misplaced(wanted)))


class Written(Frozen):
    changed: tuple[Path, ...]
    misplaced: tuple[tuple[str, str, str], ...]  # model, its best recipe, and the recipe that `load` tries first


class Edit(Frozen):
    settings: Settings
    changes: tuple[Change, ...]
    others: tuple[Change, ...]  # models that keep their recipes
    known: tuple[str, ...]  # tables of recipes in the file, in their order
    inherited: Mapping[str, Any]  # `inherited_values` of the hook's table
    order: bool = False  # whether `load` tries the recipes by their measured times

    @property
    def tables(self) -> list[str]:
        """The order of all tables of recipes: the first recipe of each model, then the others as before.

        The recipe `default` has a table only if it must come after other recipes: without a table it is the first.
        """
        wanted = [change.recipes[0] for change in self.changes]
        rest = [name for change in self.changes for name in change.recipes[1:] if name not in self.known]
        order = list(dict.fromkeys([*wanted, *rest, *self.known]))
        has_table = TOP in self.known or any(TOP in change.recipes[1:] for change in self.changes)
        return [name for name in order if has_table or name != TOP]

    @property
    def load_order(self) -> list[str]:
        return list(dict.fromkeys([*([] if TOP in self.tables else [TOP]), *self.tables]))

    @property
    def added(self) -> dict[str, dict[str, Any]]:
        """The new tables of recipes."""
        new = {name: self.values_of(candidate) for change in self.changes for name, candidate in change.new.items()}
        return {name: new.get(name, {}) for name in self.tables if name not in self.known}

    def values_of(self, candidate: TunedCandidate) -> dict[str, Any]:
        """Return the table of a new recipe: all settings that were measured and that the hook's table does not give."""
        recipe = candidate.recipe
        values: dict[str, Any] = {}
        if recipe.backends:
            values["backends"] = [
                {"name": choice.name, **choice.options} if choice.options else choice.name for choice in recipe.backends
            ]
        if recipe.precision != "float32":
            values["precision"] = recipe.precision
        measured = {
            "rtol": recipe.rtol,
            "atol": recipe.atol,
            "on-mismatch": recipe.on_mismatch,
            "torch-free": candidate.torch_free,
        }
        return values | {key: value for key, value in measured.items() if value != self.inherited[key]}

    def lists(self, hook: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return the lists `models.<name>.recipes` that change; a model without a list has all recipes."""
        present = {model.name: model.recipes for model in self.settings.models}
        named = {name: model.get("recipes") for name, model in hook.get("models", {}).items()}
        return {
            change.model: list(change.recipes)
            for change in (*self.changes, *self.others)
            if set(change.recipes) != set(present[change.model])
            or (named.get(change.model) is None and set(change.recipes) != set(self.load_order))
        }


def misplaced(wanted: Edit) -> Iterator[tuple[str, str, str]]:
    """Yield the models with another recipe at the front of the load order than the best recipe."""
    for change in (*wanted.changes, *wanted.others):
        first = min(change.recipes, key=wanted.load_order.index)
        if first != change.recipes[0]:
            yield change.model, change.recipes[0], first


def measured_order(wanted: Edit, evidence: Evidence) -> bool:
    """Return whether the order of tables cannot be right, and every recipe has a measurement for another order.

    The order of tables cannot be right if levels have different choices, or if two models share recipes and need
    different orders. A measurement of former settings is none, as in a build.
    """
    choices = {(each.model, each.recipe) for each in evidence.choices}
    several = any(sum(model == each.model for model, _ in choices) > 1 for each in wanted.changes)
    if not several and not any(misplaced(wanted)):
        return False
    new = [candidate.recipe for each in wanted.changes for candidate in each.new.values()]
    kept = {each.model: each.recipes for each in (*wanted.changes, *wanted.others)}
    problems: list[str] = []
    for model in wanted.settings.models:
        own = replace(model, recipes=kept[model.name])
        measured_calls(own, [*new, *wanted.settings.recipes], evidence, problems)
    return not problems and {each.aim for each in evidence.choices} <= {"latency", "throughput"}


def inherited_values(hook: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe whose table does not set these."""
    usual = HookTable()
    return {
        "rtol": hook.get("rtol", usual.rtol),
        "atol": hook.get("atol", usual.atol),
        "on-mismatch": hook.get("on-mismatch", usual.on_mismatch),
        "torch-free": hook.get("torch-free", usual.torch_free),
    }


def hook_table(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        value = value[key]
    return value


def edited(files: WrittenFiles, wanted: Edit) -> bytes:
    """Return the project's file with the changes; raise `ConfigError` for a form that cannot be edited."""
    from tomlkit.exceptions import TOMLKitError

    text = files.data.decode("utf-8")
    values = tomllib.loads(text)
    expected = expected_values(values, files.keys, wanted)
    try:
        found = edited_text(text, lambda document: edit_document(document, files.keys, wanted))
        is_right = with_order(tomllib.loads(found)) == with_order(expected)
    except (TOMLKitError, AttributeError, LookupError, TypeError, ValueError):  # of unusual forms of tables
        is_right = False
    if not is_right:
        raise ConfigError(
            "the hook's table has a form that cannot be edited",
            where=str(files.path),
            found=f"`{'.'.join(files.keys)}`",
            hint="write these settings:\n"
            + "\n".join(lines_to_write(files.keys, hook_table(values, files.keys), wanted)),
        )
    return found.encode("utf-8")


def with_order(value: Any) -> Any:
    """Return a TOML value in a form that compares the order of the recipes, too."""
    if not isinstance(value, dict):
        return value
    items = [(key, with_order(item)) for key, item in value.items()]
    recipes = value.get("recipes")
    return dict(items), list(recipes) if isinstance(recipes, dict) else recipes


def expected_values(values: dict[str, Any], keys: Sequence[str], wanted: Edit) -> dict[str, Any]:
    values = deepcopy(values)
    hook = hook_table(values, keys)
    lists = wanted.lists(hook)
    tables = {**hook.get("recipes", {}), **wanted.added}
    if tables:
        hook["recipes"] = {name: tables[name] for name in wanted.tables}
    if wanted.order:
        hook["order"] = MEASURED
    for model, recipes in lists.items():
        hook.setdefault("models", {}).setdefault(model, {})["recipes"] = recipes
    return values


def edit_document(document: Any, keys: Sequence[str], wanted: Edit) -> None:
    import tomlkit

    hook = hook_table(document, keys)
    lists = wanted.lists(hook)
    if wanted.order:
        hook["order"] = MEASURED
    if tuple(wanted.tables) != wanted.known:
        if "recipes" not in hook:
            hook["recipes"] = tomlkit.table(is_super_table=True)
        recipes = hook["recipes"]
        items = {name: recipes[name] for name in wanted.known}
        for name in wanted.known:
            del recipes[name]
        for name in wanted.tables:
            recipes[name] = items[name] if name in items else toml_table(wanted.added[name])
    for model, listed in lists.items():
        if "models" not in hook:
            hook["models"] = tomlkit.table(is_super_table=True)
        if model not in hook["models"]:
            hook["models"][model] = tomlkit.table()
        hook["models"][model]["recipes"] = listed


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


def lines_to_write(keys: Sequence[str], hook: Mapping[str, Any], wanted: Edit) -> list[str]:
    import tomlkit

    lines = [f"[{'.'.join(keys)}]", f'order = "{MEASURED}"'] if wanted.order else []
    for name, values in wanted.added.items():
        lines += [f"[{'.'.join(keys)}.recipes.{name}]", *tomlkit.dumps(toml_table(values)).splitlines()]
    for model, recipes in wanted.lists(hook).items():
        lines += [f"[{'.'.join(keys)}.models.{quote_key(model)}]", f"recipes = {recipes!r}".replace("'", '"')]
    if wanted.known and tuple(wanted.tables) != wanted.known:
        lines.append(f"with the tables of recipes in this order: {', '.join(wanted.tables)}")
    return lines
