"""`manifest.json`: which models, recipes and methods a distribution holds, and every file with its size and digest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from hatch_lower.format.codec import Damage, decode_file, encode
from hatch_lower.format.delegates import TargetEntry
from hatch_lower.format.results import MANIFEST_SCHEMA, package_manifest
from hatch_lower.format.values import Digest, ModuleName, Natural, RelativePath, Text, read_digest
from hatch_lower.frozen import Frozen


def read_optional_digest(value: object) -> str:
    return "" if value == "" else read_digest(value)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A packaged file.

    Args:
        path: relative to the `_lowered` folder.
        size: bytes.
        sha256: of the whole file.
        header_sha256: of a safetensors file's first eight bytes and header; else empty.
    """

    path: RelativePath
    size: Natural
    sha256: Digest
    header_sha256: Annotated[str, read_optional_digest] = ""


class MethodEntry(Frozen):
    """How much of a method was delegated: nodes of its edge program, those in delegates, number of delegate calls."""

    nodes: Natural
    delegated: Natural
    partitions: Natural


class RecipeEntry(Frozen):
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
    backends: tuple[Text, ...]
    requirements: tuple[Text, ...]
    target: TargetEntry | None
    methods: Mapping[Text, MethodEntry]
    imports: tuple[ModuleName, ...] = ()


class ModelEntry(Frozen):
    """A model: its recipes, the order in which `load` tries them, and the files that they share.

    Args:
        order: names of the recipes.
        constants: the weights.
        check: example inputs, and eager's outputs for them.
        recipes: by name.
        assets: files that the project packages with it, by the names that they have for the user.
    """

    order: tuple[Text, ...]
    constants: FileEntry | None
    check: FileEntry | None
    recipes: Mapping[Text, RecipeEntry]
    assets: Mapping[RelativePath, FileEntry] = field(default_factory=dict)

    def validate(self) -> None:
        # what an audit exports has no recipes; a packaged model has
        if sorted(self.order) != sorted(self.recipes):
            raise Damage("a load order that does not name every recipe once", ".order")
        if self.constants is not None and not self.constants.header_sha256:
            raise Damage("the key `header_sha256` is missing", ".constants")


class Manifest(Frozen):
    """All lowered models in one `_lowered` folder, and the versions of what made them."""

    distribution: Text
    version: Text
    hatch_lower: Text
    torch: Text
    tools: Mapping[str, Text]
    models: Mapping[Text, ModelEntry]

    def validate(self) -> None:
        for name, model in self.models.items():
            if not model.recipes:
                raise Damage("a model without recipes", f".models[{name!r:.80}].recipes")


def read_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in `data`; `where` names the file in messages."""
    return decode_file(Manifest, data, MANIFEST_SCHEMA, where)


def write_manifest(manifest: Manifest) -> bytes:
    return package_manifest(
        manifest.distribution,
        manifest.version,
        manifest.hatch_lower,
        manifest.torch,
        manifest.tools,
        {name: model_json(model) for name, model in manifest.models.items()},
    )


def model_json(model: ModelEntry) -> Any:
    return encode(model, packaged=True)
