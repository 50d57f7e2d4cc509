"""What a build puts into the wheel and says about it.

A build of what is known needs no more than this, and is to take 50 ms at most: the whole of a
report is in `format/record.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hatch_lower.canonical import canonical_json
from hatch_lower.frozen import Frozen

MANIFEST_SCHEMA = 1
SBOM_FILE = "hatch-lower.cdx.json"
"""The SBOM's name below `.dist-info/sboms` in each wheel that the hook took part in."""


class PayloadFile(Frozen):
    """A file for the wheel.

    Args:
        path: its posix path; in a model's result relative to the package's `_lowered` folder, else in the wheel.
        source: the file on disk.
        size: in bytes.
        sha256: of its content.
    """

    path: str
    source: Path
    size: int
    sha256: str


class MethodRow(Frozen):
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
        note: why it is not as the last build left it.
        level: what was taken from the cache: 1 the files, for nothing that the export reads had changed; 2 the files,
            for the exported graphs are known; 3 the result of every partition; 0 not all of that.
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
    level: int = 0


class ModelResult(Frozen):
    """One model, as far as its package needs it.

    Args:
        model: the model's name.
        entry: its part of `manifest.json`, as JSON.
        files: what it puts into the wheel.
        rows: for the summary table.
        native: the files with native code, for the wheel's tag.
        tools: name to version of what shaped the programs beside torch.
        torch: torch's version.
        origin: `architecture` and `backends` of its report, as JSON.
    """

    model: str
    entry: Mapping[str, Any]
    files: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...]
    native: tuple[Path, ...]
    tools: Mapping[str, str]
    torch: str
    origin: Mapping[str, Any] = field(default_factory=dict)


class BuildResult(Frozen):
    """What a build puts into the wheel, and what it says about it.

    Args:
        payload: every file, sorted by path; each package's `manifest.json` is among them.
        rows: for the summary table, in the order of models and recipes.
        requirements: PEP 508 requirements of all programs, sorted.
        native: the files with native code.
        models: what they come from, in the order of the settings.
    """

    payload: tuple[PayloadFile, ...]
    rows: tuple[MethodRow, ...]
    requirements: tuple[str, ...]
    native: tuple[Path, ...]
    models: tuple[ModelResult, ...] = ()


def package_manifest(
    distribution: str, version: str, hatch_lower: str, torch: str, tools: Mapping[str, str], models: Mapping[str, Any]
) -> bytes:
    """Return `manifest.json`.

    Args:
        distribution: name of the project.
        version: of the project.
        hatch_lower: version of this package.
        torch: its version.
        tools: name to version of what else shaped the programs.
        models: name to `format.manifest.model_json`, as it was written.
    """
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
