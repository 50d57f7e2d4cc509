"""A session of ONNX Runtime that notes how long each node takes."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_lower.backends.instructions import CountedRuns, added
from hatch_lower.backends.onnxruntime.model_file import originals, read_nodes
from hatch_lower.backends.onnxruntime.run import Array, OnnxruntimeDelegate
from hatch_lower.runtime.delegates import DelegateBlob
from hatch_lower.runtime.timing import Run

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

EVENTS, OPTIMIZED, WEIGHTS = "events", "optimized.onnx", "weights"
OPTIMIZED_WEIGHTS = "session.optimized_model_external_initializers_file_name"
RUN, KERNEL = "model_run", "_kernel_time"  # the ends of a run's and a node's event in the profile


class TimedOnnxruntimeDelegate(CountedRuns, OnnxruntimeDelegate):
    names: Mapping[str, tuple[str, ...]]  # node to the nodes of the packaged model

    def take_runs(self) -> Sequence[Run]:
        # ONNX Runtime writes its measurements when profiling ends
        events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
        runs = list(event_runs(events))[self.forgotten :]
        # several optimized nodes may replace the same original nodes: one computes, and another changes the result's
        # layout
        return [added((self.names.get(name, (name,)), nanoseconds) for name, nanoseconds in run) for run in runs]


def load_timed(blob: DelegateBlob, constants: Sequence[Array]) -> TimedOnnxruntimeDelegate:
    folder = Path(tempfile.mkdtemp(prefix="hatch-lower-"))
    # nobody reads the weights that go with the optimized model
    (folder / WEIGHTS).symlink_to("/dev/null")

    def adjust(options: SessionOptions) -> None:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / EVENTS)
        options.optimized_model_filepath = str(folder / OPTIMIZED)
        options.add_session_config_entry(OPTIMIZED_WEIGHTS, WEIGHTS)

    try:
        timed = TimedOnnxruntimeDelegate.load(blob, constants, adjust)
        timed.names = originals(read_nodes(blob.path.read_bytes()), read_nodes((folder / OPTIMIZED).read_bytes()))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # the session writes its profile into the folder at its end, unless profiling ended before
    weakref.finalize(timed, shutil.rmtree, folder, ignore_errors=True)
    return timed


def event_runs(events: Sequence[Mapping[str, Any]]) -> Iterator[list[tuple[str, float]]]:
    """Yield the nanoseconds of each node, minus nodes in nested graphs, for each run in a profile."""
    nodes: list[tuple[str, int, int]] = []  # name, begin and own time in microseconds, since the last run
    for event in events:
        name, begin, duration = event["name"], event["ts"], event["dur"]
        if name == RUN:
            yield [(name, 1000 * microseconds) for name, _, microseconds in nodes]
            nodes.clear()
        elif event["cat"] == "Node" and name.endswith(KERNEL):
            inside = sum(own for _, start, own in nodes if start >= begin)
            nodes.append((name.removesuffix(KERNEL), begin, duration - inside))
