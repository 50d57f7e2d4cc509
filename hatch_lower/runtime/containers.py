"""Containers at a method's border: flattening arguments, building results."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from hatch_lower.errors import InputError
from hatch_lower.format.tree import Container, Leaf, Tree, step_into
from hatch_lower.runtime.classes import NoClassError, find_maker
from hatch_lower.runtime.names import CodeNames


class Record(Mapping[str, Any]):
    """Stand-in for an output whose class cannot be imported here: a read-only mapping with attribute access."""

    __slots__ = ("_fields", "_type_name")

    def __init__(self, type_name: str, fields: Mapping[str, object]) -> None:
        self._type_name = type_name
        self._fields = dict(fields)

    def __getitem__(self, key: str | int) -> Any:
        return list(self._fields.values())[key] if isinstance(key, int) else self._fields[key]

    def __getattribute__(self, name: str) -> Any:
        # fields hide the methods of mappings: a class may have a field `values`
        if not name.startswith("_") and name in self._fields:
            return self._fields[name]
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name not in Record.__slots__ and name in self._fields:
            return self._fields[name]
        raise AttributeError(f"`{name}` is no field of this {type(self).__name__}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        fields = ", ".join(f"{key}={value!r}" for key, value in self._fields.items())
        return f"{self._type_name.rpartition(':')[2]}({fields})"


def late_builder(container: Container) -> Callable[..., object]:
    # the class is imported for the first object only, because its module may take long to import
    builder = functools.cache(lambda: choose_builder(container))
    return lambda *children: builder()(*children)


def choose_builder(container: Container) -> Callable[..., object]:
    # a `Record` or a new named tuple stands in for an unavailable class
    try:
        return find_maker(container)
    except NoClassError:
        keys = [str(key) for key in container.keys]
    if container.kind == "namedtuple":
        return collections.namedtuple(container.type_name.rpartition(":")[2].rpartition(".")[2], keys)
    return lambda *children: Record(container.type_name, dict(zip(keys, children, strict=True)))


def replaced_in(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield each class of a result that has a stand-in here, with the reason."""
    for child in tree.children if isinstance(tree, Container) else ():
        yield from replaced_in(child)
    if isinstance(tree, Container) and tree.type_name:
        try:
            find_maker(tree)
        except NoClassError as reason:
            yield tree.type_name.rpartition(":")[2], str(reason)


def output_code(tree: Tree, leaves: Iterator[str], names: CodeNames) -> str:
    if tree is None:
        return "None"
    if isinstance(tree, Leaf):
        return next(leaves)
    children = [output_code(child, leaves, names) for child in tree.children]
    match tree.kind:
        case "tuple":
            return f"({', '.join(children)},)" if children else "()"
        case "list":
            return f"[{', '.join(children)}]"
        case "dict":
            keys = [names.bind("key", key, ("key", key)) for key in tree.keys]
            return "{" + ", ".join(f"{key}: {child}" for key, child in zip(keys, children, strict=True)) + "}"
    return f"{names.bind('build', late_builder(tree))}({', '.join(children)})"


def take_apart(method: str, tree: Tree, path: str) -> Callable[[object], list[object]]:
    """Return a function that flattens a value into its leaves; raises `InputError` if the containers differ."""

    def leaves_of(value: object) -> list[object]:
        leaves: list[object] = []
        collect(tree, value, path, leaves)
        return leaves

    def collect(tree: Tree, value: object, path: str, leaves: list[object]) -> None:
        if isinstance(tree, Leaf):
            leaves.append(value)
        elif tree is None:
            if value is not None:
                refuse(path, "None", value)
        else:
            children = children_of(tree, value)
            if children is None:
                refuse(path, container_text(tree), value)
            for index, child in enumerate(tree.children):
                collect(child, children[index], step_into(tree, index, path), leaves)

    def refuse(path: str, expected: str, value: object) -> NoReturn:
        raise InputError(
            f"method `{method}` takes {expected} for `{path}`",
            found=output_value_text(value),
            hint="pass containers of the same kinds, lengths and keys as the example inputs of the export",
        )

    return leaves_of


def children_of(container: Container, value: Any) -> list[object] | None:
    keys = container.keys
    match container.kind:
        case "tuple" | "list":
            kind = tuple if container.kind == "tuple" else list
            fits = isinstance(value, kind) and len(value) == len(container.children)
            return list(value) if fits else None
        case "namedtuple":
            fits = isinstance(value, tuple) and getattr(value, "__match_args__", None) == keys
            return list(value) if fits else None
        case "object" if container.type_name != getattr(value, "_type_name", "") and not any(
            f"{base.__module__}:{base.__qualname__}" == container.type_name for base in type(value).__mro__
        ):
            return None
    if isinstance(value, Mapping):
        fits = len(value) == len(keys) and all(key in value for key in keys)
        return [value[key] for key in keys] if fits else None
    fits = container.kind == "object" and all(hasattr(value, str(key)) for key in keys)
    return [getattr(value, str(key)) for key in keys] if fits else None


def container_text(container: Container) -> str:
    count = len(container.children)
    match container.kind:
        case "tuple" | "list":
            return f"a {container.kind} of {count} item{'' if count == 1 else 's'}"
        case "dict":
            keys = ", ".join(f'"{key}"' if isinstance(key, str) else str(key) for key in container.keys)
            return f"a dict of {keys}" if keys else "an empty dict"
        case "namedtuple":
            return f"a named tuple of {', '.join(f'`{key}`' for key in container.keys)}"
    return f"a `{container.type_name.rpartition(':')[2]}` with {', '.join(f'`{key}`' for key in container.keys)}"


def output_value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{type(value).__name__} of {', '.join(repr(key) for key in value)[:200]}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)} items"
    return "None" if value is None else f"a value of type {type(value).__name__}"
