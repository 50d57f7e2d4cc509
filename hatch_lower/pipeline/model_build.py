"""The inputs and services of a model's lowering, and the results of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from hatch_lower.cache.store import Store
from hatch_lower.config.settings import ModelSettings, Recipe, Settings
from hatch_lower.events import Event, Reporter
from hatch_lower.exir.backend.compile_spec_schema import CompileSpec
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.backend.registry import backend_code, find_backend
from hatch_lower.exir.lowering.lower import DelegatedMethods
from hatch_lower.exir.lowering.process_state import process_restored
from hatch_lower.format.manifest import LeftOut, MethodEntry
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import MethodRow
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.capture import CapturedModel
from hatch_lower.pipeline.checkpoint import LocalSource
from hatch_lower.pipeline.emit.constants import SpanDigests
from hatch_lower.pipeline.emit.emit import EmittedProgram
from hatch_lower.pipeline.package import Packager, ProgramFiles

if TYPE_CHECKING:
    from hatch_lower.pipeline.fresh_process import FreshProcess
    from hatch_lower.pipeline.real_inputs import RealInputs

Examples = tuple[Mapping[str, torch.Tensor], str]
LeftOutOf = Mapping[str, tuple[LeftOut, ...]]  # method to operations outside of a backend's partitions


class KeptLowering(Frozen):
    """The methods of a model, lowered for a recipe, before any file is written."""

    methods: DelegatedMethods
    seconds: Mapping[str, float]  # of lowering, by method
    left_out: LeftOutOf
    healed: int  # number of healings in this build


class ConvertedModel(Frozen):
    """A model in the precision of a recipe, as ready programs."""

    source: CapturedModel
    examples: Examples | None = None  # as `BuildInputs.examples`


class BuildInputs(Frozen):
    """The inputs of a model's lowering; none changes during a build."""

    settings: Settings
    model: ModelSettings
    source: CapturedModel
    # recipe to backend to its partitioner, in the order of their turns
    partitioners: Mapping[str, Mapping[str, Partitioner]] = field(default_factory=dict)
    # the tensors among the example inputs and eager's outputs, and a note; `None` if no setting needs the tensors
    examples: Examples | None = None
    sources: tuple[LocalSource, ...] = ()  # files of published weights, which are not packaged again
    real: Mapping[str, RealInputs] = field(default_factory=dict)  # by method, for methods with real inputs
    # by the names of recipes with another precision than float32
    converted: Mapping[str, ConvertedModel] = field(default_factory=dict)

    def source_of(self, recipe: Recipe) -> CapturedModel:
        """Return the model in the precision of a recipe."""
        found = self.converted.get(recipe.name)
        return self.source if found is None else found.source

    def examples_of(self, recipe: Recipe) -> Examples | None:
        """Return the example inputs, and the outputs in the precision of a recipe."""
        found = self.converted.get(recipe.name)
        return self.examples if found is None else found.examples

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        return tuple(recipe for recipe in self.settings.recipes if recipe.name in self.model.recipes)


class Services(Frozen):
    """The cache, files, events and processes of a model's build."""

    store: Store
    folder: Path  # of the model in this build
    packager: Packager
    digests: SpanDigests
    reporter: Reporter
    fresh: FreshProcess | None  # a process that has not run the model's code
    # random states after the import of the metric in this process, by library
    drawn: Mapping[str, str] = field(default_factory=dict)

    def warn(self, line: str) -> None:
        self.reporter.report(Event("cache", "note", self.packager.model, detail=line))


def place_of(model: str, recipe: Recipe) -> str:
    return f"model `{model}`, recipe `{recipe.name}`"


def is_gated(model: ModelSettings, recipe: Recipe) -> bool:
    """Return whether the metric judges the numbers of a recipe, which computes in another precision than eager."""
    return bool(model.metric) and recipe.precision != "float32"


class UsedBackend(Frozen):
    backend: str
    specs: tuple[tuple[str, str], ...]  # the options, values in hexadecimal

    def fingerprint(self) -> Mapping[str, str]:
        specs = [CompileSpec(key, bytes.fromhex(value)) for key, value in self.specs]
        with process_restored():
            return find_backend(self.backend).fingerprint(specs)

    def versions(self) -> list[object]:
        """Return the backend's fingerprint and code: the inputs of its result beside the partition."""
        code = backend_code(self.backend, find_backend(self.backend), {})
        return [sorted([name, text] for name, text in self.fingerprint().items()), code]


class BuiltRecipe(Frozen):
    recipe: Recipe
    emitted: EmittedProgram
    files: ProgramFiles
    methods: Mapping[str, MethodEntry]
    rows: tuple[MethodRow, ...]
    used: tuple[UsedBackend, ...]  # the backends that lowered partitions
    keys: Mapping[str, bool]  # cache key of a partition's result → whether the result came from the cache
    programs: Mapping[str, ExportedProgram]  # of each method, with the calls of delegates
    lowering: KeptLowering

    @property
    def left_out(self) -> LeftOutOf:
        return self.lowering.left_out


LoweredModel = tuple[ModelReport, Sequence[BuiltRecipe]]
