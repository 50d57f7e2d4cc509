"""What the build's parent and its child processes tell each other, and what a build comes to.

The two halves share dataclasses; on the way between them they are JSON, so nothing is pickled.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from hatch_lower.config import Settings
from hatch_lower.format.manifest import ModelEntry
from hatch_lower.results import BuildResult, MethodRow, PayloadFile

__all__ = [
    "Architecture",
    "BackendRecord",
    "BuildResult",
    "MethodRecord",
    "MethodRow",
    "ModelReport",
    "PayloadFile",
    "Request",
    "decode",
    "encode",
    "read_record",
    "write_record",
]

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class MethodRecord:
    """What an exported method was, before decomposition.

    Args:
        graph: sha256 of its canonical form.
        names: sha256 of the names in it, and of what torch and the author noted at its nodes.
        examples: sha256 of its example inputs.
        state: constant's name to the sha256 of its contents.
        form: sha256 of a blob in the store: zlib-compressed JSON with the canonical form and the source lines.
    """

    graph: str
    names: str
    examples: str
    state: Mapping[str, str]
    form: str


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a model is in itself.

    Args:
        name: dotted name of the class of its module; empty where torch noted none for a ready program.
        parameters: numbers in its parameters; those that are tied count once.
        outputs: method name to what each leaf of its result is, in words: `float32[batch, 10]`.
    """

    name: str = ""
    parameters: int = 0
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """A backend that a recipe of a model names.

    Args:
        name: its id.
        distribution: which brings it; empty for a class that no installed distribution declares.
        version: of that distribution.
        fingerprint: versions of what shaped its blobs, as it gives them itself; empty if it took nothing.
    """

    name: str
    distribution: str
    version: str
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What lowering one model for all of its recipes came to.

    Args:
        model: the model's name.
        manifest: its part of `manifest.json`.
        files: what it puts into the wheel; the manifest's entries with where they are now.
        rows: for the summary table.
        native: the files with native code, for the wheel's tag.
        tools: name to version of what shaped the programs beside torch.
        torch: torch's version.
        methods: method name to what its export was; empty where that has no digest.
        key: the components of the `ExportKey` of the exported model; empty where it has none.
        architecture: of the model; for the SBOM.
        backends: of its recipes, by name; for the SBOM.
    """

    model: str
    manifest: ModelEntry
    files: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...] = ()
    native: tuple[Path, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    methods: Mapping[str, MethodRecord] = field(default_factory=dict)
    key: Mapping[str, Any] = field(default_factory=dict)
    architecture: Architecture = field(default_factory=Architecture)
    backends: tuple[BackendRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What a child process is to do.

    Args:
        settings: of the build.
        model: the name of the model to lower.
        folder: where it writes the model's files, and the answer.
        lower: `module:function` that does the work: `hatch_lower.pipeline:lower_model`.
        search_path: directories for the front of `sys.path`: the project as if it were installed.
        import_roots: those of them that hold the user's own code.
        later_hooks: build hooks that run after this one.
        events: file descriptor for events, as JSON lines.
        manifest: components of the `ManifestKey` under which the result is remembered; empty if it is not.
        recorded_path: `sys.path` of the child process by which its inputs are located, without folders of this build.
        work: the folder of this build.
        log: what the preloaded library writes; `None` if there is no such library.
        variables: of the environment, which put that library into the process.
        project: what is recorded of the project's metadata where it is read.
    """

    settings: Settings
    model: str
    folder: Path
    lower: str
    search_path: tuple[Path, ...]
    import_roots: tuple[Path, ...]
    later_hooks: tuple[str, ...]
    events: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    recorded_path: tuple[Path, ...] = ()
    work: Path | None = None
    log: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    project: Mapping[str, str] = field(default_factory=dict)


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass as JSON."""
    path.write_text(json.dumps(encode(record)), encoding="utf-8")


def read_record(kind: type[Record], path: Path) -> Record:
    """Return the dataclass that `write_record` wrote."""
    value: Record = decode(kind, json.loads(path.read_text(encoding="utf-8")))
    return value


def encode(value: Any) -> Any:
    """Return dataclasses as objects, paths as strings, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: encode(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: encode(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(each) for each in value]
    return value


def decode(kind: Any, value: Any) -> Any:
    """Return `value` as the type that a field is declared with."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: decode(hints[name], each) for name, each in value.items()})
    if kind is Path:
        return Path(value)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return decode(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(decode(arguments[0], each) for each in value)
        return tuple(decode(each, item) for each, item in zip(arguments, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: decode(arguments[1], each) for key, each in value.items()}
    return value
