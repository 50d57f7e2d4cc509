"""Whether a backend's result is one that can be stored and packaged."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.requirements import InvalidRequirement, Requirement

from hatch_lower.cache.partition import SUFFIX
from hatch_lower.exir.backend.backend_details import PreprocessResult, Target


def wrong_field(result: PreprocessResult) -> tuple[str, str] | None:
    """Return the name of a field that does not hold what it must, and what it must hold; `None` if all do."""
    # strict here: a wrong field fails the build where it is used, and from the cache every later one
    requirements, handles, info, target = result.requirements, result.debug_handle_map, result.info, result.target
    if not isinstance(result.processed_bytes, bytes):
        return "processed_bytes", "bytes"
    if not isinstance(result.suffix, str) or SUFFIX.fullmatch(result.suffix) is None:
        return "suffix", "the end of a file's name: letters, digits, dots, dashes"
    if not isinstance(requirements, (tuple, list)) or not all(isinstance(each, str) for each in requirements):
        return "requirements", "a tuple of strings"
    if not all(map(is_requirement, requirements)):
        return "requirements", "a tuple of requirements as in `pyproject.toml`"
    if target is not None and not isinstance(target, Target):
        return "target", "a `Target` or `None`"
    if not isinstance(info, Mapping):
        return "info", "a mapping"
    if handles is not None and not (isinstance(handles, Mapping) and all(map(are_handles, handles.values()))):
        return "debug_handle_map", "a mapping of identifiers to tuples of the nodes' debug handles, or `None`"
    return None


def is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def are_handles(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(type(each) is int and each > 0 for each in value)
