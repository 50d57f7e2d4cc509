"""A compiled model of OpenVINO that counts the time of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any
from xml.etree import ElementTree

from hatch_lower.backends.instructions import CountedRuns, added, adopt
from hatch_lower.backends.openvino.run import Array, OpenvinoDelegate, OpenvinoFacts
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.timing import Run

ORIGINAL = "originalLayersNames"  # compiled layer's attribute: the names of its original layers


class TimedOpenvinoDelegate(CountedRuns, OpenvinoDelegate):
    known: Set[str]  # the names of the original layers

    def __init__(self, compiled: object, constants: Sequence[object], info: OpenvinoFacts) -> None:
        super().__init__(compiled, constants, info)
        self._before: Mapping[str, float] = {}  # times by layer in the forgotten runs

    def forget_runs(self) -> None:
        super().forget_runs()
        self._before = self._totals()

    def take_runs(self) -> Sequence[Run]:
        count = self.count - self.forgotten
        if not count:
            return []
        names = original_names(self._compiled.get_runtime_model(), self.known)
        # a layer's numbers are rounded down
        mean = added(
            (names.get(layer, (layer,)), max(total - self._before.get(layer, 0), 0) / count)
            for layer, total in self._totals().items()
        )
        return [mean] * count

    def _totals(self) -> dict[str, float]:
        # OpenVINO tells the mean of all runs since the model was compiled
        if not self.count:
            return {}
        return {
            layer.node_name: layer.real_time.total_seconds() * 1e9 * self.count
            for layer in self._requests[0].profiling_info
            if layer.status == layer.Status.EXECUTED
        }


def load_timed(blob: DelegateBlob, constants: Sequence[Array]) -> TimedOpenvinoDelegate:
    timed = TimedOpenvinoDelegate.load(blob, constants, {"PERF_COUNT": True})
    timed.known = {str(layer.get("name")) for layer in ElementTree.parse(blob.path).iter("layer")}
    return timed


def original_names(model: Any, known: Set[str]) -> dict[str, tuple[str, ...]]:
    """Return, by the name of each layer of a compiled model, its original layers among the `known` names."""
    layers = {layer.get_friendly_name(): layer for layer in model.get_ordered_ops()}
    names = {name: tuple(each for each in names_in(layer) if each in known) for name, layer in layers.items()}
    sources = {
        name: [value.get_source_output().get_node().get_friendly_name() for value in layer.inputs()]
        for name, layer in layers.items()
    }
    users = {
        name: [port.get_node().get_friendly_name() for value in layer.outputs() for port in value.get_target_inputs()]
        for name, layer in layers.items()
    }
    adopt(names, users, sources)
    return names


def names_in(layer: Any) -> list[str]:
    information = layer.get_rt_info()
    return str(information[ORIGINAL].astype(str)).split(",") if ORIGINAL in information else []
