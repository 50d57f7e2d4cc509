"""The engines that a wheel's recipes require, and the versions of each engine to try."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from hatch_lower.builds import contains
from hatch_lower.cli.matrix.releases import Release
from hatch_lower.driver.contents import WheelModels, find_contents
from hatch_lower.driver.opened_wheel import open_wheel
from hatch_lower.errors import ConfigError, ProgramError, nearest
from hatch_lower.frozen import Frozen

# no engines unless named: hatch-lower itself, and the libraries of arrays
NO_ENGINES = frozenset({"hatch-lower", "ml-dtypes", "numpy", "torch"})
LOWER, UPPER = (">", ">="), ("<", "<=")  # operators of bounds
METADATA, RECIPES = "the wheel's metadata", "the recipes"


class TriedRecipe(Frozen):
    """A recipe of a model, and its requirements; `imports` if it runs code of the project or of its dependencies."""

    model: str
    recipe: str
    requirements: tuple[str, ...]
    imports: bool = False


class Engine(Frozen):
    """A distribution that recipes require, in the versions that the wheel allows."""

    name: str
    allowed: SpecifierSet
    source: str  # the place of the requirement: the wheel's metadata, or only the recipes
    recipes: tuple[TriedRecipe, ...]
    others: tuple[str, ...]  # further requirements of the recipes

    @property
    def requirement(self) -> str:
        return f"{self.name}{','.join(sorted(map(str, self.allowed), key=specifier_order))}"


def specifier_order(text: str) -> tuple[int, str]:
    return (0 if text.startswith(LOWER) else 2 if text.startswith(UPPER) else 1, text)


class WheelRequirements(Frozen):
    distribution: str
    recipes: tuple[TriedRecipe, ...]
    declared: tuple[Requirement, ...]  # of the metadata, without the requirements of other machines


def read_tried_wheel(wheel: Path, model: str | None, recipe: str | None) -> WheelRequirements:
    """Return the recipes of a wheel, or the chosen recipes, and the requirements in the wheel's metadata."""
    contents = find_contents(wheel)
    try:
        name, _, _, _ = parse_wheel_filename(wheel.name)
        head = HeaderParser().parsestr(open_wheel(wheel).metadata("METADATA") or "")
        declared = [Requirement(text) for text in head.get_all("Requires-Dist", [])]
        here = tuple(each for each in declared if is_for_this_machine(each))
        recipes = [each for folder in contents for each in recipes_in(folder)]
        for text in (text for each in recipes for text in each.requirements):
            Requirement(text)  # raises for a text of another form
    except (InvalidWheelFilename, InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        raise ProgramError("the wheel cannot be installed", where=str(wheel), found=str(error)) from error
    chosen = [each for each in recipes if model in (None, each.model) and recipe in (None, each.recipe)]
    if not chosen:
        known = [f"{each.model}, {each.recipe}" for each in recipes]
        found = nearest(", ".join(part for part in (model, recipe) if part), known)
        hint = "select a model with `--model`, and a recipe with `--recipe`"
        raise ProgramError("there is no such recipe", where=str(wheel), found=found, hint=hint)
    return WheelRequirements(name, tuple(chosen), here)


def recipes_in(folder: WheelModels) -> Iterator[TriedRecipe]:
    for model, entry in sorted(folder.manifest.models.items()):
        for name in entry.order:
            recipe = entry.recipes[name]
            yield TriedRecipe(model, name, recipe.requirements, bool(recipe.imports))


def is_for_this_machine(requirement: Requirement) -> bool:
    """Return whether a requirement holds here, with or without an extra of the project."""
    if requirement.marker is None:
        return True
    extras = extras_in(str(requirement.marker))
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def extras_in(marker: str) -> list[str]:
    return re.findall(r'\bextra == "([^"]+)"', marker)


def find_engines(wheel: WheelRequirements, names: Collection[str], where: str) -> list[Engine]:
    """Return the engines of a wheel, or the named engines; raise `ProgramError` if there are none."""
    required: dict[str, list[TriedRecipe]] = {}
    for recipe in wheel.recipes:
        for name in sorted({installed_name(text, wheel.declared) for text in recipe.requirements}):
            required.setdefault(name, []).append(recipe)
    wanted: list[str] = [canonicalize_name(name) for name in names]
    if unknown := [name for name in wanted if name not in required]:
        raise ProgramError(
            "no recipe requires this engine",
            where=f"`--engine {unknown[0]}`",
            found=nearest(unknown[0], required),
            hint="name a distribution that a recipe requires",
        )
    chosen = wanted or [name for name in required if name not in NO_ENGINES]
    if not chosen:
        raise ProgramError(
            "the wheel has no recipe of an engine",
            where=where,
            found="\n".join(f"{each.model}, {each.recipe}: {', '.join(each.requirements)}" for each in wheel.recipes),
            hint="name a distribution with `--engine`: `--engine torch` tries the versions of torch",
        )
    return [ranged_engine(name, required[name], wheel.declared, where) for name in dict.fromkeys(chosen)]


def installed_name(requirement: str, declared: Iterable[Requirement]) -> str:
    """Return the distribution that meets a recipe's requirement: the build of the library that the wheel requires."""
    name = canonicalize_name(Requirement(requirement).name)
    builds = [canonicalize_name(each.name) for each in declared]
    return next((build for build in builds if contains(build, name)), name) if name not in builds else name


def ranged_engine(name: str, recipes: Sequence[TriedRecipe], declared: Sequence[Requirement], where: str) -> Engine:
    own = [each for each in declared if canonicalize_name(each.name) == name]
    if url := next((each.url for each in own if each.url), None):
        raise ConfigError(
            "the wheel requires one file of the engine, not a range of versions",
            where=where,
            found=f"`{name} @ {url}`",
            hint=f"let `[project] dependencies` name versions, such as `{name}>=1.23,<2`",
        )
    texts = sorted({text for recipe in recipes for text in recipe.requirements})
    used = {installed_name(text, declared) for text in texts}
    allowed = own or [Requirement(text) for text in texts if installed_name(text, declared) == name]
    specifier = SpecifierSet(",".join(sorted({str(each.specifier) for each in allowed if each.specifier})))
    bounds = declared if any(recipe.imports for recipe in recipes) else ()  # the project's code may import all of these
    more = [each for each in declared if canonicalize_name(each.name) in used]
    texts += sorted({without_marker(each) for each in (*more, *bounds)})
    others = [text for text in texts if canonicalize_name(Requirement(text).name) not in {name, "hatch-lower"}]
    others = [text for text in others if not contains(name, canonicalize_name(Requirement(text).name))]
    return Engine(name, specifier, METADATA if own else RECIPES, tuple(recipes), tuple(dict.fromkeys(others)))


def without_marker(requirement: Requirement) -> str:
    plain = Requirement(str(requirement))
    plain.marker = None
    return str(plain)


class EngineTrial(Frozen):
    """A version of an engine to try, or the reason why it cannot be installed here."""

    version: Version
    reason: str = ""


def choose_trials(engine: Engine, releases: Sequence[Release], places: Iterable[str]) -> list[EngineTrial]:
    """Return the oldest version and the newest of each minor version that the wheel allows, in ascending order.

    A version without a wheel for this machine is a trial with a reason; beside it stands the next version of the same
    kind with a wheel. Raises `ProgramError` if no version is allowed.
    """
    allowed = [each for each in releases if engine.allowed.contains(each.version)]
    if not allowed:
        known = ", ".join(str(each.version) for each in releases[-5:]) or "no version"
        raise ProgramError(
            "the index has no version that the wheel allows",
            where=f"`{engine.requirement}`, from {engine.source}",
            found=f"{known} in {', '.join(places) or 'no place'}",
            hint="name the index of this engine in pip's settings or uv's variables, or correct the requirement",
        )
    minors: dict[tuple[int, ...], list[Release]] = {}
    for release in allowed:
        minors.setdefault(minor_of(release.version), []).append(release)
    groups = [allowed, *(group[::-1] for group in minors.values())]
    chosen = {release.version: release for group in groups for release in first_installable(group)}
    return [EngineTrial(version, chosen[version].reason) for version in sorted(chosen)]


def first_installable(releases: Sequence[Release]) -> Iterator[Release]:
    """Yield the first release, and if it cannot be installed, the first release that can."""
    yield releases[0]
    if releases[0].reason:
        yield from [release for release in releases if not release.reason][:1]


def minor_of(version: Version) -> tuple[int, ...]:
    return (version.epoch, *version.release, 0)[:3]
