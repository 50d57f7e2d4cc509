"""What the lowered programs need at run time, against what the project's metadata asks for."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

OWN_NAME = "hatch-lower"
OTHER_MODES = {"check": '"add" or "off"', "add": '"off"'}  # modes without the errors of a mode


class Extra(Frozen):
    """An extra of the project that brings what a recipe requires beyond the project's dependencies."""

    name: str
    dependencies: tuple[str, ...]


class Unmet(Frozen):
    """Why the project's dependencies do not imply a requirement."""

    reason: str
    wide: bool = False  # a dependency allows the versions that are needed, and others
    excluded: bool = False  # a dependency allows none of the versions that are needed


class Addition(Frozen):
    """A requirement that the wheel's metadata has beside the project's dependencies."""

    requirement: str
    reason: str


def read_requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def required_by(distribution: str) -> list[Requirement]:
    """Return what an installed distribution requires; nothing of one that is not installed."""
    try:
        return [Requirement(text) for text in importlib.metadata.requires(distribution) or ()]
    except importlib.metadata.PackageNotFoundError:
        return []


def requirements_to_add(
    mode: str,
    required: Mapping[str, Iterable[str]],
    declared: Sequence[str],
    extras: Mapping[str, Extra] = MappingProxyType({}),
) -> tuple[Addition, ...]:
    """Return the requirements to append to the wheel's metadata; raise `ConfigError` for dependencies that fall short.

    `required` is what each recipe requires, `declared` are the project's dependencies, `extras` those of recipes.
    A dependency that lacks a bound does not fall short, in any mode: the wheel's metadata has the bound.
    """
    if mode == "off":
        return ()
    common = sorted({text for recipe, texts in required.items() if recipe not in extras for text in texts})
    added = find_added(mode, common, declared)
    known = [*declared, *(addition.requirement for addition in added)]
    for recipe, extra in extras.items():
        unmet = find_unmet(sorted(required.get(recipe, ())), [*known, *extra.dependencies])
        # an extra without a distribution that it needs cannot be appended to
        if lacks := {text: each for text, each in unmet.items() if not each.wide}:
            texts = ", ".join(f'"{requirement}"' for requirement in lacks)
            raise ConfigError(
                f"the project's extra `{extra.name}` does not imply what its recipe `{recipe}` needs at run time",
                where=f"project.optional-dependencies.{extra.name}",
                found=unmet_lines(lacks),
                hint=f"let it contain {texts}",
            )
        added += tuple(Addition(f'{text}; extra == "{extra.name}"', each.reason) for text, each in unmet.items())
    return tuple(dict.fromkeys(added))


def find_added(mode: str, required: Sequence[str], declared: Sequence[str]) -> tuple[Addition, ...]:
    unmet = find_unmet(required, declared)
    lacks = {text: each for text, each in unmet.items() if (not each.wide if mode == "check" else each.excluded)}
    if lacks:
        lines = "".join(f'\n    "{requirement}",' for requirement in lacks)
        raise ConfigError(
            "the project's dependencies do not imply what its lowered programs need at run time",
            where="project.dependencies",
            found=unmet_lines(lacks),
            hint=f"let `[project] dependencies` contain\ndependencies = [{lines}\n]\n"
            f"or set `runtime-requirements` of the build hook `lower` to {OTHER_MODES[mode]}",
        )
    return tuple(Addition(text, each.reason) for text, each in unmet.items())


def unmet_lines(unmet: Mapping[str, Unmet]) -> str:
    return "\n".join(f"`{requirement}`: {each.reason}" for requirement, each in unmet.items())


def find_unmet(required: Sequence[str], declared: Sequence[str]) -> dict[str, Unmet]:
    """Return the requirements that are not implied, each with a reason."""
    # Careful rather than clever: a dependency with an environment marker, or one that names a URL, implies nothing,
    # since neither says which version there will be. An extra of hatch-lower stands for what it consists of here:
    # `hatch-lower[openvino]` implies OpenVINO.
    dependencies = [Requirement(dependency) for dependency in declared]
    for dependency in tuple(dependencies):
        if dependency.extras and canonicalize_name(dependency.name) == OWN_NAME and dependency.marker is None:
            dependencies += own_requirements(dependency.extras)
    unmet = {}
    for text in required:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        alike = [dependency for dependency in dependencies if canonicalize_name(dependency.name) == name]
        if found := unmet_by(requirement, alike):
            unmet[text] = found
    return unmet


def own_requirements(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what extras of hatch-lower consist of, as far as its metadata are installed."""
    markers = {f'extra == "{canonicalize_name(extra)}"' for extra in extras}
    for requirement in required_by(OWN_NAME):
        if str(requirement.marker) in markers:
            requirement.marker = None
            yield requirement


def names_torch(requirement: str) -> bool:
    return canonicalize_name(Requirement(requirement).name) == "torch"


def refuse_incomplete() -> None:
    """Refuse to build without packages of the extra `build`; a build of what is known may do without some of them."""
    missing = [str(each) for each in own_requirements(["build"]) if not is_installed(each.name)]
    if missing:
        raise ConfigError(
            "hatch-lower is installed without packages that it builds with",
            found="\n".join(f"`{requirement}` is not installed" for requirement in missing),
            hint="install `hatch-lower[build]`; a build in an isolated environment does so by itself",
        )


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def distributions_required(requirements: Iterable[str]) -> frozenset[str]:
    """Return the normal names of the distributions that requirements bring here: those that they require, too."""
    pending = [Requirement(text) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in sorted({"", *requirement.extras} - {known for owner, known in seen if owner == name}):
            seen.add((name, extra))
            # if it is not installed here, nothing can be hidden on its behalf
            pending += [
                each for each in required_by(name) if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return frozenset(name for name, _ in seen)


def unmet_by(requirement: Requirement, candidates: Sequence[Requirement]) -> Unmet | None:
    if not candidates:
        return Unmet("not among the dependencies")
    certain = [candidate for candidate in candidates if candidate.marker is None]
    if not certain:
        return Unmet(f"`{candidates[0]}` holds only where its marker does")
    if any(dependency.url for dependency in certain):
        return Unmet(f"`{certain[0]}` does not say which version it is")
    missing = requirement.extras - {extra for dependency in certain for extra in dependency.extras}
    if missing:
        return Unmet(f"`{certain[0]}` does not ask for the extra `{sorted(missing)[0]}`")
    allowed = SpecifierSet(",".join(str(dependency.specifier) for dependency in certain if dependency.specifier))
    outside = version_outside(allowed, requirement.specifier)
    if not outside:
        return None
    if not have_common_version(allowed, requirement.specifier):
        return Unmet(f"`{certain[0]}` allows none of these versions", excluded=True)
    return Unmet(f"`{certain[0]}` also allows {outside}", wide=True)


def have_common_version(allowed: SpecifierSet, wanted: SpecifierSet) -> bool:
    points = (point for specifier in (*allowed, *wanted) for point in points_around(specifier.version))
    both = allowed & wanted
    return any(both.contains(point, prereleases=True) for point in points)


def version_outside(allowed: SpecifierSet, wanted: SpecifierSet) -> str:
    # Both sets are unions of intervals that end at the versions they name, so it is enough to look at those versions
    # and closely around them. Pre-releases count where `allowed` names one.
    points = sorted({point for specifier in (*allowed, *wanted) for point in points_around(specifier.version)})
    early = bool(allowed.prereleases)
    for point in points:
        if allowed.contains(point, prereleases=early) and not wanted.contains(point, prereleases=True):
            return str(point)
    return ""


def points_around(text: str) -> Iterator[Version]:
    try:
        version = Version(text.removesuffix(".*"))
    except InvalidVersion:  # `===` takes any text
        return
    yield version
    release = version.release
    epoch = f"{version.epoch}!"
    for level in range(1, len(release) + 1):
        head = release[:level]
        following = (*head[:-1], head[-1] + 1)
        for stem in (head, following):
            joined = epoch + ".".join(map(str, stem))
            yield from (Version(joined + suffix) for suffix in ("", ".dev0", "rc1", ".post1", ".0.1", ".99999"))
        if head[-1] > 0:
            yield Version(epoch + ".".join(map(str, (*head[:-1], head[-1] - 1, 99999))))
    yield Version(f"{epoch}0")
    yield Version(f"{epoch}99999")
