"""What a build puts into the wheel and says about it; the whole of a report is in `format/record.py`."""

# a build of what is known needs no more than this, and is to take 50 ms at most
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hatch_lower.canonical import canonical_json
from hatch_lower.frozen import Frozen

MANIFEST_SCHEMA = 1
SBOM_FILE = "hatch-lower.cdx.json"  # below `.dist-info/sboms` in each wheel that the hook took part in


class PayloadFile(Frozen):
    path: str  # posix; in a model's result relative to the package's `_lowered` folder, else in the wheel
    source: Path
    size: int  # bytes
    sha256: str


def payload_folder(package: str) -> str:
    return f"{package.replace('.', '/')}/_lowered"


class MethodRow(Frozen):
    """A row of the summary table: what became of one method of one recipe."""

    model: str
    recipe: str
    method: str
    nodes: int  # of the edge program
    delegated: int  # nodes in delegates
    partitions: int  # delegate calls
    bytes: int  # of the delegates' blobs
    seconds: float  # that lowering it took
    reused: int  # partitions that came from the cache
    note: str = ""  # why it is not as the last build left it
    # what was taken from the cache: 1 the files, for nothing that the export reads had changed; 2 the files, for the
    # exported graphs are known; 3 the result of every partition; 0 not all of that
    level: int = 0


class ModelResult(Frozen):
    model: str
    entry: Mapping[str, Any]  # its part of `manifest.json`, as JSON
    files: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...]  # for the summary table
    native: tuple[Path, ...]  # those with native code, for the wheel's tag
    tools: Mapping[str, str]  # versions of what shaped the programs beside torch
    torch: str  # version
    origin: Mapping[str, Any] = field(default_factory=dict)  # `architecture` and `backends` of its report, as JSON
    outside: Mapping[str, Any] | None = None  # `outside` of its report, as JSON
    beside: tuple[PayloadFile, ...] = ()  # files of weights that go beside the wheel, under these names


class BuildResult(Frozen):
    payload: tuple[PayloadFile, ...]  # sorted by path; each package's `manifest.json` is among them
    rows: tuple[MethodRow, ...]  # for the summary table, in the order of models and recipes
    requirements: Mapping[str, tuple[str, ...]]  # PEP 508, of all programs of a recipe, sorted
    native: tuple[Path, ...]  # files with native code
    models: tuple[ModelResult, ...] = ()  # in the order of the settings

    @property
    def beside(self) -> tuple[PayloadFile, ...]:
        return tuple(file for model in self.models for file in model.beside)

    @property
    def files(self) -> tuple[PayloadFile, ...]:
        return (*self.payload, *self.beside)


def package_manifest(
    distribution: str, version: str, hatch_lower: str, torch: str, tools: Mapping[str, str], models: Mapping[str, Any]
) -> bytes:
    # `models` as `format.manifest.model_json` wrote them: a build in which nothing has changed decodes none
    return canonical_json(
        {
            "schema": MANIFEST_SCHEMA,
            "distribution": distribution,
            "version": version,
            "hatch_lower": hatch_lower,
            "torch": torch,
            "tools": dict(tools),
            "models": dict(models),
        }
    )
