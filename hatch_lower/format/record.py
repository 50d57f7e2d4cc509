"""The report of lowering a model: the answer of a child process, and the stored record of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.metrics import VerifiedMethod
from hatch_lower.format.results import MethodRow, PayloadFile
from hatch_lower.frozen import Frozen

FORMS = "forms"  # folder of an audited model: a store with the canonical forms of the graphs exported again


class MethodRecord(Frozen):
    """Digests (sha256) of an exported method, before decomposition."""

    graph: str  # canonical form
    names: str  # of its nodes, with the metadata from torch and the author
    examples: str  # inputs
    state: Mapping[str, str]  # by constant
    form: str  # blob in the store: zlib-compressed JSON with the canonical form and the source lines


class Architecture(Frozen):
    name: str = ""  # class of the module; empty for an exported program without the class's name
    parameters: int = 0  # number of elements over all parameters; tied parameters count once
    # by method, a description of each leaf of the result: `float32[batch, 10]`
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class BackendRecord(Frozen):
    name: str  # id
    distribution: str  # empty for a class that no installed distribution declares
    version: str
    # versions of the tools that shaped its blobs, from the backend itself; empty if the backend has no partition
    fingerprint: Mapping[str, str]


class WeightsRecord(Frozen):
    """Weights of a model outside and inside its wheel, in bytes."""

    files: int  # number of files outside
    outside: int
    copied: int  # bytes of `outside` that each load copies, because the elements are not aligned in the file
    kept: Mapping[str, int]  # inside the wheel, by reason


class ModelReport(Frozen):
    """The result of lowering a model for all of its recipes."""

    model: str
    manifest: ModelEntry  # its part of `manifest.json`
    files: tuple[PayloadFile, ...]  # the manifest's entries with their current paths
    rows: tuple[MethodRow, ...] = ()  # for the summary table
    native: tuple[Path, ...] = ()  # files with native code, for the wheel's tag
    tools: Mapping[str, str] = field(default_factory=dict)  # versions of tools that shaped the programs, except torch
    torch: str = ""  # version
    methods: Mapping[str, MethodRecord] = field(default_factory=dict)  # empty if the export has no digest
    key: Mapping[str, object] = field(default_factory=dict)  # components of the `ExportKey`; empty without a key
    architecture: Architecture = field(default_factory=Architecture)  # for the SBOM
    backends: tuple[BackendRecord, ...] = ()  # of its recipes, by name; for the SBOM
    outside: WeightsRecord | None = None  # `None` if the wheel holds all weights
    verified: tuple[VerifiedMethod, ...] = ()  # comparisons with eager in the build
    beside: tuple[PayloadFile, ...] = ()  # files of weights to write beside the wheel, with their names there
