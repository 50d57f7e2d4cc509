"""Results of a build for the wheel and the summary table; complete reports are in `format/record.py`."""

# A build without changes imports no other module of this room and must take at most 50 ms.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hatch_lower.canonical import canonical_json
from hatch_lower.frozen import Frozen

MANIFEST_SCHEMA = 1
NOT_ASKED = "`verify = false`"  # the reason of a recipe without a comparison by its settings
SBOM_FILE = "hatch-lower.cdx.json"  # below `.dist-info/sboms` in each wheel that the hook built


class PayloadFile(Frozen):
    path: str  # posix; relative to the package's `_lowered` folder in a `ModelResult`, else to the wheel
    source: Path
    size: int  # bytes
    sha256: str


def payload_folder(package: str) -> str:
    return f"{package.replace('.', '/')}/_lowered"


class MethodRow(Frozen):
    """A row of the summary table: a method of a recipe."""

    model: str
    recipe: str
    method: str
    nodes: int  # of the edge program
    delegated: int  # nodes in delegates
    partitions: int  # delegate calls
    bytes: int  # of the delegates' blobs
    seconds: float  # of lowering
    reused: int  # partitions from the cache
    note: str = ""  # reason of the difference from the last build
    # reuse of the cache: 1 the files, because no input of the export has changed; 2 the files, because the exported
    # graphs are known; 3 the result of every partition; 0 otherwise
    level: int = 0
    not_compared: str = ""  # as in the recipe's `RecipeEntry`


def lacks_device(not_compared: str) -> bool:
    """Return whether a recipe is not compared for want of its device, which another machine may have."""
    return not_compared not in ("", NOT_ASKED)


def metric_text(value: float, eager: float) -> str:
    """Return `0.966667, eager 0.972222`: in full if the numbers differ only in later digits."""
    short = f"{value:.6g}", f"{eager:.6g}"
    texts = (repr(value), repr(eager)) if short[0] == short[1] and value != eager else short
    return f"{texts[0]}, eager {texts[1]}"


class ModelResult(Frozen):
    model: str
    entry: Mapping[str, Any]  # its part of `manifest.json`, as JSON
    files: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...]  # for the summary table
    native: tuple[Path, ...]  # files with native code, for the wheel's tag
    tools: Mapping[str, str]  # versions of tools that shaped the programs, except torch
    torch: str  # version
    origin: Mapping[str, Any] = field(default_factory=dict)  # `architecture` and `backends` of its report, as JSON
    outside: Mapping[str, Any] | None = None  # `outside` of its report, as JSON
    beside: tuple[PayloadFile, ...] = ()  # files of weights to write beside the wheel, with their names there


class BuildResult(Frozen):
    payload: tuple[PayloadFile, ...]  # sorted by path, including each package's `manifest.json`
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
    # `models` as JSON from `format.manifest.model_json`, because a build without changes does not decode model entries
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
