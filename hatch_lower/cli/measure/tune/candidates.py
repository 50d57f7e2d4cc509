"""Candidates for the recipe of a model: the project's recipes, and engines with options and precisions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from hatch_lower import BACKEND_GROUP
from hatch_lower.backends.early import refuse_missing_tools
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.config.tables import BackendChoice, Precision
from hatch_lower.config.timed import recipe_digest, timed_settings
from hatch_lower.errors import BackendError, ConfigError, nearest
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.selection import BASELINES

Aim: TypeAlias = Literal["latency", "throughput", "size", "memory"]

ENGINES = ("aoti", "onnxruntime", "openvino", "executorch")  # engines of the processor, tried without being named
PORTABLE = "portable"
# engines with an option for their own number of threads
THREADED = ("executorch", "onnxruntime", "openvino")
ISA, PREPACK, THREADS = "isa", "prepack-weights", "threads"
PORTABLE_OPERATORS = "portable-operators"  # of `executorch`: fewer partitions, slower kernels
DEFAULT_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3")  # for machines of these levels `aoti` compiles without an option


class TunedCandidate(Frozen):
    recipe: Recipe
    is_written: bool = False  # in the project's table
    torch_free: bool = False  # left out if the recipe needs torch

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def options(self) -> int:
        return sum(len(choice.options) for choice in self.recipe.backends)

    def of(self, name: str, backends: Sequence[BackendChoice], precision: Precision) -> TunedCandidate:
        """Return a candidate with other backends and another precision, and with the other settings of this one."""
        recipe = replace(self.recipe, name=name, backends=tuple(backends), precision=precision)
        return replace(self, recipe=recipe)

    def without_threads(self) -> tuple[BackendChoice, ...]:
        """Return the backends with the engines' own numbers of threads."""
        return tuple(
            replace(choice, options={name: value for name, value in choice.options.items() if name != THREADS})
            for choice in self.recipe.backends
        )

    @property
    def needs_level(self) -> bool:
        """Whether the candidate runs only on machines of a level beyond the default."""
        return any(ISA in choice.options for choice in self.recipe.backends)


class Candidates:
    """The model's recipes, and other candidates with settings of their own, in the order of their addition.

    New candidates have the tolerances and the needs of the model's first recipe, which a choice replaces.
    """

    def __init__(self, settings: Settings, model: str) -> None:
        self._found = own_candidates(settings, model)
        self._template = new_candidate(settings, model)
        self._taken = set(settings.recipe_order)
        for recipe in settings.recipes:
            self._add(written_candidate(settings, recipe))

    def __iter__(self) -> Iterator[TunedCandidate]:
        return iter(list(self._found))

    def add(self, backends: Sequence[BackendChoice], precision: Precision = "float32") -> TunedCandidate | None:
        """Add a recipe, with a name made of its settings; return `None` for settings that are a candidate already."""
        candidate = self._template.of(PORTABLE, backends, precision)
        return self._add(candidate.of(self._free_name(settings_name(candidate.recipe)), backends, precision))

    def _add(self, candidate: TunedCandidate) -> TunedCandidate | None:
        digest = recipe_digest(candidate.recipe)
        if any(recipe_digest(each.recipe) == digest for each in self._found):
            return None
        self._found.append(candidate)
        self._taken.add(candidate.name)
        return candidate

    def _free_name(self, wanted: str) -> str:
        numbered = (f"{wanted}-{number}" for number in range(2, len(self._taken) + 3))
        return next(name for name in (wanted, *numbered) if name not in self._taken)


def written_candidate(settings: Settings, recipe: Recipe) -> TunedCandidate:
    """Return a recipe of the project, which the build compares with eager, whatever the project's setting."""
    return TunedCandidate(replace(recipe, verify=True), is_written=True, torch_free=recipe.name in settings.torch_free)


def own_candidates(settings: Settings, model: str) -> list[TunedCandidate]:
    """Return the recipes of a model in load order."""
    (own,) = (each for each in settings.models if each.name == model)
    return [written_candidate(settings, recipe) for recipe in settings.recipes if recipe.name in own.recipes]


def new_candidate(settings: Settings, model: str) -> TunedCandidate:
    """Return the pattern of new candidates, with the tolerances and the needs of the model's first recipe."""
    first, *_ = own_candidates(settings, model)
    return replace(first, recipe=replace(first.recipe, max_drop=None), is_written=False)


def settings_name(recipe: Recipe) -> str:
    """Return a name made of the settings, such as `openvino-int8` or `aoti-x86-64-v4-no-prepack-weights`."""
    parts = [choice.name for choice in recipe.backends] or [PORTABLE]
    for choice in recipe.backends:
        parts += [option_name(name, value) for name, value in choice.options.items()]
    return "-".join(parts if recipe.precision == "float32" else [*parts, recipe.precision])


def option_name(name: str, value: object) -> str:
    if name == THREADS:
        return f"{value}-thread{'' if value == 1 else 's'}"
    if name == ISA:
        return str(value)
    return name if value else f"no-{name}"


def first_candidates(
    settings: Settings, model: str, named: Sequence[str], precisions: Iterable[Precision]
) -> Candidates:
    """Return the project's recipes, the portable recipe, and each engine without options, in each precision."""
    found = Candidates(settings, model)
    wanted = dict.fromkeys(("float32", *precisions, *(recipe.precision for recipe in settings.recipes)))
    for precision in wanted:
        found.add((), precision)
        for engine in named or ENGINES:
            found.add((BackendChoice(engine),), precision)
    return found


def variants(
    candidate: TunedCandidate, level: str, threads: int
) -> Iterator[tuple[tuple[BackendChoice, ...], Precision]]:
    """Yield the settings of a candidate of a single engine without options, with options for this machine."""
    if len(candidate.recipe.backends) != 1 or candidate.options:
        return
    (choice,), precision = candidate.recipe.backends, candidate.recipe.precision
    given: Sequence[Mapping[str, object]] = ()
    if choice.name == "aoti":
        isa = level.removesuffix("-vnni") if precision in ("float32", "bfloat16", "float16") else level
        newer = isa not in (*DEFAULT_LEVELS, *BASELINES)
        # the other value than the default of the machine
        packing: Mapping[str, object] = {PREPACK: level in BASELINES}
        given = [packing, {ISA: isa}, {ISA: isa, **packing}] if newer else [packing]
    elif choice.name in THREADED:
        given = [{THREADS: 1}] if threads > 1 else []
        if choice.name == "executorch":
            given = [*given, {PORTABLE_OPERATORS: True}]
    for options in given:
        yield (BackendChoice(choice.name, options),), precision


def settings_of_candidate(settings: Settings, model: ModelSettings, candidate: TunedCandidate) -> Settings:
    """Return the settings of a build of a model for the candidate alone, which may require further dependencies.

    The weights are in the folder of the candidate, also if the project publishes the weights elsewhere.
    """
    return replace(
        settings,
        models=(replace(model, recipes=(candidate.name,), assets=(), weights=()),),
        recipes=(candidate.recipe,),
        torch_free=(candidate.name,) if candidate.torch_free else (),
        extras={},
        # not `off`: a build compares the candidate in a process that has the required distributions only
        runtime_requirements="add",
        jobs=1,
    )


def tools_error(candidate: TunedCandidate, settings: Settings) -> BackendError | None:
    """Return the error of a build that lacks a candidate's tools; `None` if all tools are installed."""
    try:
        refuse_missing_tools(replace(settings, recipes=(candidate.recipe,)))
    except BackendError as error:
        return error
    return None


def refuse_no_engine(settings: Settings, named: Sequence[str]) -> None:
    """Raise `ConfigError` for a named backend that is unknown or lacks tools, or if no engine is installed."""
    known = importlib.metadata.entry_points(group=BACKEND_GROUP).names
    if unknown := [name for name in named if name not in known]:
        raise ConfigError("there is no such backend", where="`--backend`", found=nearest(unknown[0], known))
    plain = [TunedCandidate(Recipe(name, (BackendChoice(name),))) for name in named or ENGINES]
    errors = [error for each in plain if (error := tools_error(each, settings)) is not None]
    if errors if named else len(errors) == len(plain):
        raise ConfigError(
            "a named engine is not installed" if named else "no engine is installed",
            where="`--backend`" if named else "this environment",
            found="\n".join(f"{error.what}: {error.found}" for error in errors),
            hint=errors[-1].hint,
        )


def settings_text(recipe: Recipe) -> str:
    """Return a recipe's settings for people: `openvino (threads=1), int8`."""
    names = []
    for choice in timed_settings(recipe)["backends"]:
        options = ", ".join(f"{name}={value}" for name, value in choice.get("options", {}).items())
        names.append(f"{choice['name']} ({options})" if options else choice["name"])
    text = " then ".join(names) or PORTABLE
    return text if recipe.precision == "float32" else f"{text}, {recipe.precision}"
