"""What is believed of a shared cache that nobody signs for: what one partition came to, in data alone.

A build compares what it puts together from partitions with the eager model. Nothing compares what a whole model came
to, what an export read, or which libraries a file needs: whoever may write to the server could say anything there. So
an entry without a trusted signature is taken only if it is the result of a partition, holds no native code, and
requires no package but those that the backends of this environment require.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hatch_lower import BACKEND_GROUP
from hatch_lower.cache.entry import DIGEST

PARTITION = frozenset(
    {"blob", "data", "debug_handle_map", "delegate_info_meta", "suffix", "requirements", "target", "info"}
)
"""Fields of the value that is stored for a partition."""
SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def reason_to_refuse(value: Any) -> str:
    """Return why the value of an unsigned entry is not believed, beside native code; an empty string if it is."""
    joint = isinstance(value, Mapping) and value.keys() == {"results"} and isinstance(value["results"], list)
    return next(filter(None, map(reason_to_refuse_one, value["results"] if joint else [value])), "")


def reason_to_refuse_one(value: Any) -> str:
    """Return why a partition's result is not believed; an empty string if it is."""
    if not isinstance(value, Mapping) or value.keys() - {"head"} != PARTITION:
        return "says more than what one partition came to"
    if not is_partition(value):
        return "is not what a partition comes to"
    foreign = foreign_requirement(value["requirements"])
    return "" if foreign is None else f"requires `{foreign:.80}`, which no backend of this environment does"


def is_partition(value: Mapping[str, Any]) -> bool:
    """Return whether a value with the fields of a partition's result can be read as one."""
    handles, data = value["debug_handle_map"], value["data"]
    return (
        is_digest(value["blob"])
        and (data is None or is_data(data))
        and (handles is None or (isinstance(handles, list) and all(map(is_handle_row, handles))))
        and isinstance(value["suffix"], str)
        and SUFFIX.fullmatch(value["suffix"]) is not None
        and isinstance(value["requirements"], list)
        and all(isinstance(each, str) for each in value["requirements"])
        and value["target"] is None
        and isinstance(value["info"], dict)
        and ("head" not in value or (type(value["head"]) is int and value["head"] > 0))
    )


def is_digest(value: Any) -> bool:
    """Return whether a value names a blob."""
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def is_handle_row(row: Any) -> bool:
    """Return whether a value is `[identifier, [debug handles]]`."""
    match row:
        case [int() | str(), [*handles]]:
            return all(type(each) is int and each > 0 for each in handles)
    return False


def is_data(value: Any) -> bool:
    """Return whether a value is named data: buffers, and entries that refer to them."""
    match value:
        case {"buffers": [*buffers], "program": [*program], "external": [*external], **rest} if not rest:
            count = len(buffers)
            return (
                all(map(is_digest, buffers))
                and all(is_named_entry(each, count) for each in program)
                and all(is_external(each, count) for each in external)
            )
    return False


def is_external(value: Any, count: int) -> bool:
    """Return whether a value is `[tag, [named entries]]`."""
    match value:
        case [str(), [*entries]]:
            return all(is_named_entry(each, count) for each in entries)
    return False


def is_named_entry(value: Any, count: int) -> bool:
    """Return whether a value is `[name, entry]` for one of so many buffers."""
    match value:
        case [str(), {"buffer": int(buffer), "alignment": int(alignment), "layout": layout, **rest}] if not rest:
            return 0 <= buffer < count and alignment > 0 and (layout is None or is_layout(layout))
    return False


def is_layout(value: Any) -> bool:
    """Return whether a value says how bytes are a tensor."""
    match value:
        case {"scalar_type": str(), "sizes": [*sizes], "dim_order": [*order], **rest} if not rest:
            return all(type(each) is int and each >= 0 for each in (*sizes, *order))
    return False


def foreign_requirement(requirements: Sequence[str]) -> str | None:
    """Return the first requirement that this environment does not meet with packages of its own backends, or `None`.

    Those are torch, hatch-lower, the distributions with backends, and what these require themselves.
    """
    if not requirements:
        return None
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    versions = {canonicalize_name(name): version for name, version in known_versions()}
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return text
        version = versions.get(canonicalize_name(requirement.name))
        plain = not (requirement.url or requirement.extras or requirement.marker)
        if version is None or not plain or not requirement.specifier.contains(version, prereleases=True):
            return text
    return None


def known_versions() -> Iterator[tuple[str, str]]:
    """Yield name and installed version of the packages that programs of this environment's backends may require."""
    from packaging.requirements import InvalidRequirement, Requirement

    names = {"torch", "hatch-lower"}
    for point in importlib.metadata.entry_points(group=BACKEND_GROUP):
        if point.dist is not None:
            names.add(point.dist.name)
            for text in point.dist.requires or ():
                try:
                    requirement = Requirement(text)
                except InvalidRequirement:
                    continue
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    names.add(requirement.name)
    for name in sorted(names):
        version = installed_version(name)
        if version is not None:
            yield name, version


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or `None` if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
