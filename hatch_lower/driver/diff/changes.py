"""Comparing two documents (settings, tools, facts of a model) leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    place: Path  # names from the root: `("models", "digits", "size")`
    first: object
    second: object
    lines: tuple[str, ...] = ()


def document_changes(place: Path, first: object, second: object) -> Iterator[Change]:
    """Yield the differences of two values. Named items are compared by name; a value with a digest is a leaf."""
    first, second = (list(side) if isinstance(side, tuple) else side for side in (first, second))
    if first == second:
        return
    old, new = ({} if side == [] else by_name(side) for side in (first, second))
    if old is None or new is None or not {**old, **new} or "sha256" in {**old, **new}:
        yield Change(place, first, second)
        return
    for name in {**old, **new}:
        yield from document_changes((*place, name), old.get(name), new.get(name))
    if isinstance(first, list) and old.keys() == new.keys() and list(old) != list(new):
        yield Change(place, list(old), list(new))


def by_name(value: object) -> dict[str, object] | None:
    """Return a mapping, a list of named items, or a list of rows that begin with a name, by name; else `None`."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list):
        return None
    if all(isinstance(item, Mapping) and "name" in item for item in value):
        return {item["name"]: {key: part for key, part in item.items() if key != "name"} for item in value}
    if all(isinstance(item, (list, tuple)) and len(item) > 1 and isinstance(item[0], str) for item in value):
        return {name: rest[0] if len(rest) == 1 else " ".join(map(str, rest)) for name, *rest in value}
    return None
