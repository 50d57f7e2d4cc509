"""What lowering a model came to: what a child process answers, and what is stored of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.results import MethodRow, PayloadFile

FORMS = "forms"
"""Folder of an audited model: a store with the forms of the graphs that were exported again."""


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
