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
from hatch_lower.format.delegates import TargetEntry
from hatch_lower.format.manifest import ModelEntry

__all__ = ["BuildResult", "MethodRow", "ModelReport", "PayloadFile", "Request", "read_record", "write_record"]

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """A file for the wheel.

    Args:
        path: its posix path; in a `ModelReport` relative to the package's `_lowered` folder, else in the wheel.
        source: the file on disk.
        size: in bytes.
        sha256: of its content.
    """

    path: str
    source: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A row of the summary table: what became of one method of one recipe.

    Args:
        model: the model's name.
        recipe: the recipe's name.
        method: the method's name.
        nodes: operations in the edge program.
        delegated: how many of them are in a delegate.
        partitions: how many delegate calls there are.
        bytes: of the delegates' blobs.
        seconds: that lowering it took.
        reused: how many of the partitions came from the cache.
        note: a few words more.
    """

    model: str
    recipe: str
    method: str
    nodes: int
    delegated: int
    partitions: int
    bytes: int
    seconds: float
    reused: int
    note: str = ""


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
    """

    model: str
    manifest: ModelEntry
    files: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...] = ()
    native: tuple[Path, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build puts into the wheel, and what it says about it.

    Args:
        payload: every file, sorted by path; each package's `manifest.json` is among them.
        rows: for the summary table, in the order of models and recipes.
        requirements: PEP 508 requirements of all programs, sorted.
        targets: machines that native code needs, sorted, without repetition.
        native: the files with native code.
    """

    payload: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...]
    requirements: tuple[str, ...]
    targets: tuple[TargetEntry, ...]
    native: tuple[Path, ...]


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
    """

    settings: Settings
    model: str
    folder: Path
    lower: str
    search_path: tuple[Path, ...]
    import_roots: tuple[Path, ...]
    later_hooks: tuple[str, ...]
    events: int


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
