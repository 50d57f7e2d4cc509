"""`manifest.json`: which models, recipes and methods a distribution holds, and every file with its size and digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hatch_lower.format.delegates import TargetEntry, read_target, target_json
from hatch_lower.format.package import MANIFEST_SCHEMA, package_manifest
from hatch_lower.format.reading import (
    check_schema,
    parse_json,
    read_digest,
    read_fields,
    read_list,
    read_module_name,
    read_natural,
    read_object,
    read_path,
    read_text,
    refuse,
)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A packaged file.

    Args:
        path: relative to the `_lowered` folder.
        size: bytes.
        sha256: of the whole file.
        header_sha256: of a safetensors file's first eight bytes and header; else empty.
    """

    path: str
    size: int
    sha256: str
    header_sha256: str = ""


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """How much of a method was delegated: nodes of its edge program, those in delegates, number of delegate calls."""

    nodes: int
    delegated: int
    partitions: int


@dataclass(frozen=True, slots=True)
class RecipeEntry:
    """A model lowered for one recipe.

    Args:
        plan: its plan.
        debug: its debug map.
        delegates: the files of its delegates: blobs, and named data beside them.
        backends: ids of the delegates that running it needs.
        requirements: PEP 508, public versions only.
        target: the machine that its native code needs; `None` where it is portable.
        methods: how much of each was delegated.
        imports: modules to import first: they register operators that the plan calls.
    """

    plan: FileEntry
    debug: FileEntry
    delegates: tuple[FileEntry, ...]
    backends: tuple[str, ...]
    requirements: tuple[str, ...]
    target: TargetEntry | None
    methods: Mapping[str, MethodEntry]
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model: its recipes, the order in which `load` tries them, and the files that they share.

    Args:
        order: names of the recipes.
        constants: the weights.
        check: example inputs, and eager's outputs for them.
        recipes: by name.
        assets: files that the project packages with it, by the names that they have for the user.
    """

    order: tuple[str, ...]
    constants: FileEntry | None
    check: FileEntry | None
    recipes: Mapping[str, RecipeEntry]
    assets: Mapping[str, FileEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All lowered models in one `_lowered` folder, and the versions of what made them."""

    distribution: str
    version: str
    hatch_lower: str
    torch: str
    tools: Mapping[str, str]
    models: Mapping[str, ModelEntry]


def read_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in `data`; `where` names the file in messages.

    Raises:
        ProgramError: if it is damaged, or from a newer hatch-lower.
    """
    value = parse_json(data, where)
    check_schema(value, MANIFEST_SCHEMA, where)
    names = frozenset({"schema", "distribution", "version", "hatch_lower", "torch", "tools", "models"})
    fields = read_fields(value, names, where)
    return Manifest(
        read_text(fields["distribution"], where),
        read_text(fields["version"], where),
        read_text(fields["hatch_lower"], where),
        read_text(fields["torch"], where),
        {name: read_text(each, f"{where}: tools") for name, each in read_object(fields["tools"], where).items()},
        {
            read_text(name, where): read_model(each, f"{where}: models[{name!r:.80}]")
            for name, each in read_object(fields["models"], where).items()
        },
    )


def write_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as canonical JSON, which `read_manifest` reads back to an equal manifest."""
    return package_manifest(
        manifest.distribution,
        manifest.version,
        manifest.hatch_lower,
        manifest.torch,
        manifest.tools,
        {name: model_json(each) for name, each in manifest.models.items()},
    )


def read_model(value: Any, where: str) -> ModelEntry:
    """Return a model's part of the manifest, as `model_json` writes it.

    Raises:
        ProgramError: if it is not of that form.
    """
    names = frozenset({"order", "constants", "check", "recipes"})
    fields = read_fields(value, names, where, optional=frozenset({"assets"}))
    recipes = {
        read_text(name, where): _read_recipe(each, f"{where}.recipes[{name!r:.80}]")
        for name, each in read_object(fields["recipes"], where).items()
    }
    order = _read_texts(fields["order"], f"{where}.order")
    if not order or sorted(order) != sorted(recipes):
        refuse(f"{where}.order", "a load order that does not name every recipe once")
    constants = None if fields["constants"] is None else _read_file(fields["constants"], f"{where}.constants", True)
    check = None if fields["check"] is None else _read_file(fields["check"], f"{where}.check")
    assets = {
        read_path(name, f"{where}.assets"): _read_file(each, f"{where}.assets[{name!r:.80}]")
        for name, each in read_object(fields.get("assets", {}), where).items()
    }
    return ModelEntry(order, constants, check, recipes, assets)


def _read_recipe(value: Any, where: str) -> RecipeEntry:
    names = frozenset({"plan", "debug", "delegates", "backends", "requirements", "target", "methods"})
    fields = read_fields(value, names, where, frozenset({"imports"}))
    return RecipeEntry(
        _read_file(fields["plan"], f"{where}.plan"),
        _read_file(fields["debug"], f"{where}.debug"),
        tuple(
            _read_file(each, f"{where}.delegates[{index}]")
            for index, each in enumerate(read_list(fields["delegates"], where))
        ),
        _read_texts(fields["backends"], f"{where}.backends"),
        _read_texts(fields["requirements"], f"{where}.requirements"),
        read_target(fields["target"], f"{where}.target"),
        {
            read_text(name, where): _read_method(each, f"{where}.methods[{name!r:.80}]")
            for name, each in read_object(fields["methods"], where).items()
        },
        tuple(read_module_name(each, f"{where}.imports") for each in read_list(fields.get("imports", []), where)),
    )


def _read_method(value: Any, where: str) -> MethodEntry:
    fields = read_fields(value, frozenset({"nodes", "delegated", "partitions"}), where)
    return MethodEntry(*(read_natural(fields[name], where) for name in ("nodes", "delegated", "partitions")))


def _read_file(value: Any, where: str, has_header: bool = False) -> FileEntry:
    names = frozenset({"path", "size", "sha256"})
    fields = read_fields(value, names | {"header_sha256"} if has_header else names, where)
    return FileEntry(
        read_path(fields["path"], where),
        read_natural(fields["size"], where),
        read_digest(fields["sha256"], where),
        read_digest(fields["header_sha256"], where) if has_header else "",
    )


def _read_texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(read_text(each, where) for each in read_list(value, where))


def _file_json(entry: FileEntry) -> dict[str, Any]:
    fields = {"path": entry.path, "size": entry.size, "sha256": entry.sha256}
    return fields | {"header_sha256": entry.header_sha256} if entry.header_sha256 else fields


def model_json(model: ModelEntry) -> dict[str, Any]:
    """Return a model's part of the manifest as JSON."""
    fields = {
        "order": list(model.order),
        "constants": model.constants and _file_json(model.constants),
        "check": model.check and _file_json(model.check),
        "recipes": {name: _recipe_json(each) for name, each in model.recipes.items()},
    }
    assets = {name: _file_json(each) for name, each in model.assets.items()}
    return fields | {"assets": assets} if assets else fields


def _recipe_json(recipe: RecipeEntry) -> dict[str, Any]:
    imports = {"imports": list(recipe.imports)} if recipe.imports else {}
    return {
        **imports,
        "plan": _file_json(recipe.plan),
        "debug": _file_json(recipe.debug),
        "delegates": [_file_json(each) for each in recipe.delegates],
        "backends": list(recipe.backends),
        "requirements": list(recipe.requirements),
        "target": target_json(recipe.target),
        "methods": {
            name: {"nodes": each.nodes, "delegated": each.delegated, "partitions": each.partitions}
            for name, each in recipe.methods.items()
        },
    }
