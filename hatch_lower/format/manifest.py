"""`manifest.json`: models, recipes and methods of a distribution, and every file with its size and digest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from hatch_lower.canonical import canonical_json
from hatch_lower.format.codec import Damage, decode_file, encode
from hatch_lower.format.constants import TargetEntry
from hatch_lower.format.results import MANIFEST_SCHEMA
from hatch_lower.format.values import Digest, ModuleName, Natural, RelativePath, Text, read_digest
from hatch_lower.frozen import Frozen

Device: TypeAlias = Literal["cpu", "cuda"]


def read_optional_digest(value: object) -> str:
    return "" if value == "" else read_digest(value)


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: RelativePath  # relative to the `_lowered` folder
    size: Natural  # bytes
    sha256: Digest  # of the whole file
    # for the constants file: of all bytes before the tensor data; for other files empty
    header_sha256: Annotated[str, read_optional_digest] = ""


class LeftOut(Frozen):
    """An operation that a backend's partitioner accepts but that the build left to torch."""

    place: Natural  # among all nodes of the method's edge program
    backend: Text
    handle: Natural  # of the debug map, which has the operation's name and source line
    reason: Text


class MethodEntry(Frozen):
    nodes: Natural  # of its edge program
    delegated: Natural  # nodes in delegates
    partitions: Natural  # delegate calls
    left_out: tuple[LeftOut, ...] = ()  # by place


class MetricEntry(Frozen):
    """The project's metric of a packaged recipe and of eager, measured in the build: higher is better."""

    name: Text  # the function, `module:function`
    value: float  # of the recipe
    eager: float
    max_drop: float  # the largest allowed difference from eager to the recipe


class MethodSeconds(Frozen):
    """Measured seconds of a call of a method: the median of several calls."""

    method: Text
    sizes: Mapping[Text, Natural]  # of dynamic dimensions; empty: sizes of the example inputs
    seconds: float

    def validate(self) -> None:
        if self.seconds <= 0:
            raise Damage(f"{self.seconds} instead of a number above 0", ".seconds")


class MeasuredCalls(Frozen):
    """Measured calls of a recipe on processors of an instruction set level, with a number of threads."""

    level: Text  # `x86-64-v3`; elsewhere the name of the architecture
    threads: Natural
    calls: tuple[MethodSeconds, ...]

    def validate(self) -> None:
        if not self.calls:
            raise Damage("no calls", ".calls")


class RecipeEntry(Frozen):
    plan: FileEntry
    debug: FileEntry
    delegates: tuple[FileEntry, ...]  # blobs, and named data beside them
    backends: tuple[Text, ...]  # ids of the delegates required to run the recipe
    requirements: tuple[Text, ...]  # PEP 508, public versions only
    target: TargetEntry | None  # `None` if the recipe is portable
    methods: Mapping[Text, MethodEntry]
    imports: tuple[ModuleName, ...] = ()  # modules that register the plan's custom operators, to import first
    # type of the device of the program's arrays; `load` may place the arrays of a recipe without delegates elsewhere
    device: Device = "cpu"
    # the reason why the build did not compare the recipe with eager, equal on all machines without the recipe's device;
    # empty for a compared recipe
    not_compared: str = ""
    # in which the recipe computes, as the setting `precision` names it; the check data of a recipe with another
    # precision than float32 have outputs of the recipe's own
    precision: str = "float32"
    metric: MetricEntry | None = None  # `None` for a model without a metric, and for a recipe that the build cannot run
    measured: tuple[MeasuredCalls, ...] = ()  # with `order = "measured"`; by level and threads


class ModelEntry(Frozen):
    order: tuple[Text, ...]  # in which `load` tries the recipes that have no measurements for the processor
    constants: FileEntry | None  # the weights
    check: FileEntry | None  # example inputs with eager's outputs
    recipes: Mapping[Text, RecipeEntry]
    # files that the project packages with the model, by their names for the user
    assets: Mapping[RelativePath, FileEntry] = field(default_factory=dict)
    weights: FileEntry | None = None  # sources of the weights that are missing in `constants`

    def validate(self) -> None:
        # an audited model has no recipes; `Manifest` checks that a packaged model has recipes
        if sorted(self.order) != sorted(self.recipes):
            raise Damage("a load order that does not name every recipe once", ".order")
        if self.constants is not None and not self.constants.header_sha256:
            raise Damage("the key `header_sha256` is missing", ".constants")


class Manifest(Frozen):
    """All lowered models of a `_lowered` folder, with the versions of torch and the tools that built them."""

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
    return canonical_json({"schema": MANIFEST_SCHEMA, **encode(manifest, packaged=True)})


def model_json(model: ModelEntry) -> Any:
    return encode(model, packaged=True)
