"""Requirements of the lowered programs at run time, compared with the project's metadata."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from hatch_lower.builds import builds_of, clashing_builds, contains
from hatch_lower.errors import ConfigError
from hatch_lower.frozen import Frozen

OWN_NAME = "hatch-lower"
OTHER_MODES = {"check": '"add" or "off"', "add": '"off"'}  # mode to the modes with fewer errors


class Extra(Frozen):
    """Extra of the project with the requirements of a recipe beyond the project's dependencies."""

    name: str
    dependencies: tuple[str, ...]


class Unmet(Frozen):
    """Reason why the project's dependencies do not imply a requirement."""

    reason: str
    wide: bool = False  # a dependency allows the needed versions and more
    excluded: bool = False  # a dependency allows no needed version


class Addition(Frozen):
    """Requirement that is added to the project's dependencies in the wheel's metadata."""

    requirement: str
    reason: str


def read_requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def required_by(distribution: str) -> list[Requirement]:
    """Return the requirements of a distribution; empty if the distribution is not installed."""
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

    `required` are the requirements of each recipe, `declared` the project's dependencies, `extras` those of recipes.
    A dependency that lacks a bound is accepted in any mode: the wheel's metadata has the bound.
    """
    if mode == "off":
        return ()
    common = join_builds({text for recipe, texts in required.items() if recipe not in extras for text in texts})
    added = find_added(mode, common, declared)
    known = [*declared, *(addition.requirement for addition in added)]
    refuse_clash(known, "project.dependencies")
    for recipe, extra in extras.items():
        unmet = find_unmet(sorted(required.get(recipe, ())), [*known, *extra.dependencies])
        # a distribution that is missing in an extra is not appended
        if lacks := {text: each for text, each in unmet.items() if not each.wide}:
            texts = ", ".join(f'"{requirement}"' for requirement in lacks)
            raise ConfigError(
                f"the project's extra `{extra.name}` does not imply the requirements of its recipe `{recipe}`",
                where=f"project.optional-dependencies.{extra.name}",
                found=unmet_lines(lacks),
                hint=f"let it contain {texts}",
            )
        refuse_clash([*known, *extra.dependencies], f"project.optional-dependencies.{extra.name}")
        added += tuple(Addition(f'{text}; extra == "{extra.name}"', each.reason) for text, each in unmet.items())
    return tuple(dict.fromkeys(added))


def join_builds(required: Iterable[str]) -> list[str]:
    """Return sorted requirements, without a requirement that another build of the same library meets."""
    texts = sorted(set(required))
    return [text for text in texts if not any(implies_as_build(other, text) for other in texts if other != text)]


def implies_as_build(text: str, required: str) -> bool:
    other, requirement = Requirement(text), Requirement(required)
    names = canonicalize_name(other.name), canonicalize_name(requirement.name)
    return names[0] != names[1] and contains(*names) and unmet_by(requirement, [other]) is None


def refuse_clash(dependencies: Sequence[str], where: str) -> None:
    """Refuse dependencies that install two builds of one library, whose files overwrite each other."""
    found = [each for each in with_own_requirements(dependencies) if each.marker is None]
    names: dict[str, Requirement] = {canonicalize_name(each.name): each for each in found}
    if clash := clashing_builds(names):
        raise ConfigError(
            "the wheel would install two builds of one library, whose files overwrite each other",
            where=where,
            found=" and ".join(f"`{names[name]}`" for name in clash),
            hint="let `[project] dependencies` name only the build that all recipes run on, or give each recipe an "
            "`extra` of the project with the build of the recipe; `hatch-lower[onnxruntime]` names `onnxruntime`",
        )


def find_added(mode: str, required: Sequence[str], declared: Sequence[str]) -> tuple[Addition, ...]:
    unmet = find_unmet(required, declared)
    lacks = {text: each for text, each in unmet.items() if (not each.wide if mode == "check" else each.excluded)}
    if lacks:
        lines = "".join(f'\n    "{requirement}",' for requirement in lacks)
        raise ConfigError(
            "the project's dependencies do not imply the requirements of its lowered programs",
            where="project.dependencies",
            found=unmet_lines(lacks),
            hint=f"let `[project] dependencies` contain\ndependencies = [{lines}\n]\n"
            f"or set `runtime-requirements` of the build hook `lower` to {OTHER_MODES[mode]}",
        )
    return tuple(Addition(text, each.reason) for text, each in unmet.items())


def unmet_lines(unmet: Mapping[str, Unmet]) -> str:
    return "\n".join(f"`{requirement}`: {each.reason}" for requirement, each in unmet.items())


def find_unmet(required: Sequence[str], declared: Sequence[str]) -> dict[str, Unmet]:
    """Return the requirements that `declared` does not imply, each with a reason."""
    # A dependency with an environment marker or a URL implies no requirement, because the installed version is unknown.
    # An extra of hatch-lower stands for the installed metadata of the extra: `hatch-lower[openvino]` implies OpenVINO.
    dependencies = with_own_requirements(declared)
    unmet = {}
    for text in required:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        alike = [dependency for dependency in dependencies if contains(canonicalize_name(dependency.name), name)]
        if found := unmet_by(requirement, alike):
            builds = [each for each in dependencies if canonicalize_name(each.name) in builds_of(name)]
            lacking = f"`{builds[0]}` is another build of the library; name `{name}` instead" if builds else ""
            unmet[text] = found if alike or not lacking else Unmet(lacking)
    return unmet


def with_own_requirements(declared: Iterable[str]) -> list[Requirement]:
    """Return dependencies, and the requirements of the extras of hatch-lower among them."""
    dependencies = [Requirement(dependency) for dependency in declared]
    for dependency in tuple(dependencies):
        if dependency.extras and canonicalize_name(dependency.name) == OWN_NAME and dependency.marker is None:
            dependencies += own_requirements(dependency.extras)
    return dependencies


def own_requirements(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements of extras of hatch-lower, from the installed metadata."""
    markers = {f'extra == "{canonicalize_name(extra)}"' for extra in extras}
    for requirement in required_by(OWN_NAME):
        if str(requirement.marker) in markers:
            requirement.marker = None
            yield requirement


def names_torch(requirement: str) -> bool:
    return canonicalize_name(Requirement(requirement).name) == "torch"


def refuse_incomplete_build() -> None:
    """Raise `ConfigError` if a package of the extra `build` is missing; a build of known models needs fewer."""
    missing = [
        str(each) for each in own_requirements(["build"]) if not [*importlib.metadata.distributions(name=each.name)]
    ]
    if missing:
        raise ConfigError(
            "hatch-lower is installed without packages that a build needs",
            found="\n".join(f"`{requirement}` is not installed" for requirement in missing),
            hint="install `hatch-lower[build]`; a build in an isolated environment does so by itself",
        )


def distributions_required(requirements: Iterable[str]) -> frozenset[str]:
    """Return the normal names of the distributions that requirements install here, directly or indirectly.

    Another build of a required library stands for a build that is not installed.
    """
    pending = [Requirement(text) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        name = installed_build(canonicalize_name(requirement.name))
        for extra in sorted({"", *requirement.extras} - {known for owner, known in seen if owner == name}):
            seen.add((name, extra))
            # a missing distribution has no requirements here
            pending += [
                each for each in required_by(name) if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return frozenset(name for name, _ in seen)


def installed_build(name: str) -> str:
    builds = builds_of(name)
    return next((build for build in builds if [*importlib.metadata.distributions(name=build)]), name)


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
    return Unmet(f"`{certain[0]}` also allows {'all earlier versions' if outside == '0' else outside}", wide=True)


def have_common_version(allowed: SpecifierSet, wanted: SpecifierSet) -> bool:
    points = (point for specifier in (*allowed, *wanted) for point in points_around(specifier.version))
    both = allowed & wanted
    return any(both.contains(point, prereleases=True) for point in points)


def version_outside(allowed: SpecifierSet, wanted: SpecifierSet) -> str:
    # Both sets are unions of intervals with named versions as ends: checking the ends and their close neighbors is
    # enough. Pre-releases count where `allowed` names a pre-release.
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
