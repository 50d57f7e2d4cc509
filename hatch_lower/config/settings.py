"""The `lower` hook's table as frozen settings, with defaults and checks.

`tables` describes the table and `reader` checks the values. This module resolves names and checks settings against each
other. No code after `read_settings` sees a dictionary.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from packaging.utils import canonicalize_name

from hatch_lower import BACKEND_GROUP, MODEL_GROUP
from hatch_lower.config.checkpoint import (
    LIBRARIES,
    declaration_problems,
    declared_checkpoint,
    declaring_settings,
    place_problems,
)
from hatch_lower.config.option_files import with_contents
from hatch_lower.config.packages import file_name_problems, resolve_package
from hatch_lower.config.precision_file import read_kept
from hatch_lower.config.reader import read_toml_table
from hatch_lower.config.requirements import Extra
from hatch_lower.config.tables import (
    ATOL,
    IN_A_FILE,
    MAX_DROP,
    ON_THE_HUB,
    RTOL,
    BackendChoice,
    BenchTable,
    CacheSettings,
    HookTable,
    ModelTable,
    Precision,
    RecipeTable,
    quote_key,
)
from hatch_lower.errors import ConfigError, nearest
from hatch_lower.frozen import Frozen

HOOK_PATH = "tool.hatch.build.hooks.lower"
ENTRY_POINTS_PATH = f'project.entry-points."{MODEL_GROUP}"'

RECIPE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
MODEL_NAME = re.compile(r"(?!manifest\.json$)[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
OBJECT_REFERENCE = re.compile(r"\s*(?P<module>\w+(\.\w+)*)\s*:\s*(?P<attribute>\w+(\.\w+)*)\s*(\[.*\]\s*)?")


# by the setting `verify`, the reaction to a comparison for which this machine lacks the recipe's device
WITHOUT_DEVICE: Mapping[object, Literal["fail", "interpret"]] = {"required": "fail", "interpret": "interpret"}


class Recipe(Frozen):
    """A lowered variant of each model: `default` at the top level of the table, more under `recipes.<name>`."""

    name: str
    backends: tuple[BackendChoice, ...] = ()
    verify: bool = True
    rtol: float = RTOL
    atol: float = ATOL
    imports: tuple[str, ...] = ()
    on_mismatch: str = "leave-out"  # or `fail`
    without_device: Literal["skip", "fail", "interpret"] = "skip"
    precision: Precision = "float32"
    max_drop: float | None = None  # of the metric; `None`: the model's


class ModelSettings(Frozen):
    """A model: from `[project.entry-points."hatch_lower.models"]` or `models.<name>.export`, with its overrides."""

    name: str
    export: str  # `module:attribute`, or the export of a `CheckpointFolder`
    package: str  # dotted; gets `_lowered/`
    recipes: tuple[str, ...]
    assets: tuple[str, ...] = ()  # globs of files that are packaged beside the programs; in no key
    card: str = ""  # JSON file (relative to the project, posix) with the card for the SBOM; in no key
    weights: tuple[str, ...] = ()  # URLs of files with the weights, or `file` or `hub` alone
    verify_inputs: str = ""  # the sample file (relative to the project, posix) or `module:function` with real inputs
    calibrate: str = ""  # as `verify_inputs`: inputs for the ranges of activations
    # by recipe, the paths of modules that stay in float32, from `precision.toml`
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metric: str = ""  # `module:function`
    max_drop: float = MAX_DROP


class Settings(Frozen):
    """The parsed and checked settings of a build; paths are absolute."""

    root: Path
    name: str  # of the distribution
    version: str
    models: tuple[ModelSettings, ...]  # by name
    recipes: tuple[Recipe, ...]  # in load order
    runtime_requirements: str = "check"  # `check`, `add` or `off`
    check_bytes: int = 1_000_000  # limit of the check data of a model; 0: no check data
    editable: str = "lower"  # `lower`, `known`, `eager` or `skip`
    dependencies: tuple[str, ...] | None = None  # of the project; `None` if not known
    inputs: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    jobs: int = 1
    timeout: int = 3600
    strict: bool = False  # whether an export may read only declared inputs
    cache: CacheSettings = field(default_factory=CacheSettings)
    bench: BenchTable = field(default_factory=BenchTable)  # in no key
    torch_free: tuple[str, ...] = ()  # recipes that must run without torch; in no key
    extras: Mapping[str, Extra] = field(default_factory=dict)  # recipe to its extra; in no key
    executor: str = "local"  # in no key
    keep_weights: bool = False  # in no key
    order: str = "written"  # or `measured`; in no key
    variants: bool = False  # in no key

    @property
    def recipe_order(self) -> tuple[str, ...]:
        return tuple(recipe.name for recipe in self.recipes)


# fields of `Settings` that have the value of the table
COPIED = (
    *("bench", "cache", "editable", "executor", "inputs", "jobs", "keep_weights", "order", "pass_env"),
    *("runtime_requirements", "strict", "timeout", "variants"),
)


class Metadata(Frozen):
    """The project's metadata that settings depend on."""

    name: str
    version: str
    entry_points: Mapping[str, str]  # model name to `module:attribute`
    dependencies: Sequence[str] | None = None
    optional_dependencies: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_settings(
    table: Mapping[str, object],
    project: Metadata,
    *,
    root: Path,
    packages: Sequence[str],
    regular: Collection[str],
    path: str = HOOK_PATH,
) -> Settings:
    """Return the settings of a build; raise `ConfigError` with all problems of the hook's table.

    `packages` are the top-level import packages of the wheel, `regular` the dotted names of all its packages with an
    `__init__.py`, `path` is the dotted TOML path of the table.
    """
    entry_points, dependencies = project.entry_points, project.dependencies
    problems: list[str] = []
    given = read_toml_table(HookTable, table, path, problems)
    recipes = resolve_recipes(given, root, path, problems)
    order, extras = tuple(recipes), resolve_extras(given, project.optional_dependencies, path, problems)
    models = tuple(resolve_models(given, entry_points, packages, regular, order, path, problems))
    lowered_for = dict.fromkeys(entry_points, order)
    lowered_for |= {name: order if model.recipes is None else model.recipes for name, model in given.models.items()}
    problems += unknown_limits(given.bench, path, order, lowered_for)
    problems += glob_problems(given, path)
    problems += weights_problems(given.weights, f"{path}.weights")
    for each, model in given.models.items():
        problems += weights_problems(model.weights or (), f"{path}.models.{quote_key(each)}.weights")
    problems += [] if problems else useless_limits(given, lowered_for, path)
    if problems:
        count = "a setting" if len(problems) == 1 else f"{len(problems)} settings"
        what = f"{count} of the build hook `lower` {'is' if len(problems) == 1 else 'are'} wrong"
        hint = "correct pyproject.toml (or hatch.toml); `hatch-lower schema` describes every setting"
        raise ConfigError(what, found="\n".join(problems), hint=hint)
    # the names of models and recipes in the other file are looked up in a table without problems
    kept = read_kept(root, {each.name: {name: recipes[name].precision for name in each.recipes} for each in models})
    models = tuple(replace(each, kept=kept.get(each.name, {})) for each in models)
    return Settings(
        root=root.absolute(),
        name=project.name,
        version=project.version,
        models=models,
        recipes=tuple(recipes.values()),
        dependencies=None if dependencies is None else tuple(dependencies),
        torch_free=tuple(resolve_torch_free(given, recipes)),
        extras=extras,
        check_bytes=int(given.check_megabytes * 1e6),
        **{name: getattr(given, name) for name in COPIED},
    )


def glob_problems(given: HookTable, path: str) -> list[str]:
    globs = {f"{path}.inputs": given.inputs}
    globs |= {f"{path}.models.{quote_key(name)}.assets": model.assets for name, model in given.models.items()}
    return [
        f"`{here}[{i}]` must be a glob relative to the project and within it, found `{pattern}`"
        for here, patterns in globs.items()
        for i, pattern in enumerate(patterns)
        if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts
    ]


def useless_limits(given: HookTable, lowered_for: Mapping[str, Collection[str]], path: str) -> Iterator[str]:
    """Yield a sentence for each `max-drop` without a `metric` to limit; `lowered_for` has the recipes of models."""
    for name, model in given.models.items():
        if model.max_drop is not None and model.metric is None:
            yield f"`{path}.models.{quote_key(name)}.max-drop` limits nothing: the model has no `metric`"
    for name, recipe in given.recipes.items():
        gated = (name in lowered_for[each] for each, model in given.models.items() if model.metric is not None)
        if recipe.max_drop is not None and not any(gated):
            yield f"`{path}.recipes.{quote_key(name)}.max-drop` limits nothing: no model of the recipe has a `metric`"


def resolve_recipes(given: HookTable, root: Path, path: str, problems: list[str]) -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    check_backends(given.backends, path, problems)
    at_top = with_contents(given.backends, root, path, problems)
    first = {} if "default" in given.recipes else {"default": RecipeTable()}
    for name, recipe in {**first, **given.recipes}.items():
        here = f"{path}.recipes.{quote_key(name)}"
        if not RECIPE_NAME.fullmatch(name):
            problems.append(f"`{here}` must be named with letters, digits, `_` and `-`: the name becomes a file name")
        problems += file_name_problems(name, here)
        if name == "default" and given.backends and recipe.backends is not None:
            problems.append(f"`{here}.backends` repeats `{path}.backends`; keep either")
        check_backends(recipe.backends or (), here, problems)
        own = with_contents(recipe.backends or (), root, here, problems)
        verify = given.verify if recipe.verify is None else recipe.verify
        recipes[name] = Recipe(
            name,
            at_top if name == "default" and recipe.backends is None else own,
            verify=verify is not False,
            rtol=given.rtol if recipe.rtol is None else recipe.rtol,
            atol=given.atol if recipe.atol is None else recipe.atol,
            imports=given.imports,
            on_mismatch=recipe.on_mismatch or given.on_mismatch,
            without_device=WITHOUT_DEVICE.get(verify, "skip"),
            precision=recipe.precision or "float32",
            max_drop=recipe.max_drop,
        )
    return recipes


def resolve_torch_free(given: HookTable, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    for name in recipes:
        own = given.recipes[name].torch_free if name in given.recipes else None
        if given.torch_free if own is None else own:
            yield name


def resolve_extras(
    given: HookTable, known: Mapping[str, Sequence[str]], path: str, problems: list[str]
) -> dict[str, Extra]:
    named = {name: recipe.extra for name, recipe in given.recipes.items() if recipe.extra is not None}
    normal = {name: str(canonicalize_name(extra)) for name, extra in named.items()}
    problems += [
        f"`{path}.recipes.{quote_key(name)}.extra` names no extra of the project, found `{named[name]}`;"
        f" {nearest(extra, known)}"
        for name, extra in normal.items()
        if extra not in known
    ]
    return {name: Extra(extra, tuple(known[extra])) for name, extra in normal.items() if extra in known}


def check_backends(choices: Sequence[BackendChoice], path: str, problems: list[str]) -> None:
    # by entry points alone: backends are not imported
    if {choice.name for choice in choices} <= own_backends():
        return
    installed = {point.name for point in importlib.metadata.entry_points(group=BACKEND_GROUP)}
    problems += [
        f"`{path}.backends[{i}]` names no installed backend, found `{choice.name}`; {nearest(choice.name, installed)}"
        for i, choice in enumerate(choices)
        if choice.name and choice.name not in installed
    ]


def own_backends() -> set[str]:
    # entry points of all distributions take longer to find
    try:
        own = importlib.metadata.distribution("hatch-lower")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return set()
    return {point.name for point in own.entry_points if point.group == BACKEND_GROUP}


def recipe_problems(names: Sequence[str], known: Collection[str], path: str) -> Iterator[str]:
    for i, name in enumerate(names):
        if name and name not in known:  # an empty name was already reported as ill-typed
            yield f"`{path}[{i}]` names no recipe, found `{name}`; {nearest(name, known)}"
        elif name and name in names[:i]:
            yield f"`{path}[{i}]` names the recipe `{name}` again"


def weights_problems(urls: Sequence[str], path: str) -> Iterator[str]:
    if alone := next((word for word in (IN_A_FILE, ON_THE_HUB) if word in urls and len(urls) > 1), ""):
        yield f'`{path}` must be `"{alone}"` alone, or URLs: a build looks into files or writes one'
    for i, url in enumerate(urls):
        if url and url in urls[:i]:
            yield f"`{path}[{i}]` names `{url}` again"


def unknown_limits(
    bench: BenchTable, path: str, recipes: Collection[str], models: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Yield a sentence for each table of limits whose model or recipe does not exist; `models` have their recipes."""
    yield from unknown_tables(bench.recipes, recipes, f"{path}.bench.recipes", "recipe")
    yield from unknown_tables(bench.models, models, f"{path}.bench.models", "model")
    for name in sorted(bench.models.keys() & models.keys()):
        here = f"{path}.bench.models.{quote_key(name)}.recipes"
        yield from unknown_tables(bench.models[name].recipes, models[name], here, "recipe of the model")


def unknown_tables(tables: Collection[str], known: Collection[str], path: str, noun: str) -> Iterator[str]:
    return (
        f"`{path}.{quote_key(name)}` is not the name of a {noun}; {nearest(name, known)}"
        for name in tables
        if name not in known
    )


def resolve_models(
    given: HookTable,
    entry_points: Mapping[str, str],
    packages: Sequence[str],
    regular: Collection[str],
    order: tuple[str, ...],
    path: str,
    problems: list[str],
) -> Iterator[ModelSettings]:
    """Yield the models without problems, by name."""
    if not entry_points and not given.models:
        problems.append(
            f"the project declares no model; list one under `[{ENTRY_POINTS_PATH}]`, "
            f"or in the hook's own table as `{path}.models.<name>.export`"
        )
    folded: dict[str, str] = {}
    for name in sorted(entry_points.keys() | given.models.keys()):
        here = f"{path}.models.{quote_key(name)}"
        override = given.models.get(name, ModelTable())
        sources = declaring_settings(override)
        setting = next(iter(sources), "export")
        declared = f"{ENTRY_POINTS_PATH}.{quote_key(name)}" if name in entry_points else f"{here}.{setting}"
        found = len(problems)
        if other := folded.get(name.casefold()):
            problems.append(f"`{declared}` differs from the model `{other}` only in case; the two would share files")
        folded[name.casefold()] = name
        if not MODEL_NAME.fullmatch(name):
            problems.append(
                f"`{declared}` must be named with letters, digits, `_`, `-` and inner dots: the name becomes a folder"
            )
        problems += file_name_problems(name, declared)
        if name in entry_points and sources:
            problems.append(f"`{here}.{setting}` repeats the model that `{declared}` declares; keep either")
        problems += declaration_problems(override, here)
        problems += place_problems(override, given.weights, name, here)
        if name not in entry_points and not sources:
            problems.append(
                f"`{here}` is not the name of a model and has no `export` or checkpoint"
                f" ({', '.join(f'`{library}`' for library in LIBRARIES)}); {nearest(name, entry_points)}"
            )
            continue
        recipes = override.recipes if override.recipes is not None else order
        problems += recipe_problems(recipes, order, f"{here}.recipes")
        if not recipes:
            problems.append(f"`{here}.recipes` must name at least one recipe; {nearest('', order)}")
        if (checkpoint := declared_checkpoint(override)) is not None:
            module, export = "", checkpoint.export
        else:
            export = entry_points.get(name) or sources.get("export", "")
            match = OBJECT_REFERENCE.fullmatch(export)
            if match is None:
                problems.append(f"`{declared}` must be written `module:attribute`, found `{export}`")
                continue
            module, export = match["module"], f"{match['module']}:{match['attribute']}"
        package = resolve_package(given, override, module, packages, regular, path, here, problems)
        if package is not None and len(problems) == found:
            ordered = tuple(recipe for recipe in order if recipe in recipes)
            yield model_settings(name, export, package, ordered, override, given)


def model_settings(
    name: str, export: str, package: str, recipes: tuple[str, ...], override: ModelTable, given: HookTable
) -> ModelSettings:
    return ModelSettings(
        name,
        export,
        package,
        recipes,
        override.assets,
        card=override.card or "",
        weights=given.weights if override.weights is None else override.weights,
        verify_inputs=override.verify_inputs or "",
        calibrate=override.calibrate or "",
        metric=override.metric or "",
        max_drop=MAX_DROP if override.max_drop is None else override.max_drop,
    )


def is_sample_file(source: str) -> bool:
    return source.endswith(".safetensors")
