"""Nested containers of a method's parameters and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from hatch_lower.format.codec import Damage, encode, read_integer, read_list
from hatch_lower.format.values import read_identifier, read_qualified_name, read_text

DEPTH_LIMIT = 32
# kinds of containers with a class, to the JSON key of their names
NAME_KEYS = {"namedtuple": "fields", "object": "keys"}


@dataclass(frozen=True, slots=True)
class Leaf:
    def to_json(self) -> object:
        return "*"


@dataclass(frozen=True, slots=True)
class Container:
    kind: str  # `tuple`, `list`, `dict`, `namedtuple`, or `object` (a dataclass or another registered class)
    children: tuple[Tree, ...]
    keys: tuple[str | int, ...] = ()  # of a `dict`, the fields of a `namedtuple`, the attributes or keys of an `object`
    type_name: str = ""  # `module:Class` of a `namedtuple` or `object`
    distribution: str = ""  # of the class, if known

    def to_json(self) -> object:
        children = encode(self.children)
        if self.kind == "dict":
            return {"dict": [list(pair) for pair in zip(self.keys, children, strict=True)]}
        if self.kind not in NAME_KEYS:
            return {self.kind: children}
        source = {"distribution": self.distribution} if self.distribution else {}
        return {self.kind: self.type_name, NAME_KEYS[self.kind]: list(self.keys), "children": children, **source}


def read_tree(value: object, depth: int = 0) -> Leaf | Container | None:
    # null means the value `None`
    if value is None:
        return None
    if value == "*":
        return Leaf()
    if depth >= DEPTH_LIMIT:
        raise Damage(f"containers of more than {DEPTH_LIMIT} levels")
    if isinstance(value, dict):
        for kind in NAME_KEYS:
            if kind in value:
                return _read_instance(value, kind, depth)
        for kind in ("tuple", "list"):
            if value.keys() == {kind}:
                return Container(kind, _read_children(value[kind], depth))
        if value.keys() == {"dict"}:
            pairs = read_list(value["dict"])
            if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                raise Damage("a dict without pairs")
            keys = tuple(key if isinstance(key, str) else read_integer(key) for key, _ in pairs)
            if len(set(keys)) != len(keys):
                raise Damage("the same key twice")
            return Container("dict", _read_children([child for _, child in pairs], depth), keys)
    raise Damage("no tree of containers")


Tree = Annotated[Leaf | Container | None, read_tree]


def count_leaves(tree: Tree) -> int:
    if isinstance(tree, Container):
        return sum(map(count_leaves, tree.children))
    return 0 if tree is None else 1


def leaf_paths(tree: Tree, path: str) -> Iterator[str]:
    """Yield the path of each leaf in Python's notation: `batch["image"][0]`."""
    if isinstance(tree, Leaf):
        yield path
    elif isinstance(tree, Container):
        for index, child in enumerate(tree.children):
            yield from leaf_paths(child, step_into(tree, index, path))


def step_into(container: Container, index: int, path: str) -> str:
    if container.kind == "dict":
        key = container.keys[index]
        return f"{path}[{key}]" if isinstance(key, int) else f'{path}["{key}"]'
    if container.keys:
        return f"{path}.{container.keys[index]}"
    return f"{path}[{index}]"


def tree_text(tree: Tree, leaves: Callable[[], str]) -> str:
    """Return a tree in Python's notation; `leaves` returns the text of the next leaf."""
    if tree is None:
        return "None"
    if isinstance(tree, Leaf):
        return leaves()
    texts = [tree_text(child, leaves) for child in tree.children]
    match tree.kind:
        case "tuple":
            return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
        case "list":
            return f"[{', '.join(texts)}]"
        case "dict":
            return "{" + ", ".join(f"{key!r}: {text}" for key, text in zip(tree.keys, texts, strict=True)) + "}"
    name = tree.type_name.rpartition(":")[2]
    return f"{name}({', '.join(f'{key}={text}' for key, text in zip(tree.keys, texts, strict=True))})"


def _read_children(value: object, depth: int) -> tuple[Tree, ...]:
    return tuple(read_tree(child, depth + 1) for child in read_list(value))


def _read_instance(value: dict[str, object], kind: str, depth: int) -> Container:
    if value.keys() - {"distribution"} != {kind, NAME_KEYS[kind], "children"}:
        raise Damage(f"{kind} whose keys are not a class, names, children and perhaps a distribution")
    type_name = read_qualified_name(value[kind])
    children = _read_children(value["children"], depth)
    # identifiers, because the names become attributes
    keys = tuple(map(read_identifier, read_list(value[NAME_KEYS[kind]])))
    if len(keys) != len(children) or len(set(keys)) != len(keys):
        raise Damage(f"{len(keys)} names for {len(children)} children, or a name twice")
    if kind == "namedtuple" and any(key.startswith("_") for key in keys):
        raise Damage("a named tuple's field that starts with an underscore")
    distribution = read_text(value["distribution"]) if "distribution" in value else ""
    return Container(kind, children, keys, type_name, distribution)
