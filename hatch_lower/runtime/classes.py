"""Classes of the containers that a method returns: found in installed distributions, and filled by assignment.

A plan is data, perhaps from an untrusted author. So a class is imported only if an installed distribution lists the
defining file. Objects are made by assigning their fields: no constructor runs.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import MemberDescriptorType, ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from hatch_lower.format.tree import Container
from hatch_lower.runtime.installed import read_field

# dictionaries that are dataclasses: their `__post_init__` only copies the fields into the dictionary
OUTPUT_BASES = frozenset({"transformers.utils.generic:ModelOutput", "diffusers.utils.outputs:BaseOutput"})

OUTPUT_METHODS = ("__post_init__", "__setattr__", "__setitem__")  # their methods that copy fields

# methods that may run when an object is made and deleted
MAKING = ("__new__", "__init__", "__post_init__", "__setattr__", "__setitem__", "__del__")

Maker = Callable[..., object]


class NoClassError(Exception):
    """The reason why a container's class is replaced by a mapping or a new named tuple."""


def find_owner(kind: type) -> str:
    """Return the name of the installed distribution whose file defines a class, or an empty string."""
    modules = imported_modules(kind.__module__)
    editable = ""
    for distribution in candidates(modules[0][0].partition(".")[0]) if modules else ():
        if owns(distribution, modules):
            if editable_folder(distribution) is None:
                return read_field(distribution, "Name")
            # not final: the folder of an editable project may contain an environment with other distributions
            editable = editable or read_field(distribution, "Name")
    return editable


def candidates(top: str) -> Iterator[importlib.metadata.Distribution]:
    # first the distribution named like the module, which is likely and quick to find
    with suppress(importlib.metadata.PackageNotFoundError):
        yield importlib.metadata.distribution(top)
    yield from importlib.metadata.distributions()


def find_maker(container: Container) -> Maker:
    keys = [str(key) for key in container.keys]
    if container.type_name == "collections:OrderedDict":
        return lambda *children: OrderedDict(zip(keys, children, strict=True))
    kind = find_class(container.type_name, container.distribution)
    if container.kind == "namedtuple":
        return tuple_maker(kind, keys)
    if reason := reason_against(kind, keys):
        raise NoClassError(f"the class {reason}")
    return object_maker(kind, keys)


def find_class(type_name: str, owner: str) -> type:
    """Return the class `module:Class.Inner` of the installed distribution `owner`."""
    if not owner:
        raise NoClassError("no installed distribution defined the class at the export")
    module, _, name = type_name.partition(":")
    try:
        distribution = importlib.metadata.distribution(owner)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise NoClassError(f"the distribution `{owner}` is not installed") from None
    modules = imported_modules(module)
    if not modules or not owns(distribution, modules):
        raise NoClassError(f"the distribution `{owner}` has no module `{module}`")
    try:
        found: object = importlib.import_module(module)
    except Exception as error:  # importing runs arbitrary code
        raise NoClassError(f"`{module}` cannot be imported: {type(error).__name__}") from error
    for part in name.split("."):
        # not `getattr`: a module's `__getattr__` may import further modules
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    if not isinstance(found, type):
        raise NoClassError(f"`{module}` has no class `{name}`")
    return found


def imported_modules(module: str) -> list[tuple[str, str]]:
    """Return all modules that importing `module` runs, `module` last, with their files; empty if not found."""
    # finds the files without importing; namespace packages have no file
    found: list[tuple[str, str]] = []
    names = module.split(".")
    if names[0] in sys.stdlib_module_names or "__main__" in names:  # `__main__` is meant to run, not to define classes
        return []
    spec: ModuleSpec | None = None
    for end in range(1, len(names) + 1):
        name = ".".join(names[:end])
        try:
            if spec is None:
                spec = importlib.util.find_spec(name)
            else:
                # transformers puts `Path` objects there, which `PathFinder` ignores
                folders = [os.fspath(folder) for folder in spec.submodule_search_locations or ()]
                spec = PathFinder.find_spec(name, folders)
        except (ImportError, ValueError):
            return []
        if spec is None:
            return []
        if spec.has_location:
            found.append((name, os.path.abspath(str(spec.origin))))
    return found if found and found[-1][0] == module else []


def owns(distribution: importlib.metadata.Distribution, modules: list[tuple[str, str]]) -> bool:
    record = distribution.read_text("RECORD")
    folder = editable_folder(distribution)
    if folder is None:
        root = os.path.abspath(str(distribution.locate_file("")))
        if record is not None:
            return all(f"\n{path_below(root, path)}," in f"\n{record}" for _, path in modules)
        folder = os.path.realpath(root)
    tops = top_levels(distribution, record or "")
    return all(
        name.partition(".")[0] in tops and os.path.realpath(path).startswith(f"{folder}{os.sep}")
        for name, path in modules
    )


def path_below(folder: str, path: str) -> str:
    below = path.startswith(f"{folder}{os.sep}")
    return path[len(folder) + 1 :].replace(os.sep, "/") if below else path


def editable_folder(distribution: importlib.metadata.Distribution) -> str | None:
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = urlsplit(origin["url"])
        if origin["dir_info"]["editable"] is not True or url.scheme != "file":
            return None
        path = unquote(url.path)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return os.path.realpath(path.lstrip("/") if os.name == "nt" else path)


def top_levels(distribution: importlib.metadata.Distribution, record: str) -> set[str]:
    stated = (distribution.read_text("top_level.txt") or "").split()
    exported = (point.value.partition(":")[0].partition(".")[0] for point in distribution.entry_points)
    return {*stated, *exported, *(line.partition("/")[0] for line in record.splitlines() if "/" in line)}


def tuple_maker(kind: type, keys: list[str]) -> Maker:
    if not issubclass(kind, tuple):
        raise NoClassError("the class is no named tuple")
    if kind.__module__ == "torch.return_types" and getattr(kind, "__match_args__", None) == tuple(keys):
        return lambda *children: kind(children)
    if getattr(kind, "_fields", None) != tuple(keys):
        raise NoClassError("the class has other fields")
    return lambda *children: tuple.__new__(kind, children)


def reason_against(kind: type, keys: list[str]) -> str:
    """Return the reason why assigning fields does not suffice to make an object of a class, or an empty string."""
    base = find_plain_base(kind)
    known = OUTPUT_METHODS if is_output_class(kind) else ()
    for name in MAKING:
        if name not in known and is_written(kind, base, name):
            return f"defines `{name}`"
    if not dataclasses.is_dataclass(kind):
        return "is neither a dataclass nor a dictionary" if base is object else ""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    missing = [name for name, field in fields.items() if name not in keys and not has_plain_default(field)]
    if not fields.keys() >= set(keys) or missing:
        return "has other fields"
    if any(is_computed(inspect.getattr_static(kind, name, None)) for name in fields):
        return "computes a field on assignment"
    return ""


def is_written(kind: type, base: type, name: str) -> bool:
    # `dataclass` generates methods without a file
    method = inspect.getattr_static(kind, name, None)
    made = without_renaming(method) if name == "__init__" and is_output_class(kind) else method
    generated = inspect.isfunction(made) and made.__code__.co_filename == "<string>"
    return method is not inspect.getattr_static(base, name, None) and not generated


def without_renaming(method: object) -> object:
    """Return the method inside transformers' wrapper that renames keyword arguments (since 5.24)."""
    by = method.__globals__.get("__name__") if inspect.isfunction(method) else None
    known = any(base.partition(":")[0] == by for base in OUTPUT_BASES)
    return getattr(method, "__wrapped__", method) if known else method


def object_maker(kind: type, keys: list[str]) -> Maker:
    base = find_plain_base(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []
    is_output = is_output_class(kind)

    def make(*children: object) -> object:
        made = base.__new__(kind)
        given = dict(zip(keys, children, strict=True))
        if not fields:
            for key, value in given.items():
                base.__setitem__(made, key, value)
        for field in fields:
            value = given[field.name] if field.name in given else make_default(field)
            object.__setattr__(made, field.name, value)
            if is_output and value is not None:
                base.__setitem__(made, field.name, value)
        return made

    return make


def find_plain_base(kind: type) -> Any:
    return next((base for base in (OrderedDict, dict) if issubclass(kind, base)), object)


def is_output_class(kind: type) -> bool:
    post = getattr(kind, "__post_init__", None)
    owner = getattr(post, "__qualname__", "").rpartition(".")[0]
    return issubclass(kind, dict) and f"{getattr(post, '__module__', '')}:{owner}" in OUTPUT_BASES


def has_plain_default(field: dataclasses.Field[Any]) -> bool:
    # a default without custom code
    return field.default is not dataclasses.MISSING or field.default_factory in (list, dict, set, tuple)


def make_default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def is_computed(attribute: object) -> bool:
    # setting such an attribute runs code of the class
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, MemberDescriptorType)
