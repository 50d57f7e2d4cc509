"""Entries that are accepted without a signature: results of partitions, in data alone.

A build compares a program that was assembled from partitions with the eager model. No comparison covers the result of a
whole model, the inputs of an export, or the libraries that a file needs: a writer of the server could forge these. So
an entry without a trusted signature is used only if the entry is the result of a partition, holds no native code, and
requires only packages that the backends of this environment require.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower import BACKEND_GROUP
from hatch_lower.cache.partition import FIELDS, StoredPartition


def reason_to_refuse(value: Any) -> str:
    joint = isinstance(value, Mapping) and value.keys() == {"results"} and isinstance(value["results"], list)
    return next(filter(None, map(reason_to_refuse_one, value["results"] if joint else [value])), "")


def reason_to_refuse_one(value: object) -> str:
    if not isinstance(value, Mapping) or value.keys() != FIELDS:
        return "is not the result of a partition alone"
    try:
        stored = StoredPartition.read(value)
    except ValueError:
        return "is not a valid result of a partition"
    if stored.target is not None:
        return "holds native code"
    foreign = foreign_requirement(stored.requirements)
    return "" if foreign is None else f"requires `{foreign:.80}`, which no backend of this environment requires"


def foreign_requirement(requirements: Sequence[str]) -> str | None:
    """Return the first requirement that no package of this environment's backends meets, or `None`."""
    if not requirements:
        return None
    from packaging.utils import canonicalize_name

    from hatch_lower.config.requirements import read_requirement

    versions = {canonicalize_name(name): version for name, version in known_versions()}
    for text in requirements:
        requirement = read_requirement(text)
        if requirement is None:
            return text
        version = versions.get(canonicalize_name(requirement.name))
        plain = not (requirement.url or requirement.extras or requirement.marker)
        if version is None or not plain or not requirement.specifier.contains(version, prereleases=True):
            return text
    return None


def known_versions() -> Iterator[tuple[str, str]]:
    """Yield name and installed version of the packages that programs of this environment's backends may require."""
    from hatch_lower.config.requirements import read_requirement

    # torch, hatch-lower, the distributions with backends, and the requirements of these distributions
    names = {"torch", "hatch-lower"}
    for point in importlib.metadata.entry_points(group=BACKEND_GROUP):
        if point.dist is not None:
            names.add(point.dist.name)
            listed = filter(None, map(read_requirement, point.dist.requires or ()))
            names |= {each.name for each in listed if each.marker is None or each.marker.evaluate({"extra": ""})}
    for name in sorted(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
