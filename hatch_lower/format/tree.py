"""Containers around tensors: how a method's parameters and outputs nest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from hatch_lower.format.reading import (
    read_fields,
    read_identifier,
    read_integer,
    read_list,
    read_pair,
    read_qualified_name,
    read_text,
    refuse,
)

DEPTH_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor, number or other literal."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of trees.

    Args:
        kind: `tuple`, `list`, `dict`, `namedtuple`, or `object` (a dataclass or another registered class).
        children: in order.
        keys: of a `dict`, the fields of a `namedtuple`, the attributes or keys of an `object`; else empty.
        type_name: `module:Class` of a `namedtuple` or `object`; else empty.
        distribution: the installed one that the class came from; empty if there was none.
    """

    kind: str
    children: tuple[Tree, ...]
    keys: tuple[str | int, ...] = ()
    type_name: str = ""
    distribution: str = ""


Tree: TypeAlias = Leaf | Container | None


def read_tree(value: Any, where: str, depth: int = 0) -> Tree:
    """Return the tree that `value` describes, of at most 32 levels; null is the value `None`."""
    if value is None:
        return None
    if value == "*":
        return Leaf()
    if depth >= DEPTH_LIMIT:
        refuse(where, f"containers of more than {DEPTH_LIMIT} levels")
    if isinstance(value, dict):
        if "namedtuple" in value:
            return _read_named(value, "namedtuple", "fields", where, depth)
        if "object" in value:
            return _read_named(value, "object", "keys", where, depth)
        for kind in ("tuple", "list"):
            if value.keys() == {kind}:
                return Container(kind, _read_children(value[kind], where, depth))
        if value.keys() == {"dict"}:
            pairs = [read_pair(each, where) for each in read_list(value["dict"], where)]
            keys = tuple(key if isinstance(key, str) else read_integer(key, where) for key, _ in pairs)
            if len(set(keys)) != len(keys):
                refuse(where, "the same key twice")
            return Container("dict", tuple(read_tree(child, where, depth + 1) for _, child in pairs), keys)
    refuse(where, "no tree of containers")


def tree_json(tree: Tree) -> Any:
    """Return the JSON value that `read_tree` reads."""
    if tree is None:
        return None
    if isinstance(tree, Leaf):
        return "*"
    children = [tree_json(each) for each in tree.children]
    match tree.kind:
        case "tuple" | "list":
            return {tree.kind: children}
        case "dict":
            return {"dict": [[key, child] for key, child in zip(tree.keys, children, strict=True)]}
    keys = "fields" if tree.kind == "namedtuple" else "keys"
    source = {"distribution": tree.distribution} if tree.distribution else {}
    return {tree.kind: tree.type_name, keys: list(tree.keys), "children": children, **source}


def count_leaves(tree: Tree) -> int:
    """Return the number of leaves."""
    if isinstance(tree, Container):
        return sum(count_leaves(each) for each in tree.children)
    return 0 if tree is None else 1


def leaf_paths(tree: Tree, path: str) -> Iterator[str]:
    """Yield how a Python programmer reaches each leaf: `batch["image"][0]`."""
    if isinstance(tree, Leaf):
        yield path
    elif isinstance(tree, Container):
        for index, child in enumerate(tree.children):
            yield from leaf_paths(child, step_into(tree, index, path))


def step_into(container: Container, index: int, path: str) -> str:
    """Return how a Python programmer reaches a child of what is at `path`."""
    if container.kind == "dict":
        key = container.keys[index]
        return f"{path}[{key}]" if isinstance(key, int) else f'{path}["{key}"]'
    if container.keys:
        return f"{path}.{container.keys[index]}"
    return f"{path}[{index}]"


def tree_text(tree: Tree, leaves: Callable[[], str]) -> str:
    """Return a tree in Python's notation, each leaf as the next call of `leaves` says."""
    if tree is None:
        return "None"
    if isinstance(tree, Leaf):
        return leaves()
    texts = [tree_text(each, leaves) for each in tree.children]
    match tree.kind:
        case "tuple":
            return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
        case "list":
            return f"[{', '.join(texts)}]"
        case "dict":
            return "{" + ", ".join(f"{key!r}: {text}" for key, text in zip(tree.keys, texts, strict=True)) + "}"
    name = tree.type_name.rpartition(":")[2]
    return f"{name}({', '.join(f'{key}={text}' for key, text in zip(tree.keys, texts, strict=True))})"


def _read_children(value: Any, where: str, depth: int) -> tuple[Tree, ...]:
    return tuple(read_tree(each, where, depth + 1) for each in read_list(value, where))


def _read_named(value: dict[str, Any], kind: str, names: str, where: str, depth: int) -> Container:
    """Return a `namedtuple` or `object`, whose keys must be identifiers for attribute access."""
    fields = read_fields(value, frozenset({kind, names, "children"}), where, frozenset({"distribution"}))
    type_name = read_qualified_name(fields[kind], where)
    children = _read_children(fields["children"], where, depth)
    keys = tuple(read_identifier(each, where) for each in read_list(fields[names], where))
    if len(keys) != len(children) or len(set(keys)) != len(keys):
        refuse(where, f"{len(keys)} names for {len(children)} children, or one of them twice")
    if kind == "namedtuple" and any(key.startswith("_") for key in keys):
        refuse(where, "a named tuple's field that starts with an underscore")
    distribution = read_text(fields["distribution"], where) if "distribution" in fields else ""
    return Container(kind, children, keys, type_name, distribution)
