"""The narrowed requirement in the project's file. Comments, order and form of other entries stay."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from hatch_lower.cli.matrix.engines import LOWER, METADATA, UPPER, Engine, minor_of, specifier_order
from hatch_lower.cli.matrix.rows import TriedEngine
from hatch_lower.cli.replaced import edited_text, replace_files
from hatch_lower.config.requirements import own_requirements, read_requirement, version_outside
from hatch_lower.errors import ConfigError, refused_error
from hatch_lower.frozen import Frozen

Place = tuple[str, ...]  # the keys of a list of requirements in the file


class Entry(Frozen):
    """A requirement in a list of the project's file."""

    place: Place
    position: int
    text: str


class ProjectFile(Frozen):
    """The project's file with its contents before the check, and the entries of each engine."""

    path: Path
    data: bytes
    entries: Mapping[str, tuple[Entry, ...]]


class Narrowed(Frozen):
    """A change of an entry."""

    place: Place
    before: str
    after: str


def read_project_file(root: Path, distribution: str, engines: Sequence[Engine]) -> ProjectFile:
    """Read pyproject.toml; raise `ConfigError` if a requirement of an engine stands elsewhere."""
    path = Path(os.path.realpath(root / "pyproject.toml"))
    try:
        data = path.read_bytes()
        values = tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError as error:
        hint = "run this in the project's folder, or name that with `--root`"
        raise ConfigError("there is no project to write", where=str(path), hint=hint) from error
    except (OSError, ValueError) as error:
        raise ConfigError("the project's file cannot be read", where=str(path), found=str(error)) from error
    project = values.get("project")
    name = str(project.get("name", "")) if isinstance(project, dict) else ""
    if not isinstance(project, dict) or canonicalize_name(name) != canonicalize_name(distribution):
        raise ConfigError(
            "the wheel is not the wheel of this project",
            where=str(path),
            found=f"a project `{name}`, and a wheel of `{distribution}`",
            hint="name the project's folder with `--root`",
        )
    return ProjectFile(path, data, {engine.name: changeable_entries(project, engine, path) for engine in engines})


def changeable_entries(project: Mapping[str, Any], engine: Engine, path: Path) -> tuple[Entry, ...]:
    found = tuple(entry for entry in entries_in(project) if names(entry.text, engine.name))
    if not found:
        raise ConfigError(
            f"the requirement of `{engine.name}` is not in the project's file and cannot be narrowed there",
            where=str(path),
            found=f"`{engine.requirement}`: {origin(project, engine)}",
            hint=f'let `[project] dependencies` contain "{engine.requirement}", and build the wheel again',
        )
    return found


def entries_in(project: Mapping[str, Any]) -> Iterator[Entry]:
    extras = project.get("optional-dependencies", {})
    lists: list[tuple[Place, object]] = [(("dependencies",), project.get("dependencies"))]
    lists += [(("optional-dependencies", str(extra)), each) for extra, each in extras.items()]
    for place, listed in lists:
        texts = listed if isinstance(listed, list) else []
        yield from (Entry(place, at, str(text)) for at, text in enumerate(texts))


def names(text: str, distribution: str) -> bool:
    requirement = read_requirement(text)
    return requirement is not None and not requirement.url and canonicalize_name(requirement.name) == distribution


def origin(project: Mapping[str, Any], engine: Engine) -> str:
    """Return the place that a requirement comes from, which is not an entry of the project's file."""
    for entry in entries_in(project):
        dependency = read_requirement(entry.text)
        if dependency is None or canonicalize_name(dependency.name) != "hatch-lower":
            continue
        if any(canonicalize_name(each.name) == engine.name for each in own_requirements(dependency.extras)):
            return f"the extra in `{entry.text}`, from the metadata of hatch-lower"
    if "dependencies" in project.get("dynamic", ()):
        return "`dependencies` is dynamic, and a metadata hook or another file has the list"
    if engine.source == METADATA:
        return "the build has added it (`runtime-requirements`), or the wheel was built from other settings"
    return "only the wheel's recipes have it"


def write_narrowed(file: ProjectFile, tried: Sequence[TriedEngine]) -> list[Narrowed]:
    """Narrow the requirements in the project's file to versions that passed; return the changes.

    Raises `ConfigError` if no version passed, or if the file has changed since it was read.
    """
    changes: dict[tuple[Place, int], Narrowed] = {}
    for each in tried:
        versions = each.versions()
        for entry in file.entries[each.engine.name]:
            after = narrowed_text(entry.text, versions)
            if after != entry.text:
                changes[entry.place, entry.position] = Narrowed(entry.place, entry.text, after)
    try:
        is_same = file.path.read_bytes() == file.data
    except FileNotFoundError:
        is_same = False
    if not is_same:
        hint = "run the command again"
        raise ConfigError("the project's file has changed since the check began", where=str(file.path), hint=hint)
    if changes:
        try:
            replace_files({file.path: edited_project(file, changes)})
        except OSError as error:
            raise refused_error(error, str(file.path)) or error from error
    return list(changes.values())


def narrowed_text(text: str, versions: Mapping[Version, bool | None]) -> str:
    """Return a requirement that allows fewer versions; the same text if it allows only versions that passed."""
    requirement = Requirement(text)
    allowed = narrowed_range(requirement.specifier, versions)
    if allowed is None:
        return text
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = text[len(text.partition(";")[0].rstrip()) :]
    return f"{requirement.name}{extras}{allowed}{marker}"


def narrowed_range(allowed: SpecifierSet, versions: Mapping[Version, bool | None]) -> str | None:
    """Return a specifier for the versions that passed; `None` if `allowed` has no other versions.

    A minor version is judged by its newest release. Versions that could not be tried (`None`) stay allowed, unless
    they lie beyond versions that failed. Versions newer than all known versions have not passed.
    """
    verdicts = minor_verdicts(versions)
    passed = [version for version, passes in verdicts.items() if passes]
    failed = [version for version, passes in verdicts.items() if passes is False]
    if not passed:
        raise ConfigError(
            "no version passed: there is no range to write",
            found=", ".join(map(str, versions)),
            hint="the table has the reason for each version",
        )
    first, last = passed[0], passed[-1]
    lower = [f">={first}"] if any(version < first for version in failed) else []
    above = [version for version in failed if version > last]
    upper = f"<{minor_text(above[0])}" if above else f"<{minor_text(max(verdicts), 1)}"
    inside = [f"!={minor_text(version)}.*" for version in failed if first < version < last]
    wanted = [text for text in (*lower, *inside, upper) if version_outside(allowed, SpecifierSet(text))]
    if not wanted:
        return None
    replaced = [kind for kinds in (LOWER, UPPER) for kind in kinds if any(text.startswith(kinds) for text in wanted)]
    kept = [str(each) for each in allowed if each.operator not in replaced]
    return ",".join(sorted(dict.fromkeys([*kept, *wanted]), key=specifier_order))


def minor_verdicts(versions: Mapping[Version, bool | None]) -> dict[Version, bool | None]:
    """Return the verdict on each version in ascending order; a minor version fails with its newest release."""
    newest = {minor_of(version): passes for version, passes in sorted(versions.items()) if passes is not None}
    ordered = sorted(versions)
    return {each: False if newest.get(minor_of(each)) is False else versions[each] for each in ordered}


def minor_text(version: Version, following: int = 0) -> str:
    epoch, major, minor = minor_of(version)
    return f"{f'{epoch}!' if epoch else ''}{major}.{minor + following}"


def edited_project(file: ProjectFile, changes: Mapping[tuple[Place, int], Narrowed]) -> bytes:
    """Return the project's file with the changes; raise `ConfigError` for a form that cannot be edited."""
    from tomlkit.exceptions import TOMLKitError

    text = file.data.decode("utf-8")
    expected = deepcopy(tomllib.loads(text))
    for (place, position), change in changes.items():
        list_at(expected, place)[position] = change.after

    def edit(document: Any) -> None:
        for (place, position), change in changes.items():
            list_at(document, place)[position] = change.after

    try:
        found = edited_text(text, edit)
        is_right = tomllib.loads(found) == expected
    except (TOMLKitError, AttributeError, LookupError, TypeError, ValueError):  # of unusual forms of tables
        is_right = False
    if not is_right:
        raise ConfigError(
            "the requirements of the project have a form that cannot be edited",
            where=str(file.path),
            hint="write these requirements:\n" + "\n".join(f'"{change.after}"' for change in changes.values()),
        )
    return found.encode("utf-8")


def list_at(document: Any, place: Place) -> Any:
    found = document["project"]
    for key in place:
        found = found[key]
    return found
