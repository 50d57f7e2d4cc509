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
    path: RelativePath  # relative to the `_lowered` folder
    size: Natural  # bytes
    sha256: Digest  # of the whole file
    # of all that stands before the data of the constants file; else empty
    header_sha256: Annotated[str, read_optional_digest] = ""


class LeftOut(Frozen):
    """An operation that a backend's partitioner takes, and that the build left to torch."""

    place: Natural  # among all nodes of the method's edge program
    backend: Text
    handle: Natural  # under which the debug map says which operation it is, and its source line
    reason: Text


class MethodEntry(Frozen):
    nodes: Natural  # of its edge program
    delegated: Natural  # those in delegates
    partitions: Natural  # delegate calls
    left_out: tuple[LeftOut, ...] = ()  # by place


class RecipeEntry(Frozen):
    plan: FileEntry
    debug: FileEntry
    delegates: tuple[FileEntry, ...]  # blobs, and named data beside them
    backends: tuple[Text, ...]  # ids of the delegates that running it needs
    requirements: tuple[Text, ...]  # PEP 508, public versions only
    target: TargetEntry | None  # `None` where it is portable
    methods: Mapping[Text, MethodEntry]
    imports: tuple[ModuleName, ...] = ()  # to import first: they register operators that the plan calls


class ModelEntry(Frozen):
    order: tuple[Text, ...]  # in which `load` tries the recipes
    constants: FileEntry | None  # the weights
    check: FileEntry | None  # example inputs, and eager's outputs for them
    recipes: Mapping[Text, RecipeEntry]
    # files that the project packages with it, by the names that they have for the user
    assets: Mapping[RelativePath, FileEntry] = field(default_factory=dict)
    weights: FileEntry | None = None  # says where weights are that `constants` lacks

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
