"""Whether the distributions that a recipe requires are installed here."""

from __future__ import annotations

import importlib.metadata
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

import hatch_lower
from hatch_lower.format.codec import refuse
from hatch_lower.runtime.installed import normal_name, read_field

RELEASE = r"[0-9]{1,9}(?:\.[0-9]{1,9})*"
BOUND = rf"(?:(?:<=|>=|==|<){RELEASE}|=={RELEASE}\.\*)"
PLAIN_REQUIREMENT = re.compile(rf"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)((?:{BOUND}(?:,{BOUND})*)?)")
PLAIN_VERSION = re.compile(rf"({RELEASE})(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?")
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
}
PARTS = re.compile(r"(<=|>=|==|<)([0-9.]*[0-9])(\.\*)?")


def requirement_reason(text: str, where: str) -> str | None:
    """Return why a requirement is not met here, or `None` if it is.

    Raises:
        ProgramError: if it is no requirement; `where` is the file that says it.
    """
    plain = PLAIN_REQUIREMENT.fullmatch(text)
    if plain is None:
        return general_reason(text, where)
    version = installed_version(normal_name(plain[1]))
    if version is None:
        return f"it needs {text}, which is not installed"
    is_met = is_within(plain[2], version)
    if is_met is None:
        return general_reason(text, where)
    return None if is_met else f"it needs {text}, and {version} is installed"


def is_within(bounds: str, version: str) -> bool | None:
    """Return whether a version is within bounds, as `packaging` says; `None` where only that can tell.

    Most requirements bound a release by others, and importing `packaging` takes longer than loading a small model.

    Args:
        bounds: `>=1.4,<1.5` or `==2.13.*`, of plain releases; empty: any version.
        version: as it is installed.
    """
    plain = PLAIN_VERSION.fullmatch(version)
    if plain is None:
        return None
    found = release(plain[1])  # for these operators, `2.13.0+cpu` is `2.13.0`
    for comparison, text, wildcard in PARTS.findall(bounds):
        bound = release(text)
        length = max(len(found), len(bound))
        have, wanted = padded(found, length), padded(bound, length)
        if wildcard and have[: len(bound)] == bound:
            continue
        if wildcard or not COMPARISONS[comparison](have, wanted):
            return False
    return True


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a release."""
    return tuple(int(each) for each in text.split("."))


def padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Return a release with zeros at its end: `2` and `2.0` are the same."""
    return numbers + (0,) * (length - len(numbers))


def general_reason(text: str, where: str) -> str | None:
    """Return why a requirement of any form is not met here, or `None` if it is."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    try:
        requirement = Requirement(text)
        is_needed = requirement.marker is None or requirement.marker.evaluate()
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName) as error:
        refuse(where, f"the requirement {text!r:.80}: {error}")
    if not is_needed:
        return None
    version = installed_version(normal_name(requirement.name))
    if version is None:
        return f"it needs {text}, which is not installed"
    try:
        is_met = requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # of a build that somebody named as they liked
        is_met = False
    return None if is_met else f"it needs {text}, and {version} is installed"


def installed_version(name: str) -> str | None:
    """Return the version of a distribution; torch and hatch-lower are asked directly, as they are imported anyway."""
    if name in ("torch", "hatch-lower"):
        return str(torch.__version__ if name == "torch" else hatch_lower.__version__)
    try:
        return read_field(importlib.metadata.distribution(name), "Version") or None
    except importlib.metadata.PackageNotFoundError:
        return None
