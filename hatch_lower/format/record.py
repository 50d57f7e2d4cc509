"""What lowering a model came to: what a child process answers, and what is stored of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.metrics import VerifiedMethod
from hatch_lower.format.results import MethodRow, PayloadFile
from hatch_lower.frozen import Frozen

FORMS = "forms"  # folder of an audited model: a store with the forms of the graphs that were exported again


class MethodRecord(Frozen):
    """What an exported method was, before decomposition; sha256 each."""

    graph: str  # canonical form
    names: str  # of its nodes, with what torch and the author noted at them
    examples: str  # inputs
    state: Mapping[str, str]  # by constant
    form: str  # blob in the store: zlib-compressed JSON with the canonical form and the source lines


class Architecture(Frozen):
    name: str = ""  # of the class of its module; empty where torch noted none for a ready program
    parameters: int = 0  # numbers in its parameters; those that are tied count once
    # of each method, what each leaf of its result is: `float32[batch, 10]`
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class BackendRecord(Frozen):
    name: str  # id
    distribution: str  # empty for a class that no installed distribution declares
    version: str
    # versions of what shaped its blobs, as it gives them itself; empty if it took nothing
    fingerprint: Mapping[str, str]


class WeightsRecord(Frozen):
    """How much of a model's weights is outside its wheel, in bytes."""

    files: int  # that hold it
    outside: int
    copied: int  # of that, at each load, for elements that are not aligned where they lie
    kept: Mapping[str, int]  # in the wheel, by the reason why


class ModelReport(Frozen):
    """What lowering one model for all of its recipes came to."""

    model: str
    manifest: ModelEntry  # its part of `manifest.json`
    files: tuple[PayloadFile, ...]  # the manifest's entries with where they are now
    rows: tuple[MethodRow, ...] = ()  # for the summary table
    native: tuple[Path, ...] = ()  # those with native code, for the wheel's tag
    tools: Mapping[str, str] = field(default_factory=dict)  # versions of what shaped the programs beside torch
    torch: str = ""  # version
    methods: Mapping[str, MethodRecord] = field(default_factory=dict)  # empty where the export has no digest
    key: Mapping[str, object] = field(default_factory=dict)  # components of the `ExportKey`; empty where it has none
    architecture: Architecture = field(default_factory=Architecture)  # for the SBOM
    backends: tuple[BackendRecord, ...] = ()  # of its recipes, by name; for the SBOM
    outside: WeightsRecord | None = None  # `None` where the wheel is to hold all weights
    verified: tuple[VerifiedMethod, ...] = ()  # what was compared with eager when it was lowered
    beside: tuple[PayloadFile, ...] = ()  # files of weights to be written beside the wheel, under these names
