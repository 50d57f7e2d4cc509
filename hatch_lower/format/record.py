"""The report of lowering a model: the answer of a child process, and the stored record of a build, with the metrics
of each output compared with eager.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hatch_lower.format.manifest import ModelEntry
from hatch_lower.format.results import MethodRow, PayloadFile
from hatch_lower.frozen import Frozen


@dataclass(frozen=True, slots=True)
class OutputMetrics:
    """Metrics of a floating-point output. Sums leave out elements that are not finite on both sides."""

    largest_error: float  # absolute; infinite if an element is finite, or NaN, on one side only
    largest_relative_error: float  # relative to eager, over elements where eager is not 0
    snr: float | None  # signal to noise in dB; `None` if the outputs are equal, or all 0
    cosine: float | None  # of the angle between both outputs as vectors; `None` if a vector is 0
    argmax: float | None  # share of rows with the largest number in the same place; `None` if rows have under 2 numbers

    def text(self) -> str:
        """Return `largest difference 1.2e-07, SNR 134 dB, cosine 1.000000, argmax 100 %`."""
        parts = [f"largest difference {self.largest_error:.1e}"]
        if self.snr is not None:
            parts.append(f"SNR {self.snr:.0f} dB")
        if self.largest_error and self.cosine is not None:
            parts.append(f"cosine {math.floor(self.cosine * 1e6) / 1e6:.6f}")
        if self.argmax is not None:
            parts.append(f"argmax {math.floor(self.argmax * 1e3) / 10:g} %")
        return ", ".join(parts)


def worst(metrics: list[OutputMetrics]) -> OutputMetrics | None:
    """Return the worst value of each metric over several outputs; `None` for an empty list."""
    if not metrics:
        return None

    def least(values: list[float | None]) -> float | None:
        return min((value for value in values if value is not None), default=None)

    return OutputMetrics(
        max(each.largest_error for each in metrics),
        max(each.largest_relative_error for each in metrics),
        least([each.snr for each in metrics]),
        least([each.cosine for each in metrics]),
        least([each.argmax for each in metrics]),
    )


@dataclass(frozen=True, slots=True)
class VerifiedMethod:
    """The comparison of a method of a recipe with eager in the build: its inputs and its result."""

    recipe: str
    method: str
    compared: str  # `example inputs, random inputs, batch = 3, 12 of samples.safetensors`
    calls: int  # number of compared calls
    left_out: tuple[str, ...]  # inputs that were not compared, with reasons
    outputs: Mapping[str, OutputMetrics] = field(default_factory=dict)  # by path, of floating-point outputs


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
