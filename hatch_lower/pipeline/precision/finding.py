"""The request for a search of mixed precision, and the finding."""

from __future__ import annotations

from hatch_lower.frozen import Frozen

PRECISIONS = "precisions.json"  # in the folder of a child process


class PrecisionSearch(Frozen):
    recipe: str  # of another precision than float32


class LayerEffect(Frozen):
    path: str  # of the module
    # error of the outputs with the layer alone in float32, relative to the error with no layer in float32
    error: float


class PrecisionFinding(Frozen):
    model: str
    recipe: str
    precision: str
    eager: float  # the metric
    limit: float  # the largest drop
    layers: tuple[LayerEffect, ...]  # the layer with the largest effect first
    kept: tuple[str, ...]  # paths of the modules that must stay in float32
    tried: tuple[tuple[int, float], ...]  # number of kept layers, and the metric with these

    @property
    def metric(self) -> float:
        """Return the metric of the model with the kept modules."""
        return dict(self.tried)[len(self.kept)]
