"""Programs on their way through a backend: exported, partitioned, lowered, saved and loaded; programs that cover
likely faults, and a run half to watch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from hatch_lower.backends.testing.case import Case, NotClaimedError
from hatch_lower.cache.store import Store, open_store
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.exir._serialize._named_data_store import NamedDataStoreOutput
from hatch_lower.exir.backend.backend_api import DelegatedMethod, lower_methods, make_request, tag_program
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult
from hatch_lower.exir.backend.partitioner import Partitioner
from hatch_lower.exir.backend.registry import find_backend
from hatch_lower.exir.graph.surgery import all_nodes
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, lowered_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.extract import extract
from hatch_lower.exir.lowering.lower import Wishes
from hatch_lower.exir.lowering.partition import plan_partitions
from hatch_lower.exir.lowering.preprocess import (
    PreprocessRequest,
    lowers_jointly,
    overrides,
    partition_key,
    preprocess_all,
)
from hatch_lower.exir.program._program import LoweredProgram
from hatch_lower.pipeline.save import save_program
from hatch_lower.runtime.delegates import Delegate, DelegateBlob
from hatch_lower.runtime.exchange import array_of, tensor_from_array
from hatch_lower.runtime.files import open_folder
from hatch_lower.runtime.load import load_in_folder
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.selection import DelegateKinds
from hatch_lower.runtime.torch_arrays import ARRAYS

METHOD = "forward"


class Facts(TypedDict, total=False):
    """Optional facts about a backend besides its name and options."""

    delegate: type[Delegate]
    """A run half to use in place of the installed run half."""
    variations: Mapping[str, Sequence[object]]
    """Option to other values, each of which must change a result or a key."""
    computes: bool
    """Whether the run half computes, which is taken for granted; that of `null` does not."""
    checks_inputs: bool
    """Whether the run half itself refuses inputs that the runtime would refuse before."""
    packed_copies: int
    """How many copies of large weights the engine makes for its own kernels."""
    keeps_files: bool
    """Whether the engine never closes the file of its weights after loading, as torch's AOTInductor."""
    tolerance: Tolerance
    """How far its numbers may be from eager's; wider for half precision."""
    flushes_subnormals: bool
    """Whether the engine flushes subnormal numbers to 0: eager's result with or without flushing is then accepted."""


@dataclass(frozen=True, slots=True)
class KitBackend:
    """The backend under test, its options as in a recipe, and `Facts`."""

    backend_id: str
    options: Mapping[str, object] = field(default_factory=dict)
    delegate: type[Delegate] | None = None
    variations: Mapping[str, Sequence[object]] = field(default_factory=dict)
    computes: bool = True
    checks_inputs: bool = False
    packed_copies: int = 0
    tolerance: Tolerance = field(default_factory=Tolerance)
    keeps_files: bool = False
    flushes_subnormals: bool = False


class Exports:
    """Exported programs by name; several benches may share them, as exporting takes longest."""

    def __init__(self) -> None:
        self._programs: dict[str, ExportedProgram] = {}
        self._edge: dict[str, ExportedProgram] = {}

    def program(self, case: Case) -> ExportedProgram:
        if case.name not in self._programs:
            self._programs[case.name] = export(case)
        return self._programs[case.name]

    def edge(self, case: Case, partitioner: Partitioner) -> ExportedProgram:
        program = self.program(case)
        wishes = Wishes.of(program, [partitioner])
        # a program with operators that a partitioner keeps whole is decomposed for this bench only; all other programs
        # are shared
        if any(node.target in wishes.wanted_by for node in all_nodes(wishes.program.graph_module)):
            return to_edge(wishes.program, keep=wishes.whole, keep_nodes=wishes.some)
        if case.name not in self._edge:
            self._edge[case.name] = to_edge(program)
        return self._edge[case.name]


class Bench:
    """A backend under test, and the results of its programs so far."""

    def __init__(self, subject: KitBackend, folder: Path, exports: Exports) -> None:
        self.subject = subject
        self.folder = folder
        self.exports = exports
        self.backend: type[BackendDetails] = find_backend(subject.backend_id)
        self._edge: dict[str, ExportedProgram] = {}
        self._lowered: dict[str, DelegatedMethod | Exception] = {}
        self._fingerprints: dict[str, tuple[tuple[str, str], ...]] = {}
        self._count = 0
        self.worked: dict[str, bool] = {}  # name of a program to whether its first run gave eager's result
        environment = {"HATCH_LOWER_CACHE": "on", "HATCH_LOWER_CACHE_DIR": str(folder / "cache")}
        self.store: Store = open_store(environment, lambda line: None)

    def partitioner(self, options: Mapping[str, object] | None = None) -> Partitioner:
        return self.backend.partitioner(dict(self.subject.options if options is None else options))

    def edge(self, case: Case) -> ExportedProgram:
        if case.name not in self._edge:
            with warnings_ignored():
                self._edge[case.name] = self.exports.edge(case, self.partitioner())
        return self._edge[case.name]

    @property
    def lowers_together(self) -> bool:
        return overrides(self.backend, "preprocess_many")

    def prepare(self, cases: Sequence[Case]) -> None:
        # Lower in a single call of the backend, which may compile in parallel. The results are found in the cache
        # later. Errors occur again later, and are then reported by name.
        waiting: list[PreprocessRequest] = []
        for case in cases:
            with suppress(Exception):
                waiting += self.requests(self.edge(case))
        with suppress(Exception), warnings_ignored():
            preprocess_all(waiting, self.store)

    def lowered(self, case: Case) -> DelegatedMethod:
        if case.name not in self._lowered:
            try:
                self._lowered[case.name] = self.lower(self.edge(case))
            except Exception as error:
                self._lowered[case.name] = error
        lowered = self._lowered[case.name]
        if isinstance(lowered, Exception):
            raise lowered
        return lowered

    def lower(self, program: ExportedProgram) -> DelegatedMethod:
        with warnings_ignored():
            return lower_methods({METHOD: program}, {METHOD: self.partitioner()}, store=self.store)[METHOD]

    def requests(self, program: ExportedProgram, partitioner: Partitioner | None = None) -> list[PreprocessRequest]:
        with warnings_ignored():
            tagged = tag_program(program, partitioner or self.partitioner(), True)
            plan = plan_partitions(
                tagged.tagged_exported_program, tagged.partition_tags, lambda backend_id, state: False
            )
            return [
                make_request(METHOD, partition.spec, self.backend, extract(tagged.tagged_exported_program, partition))
                for partition in plan.all_partitions()
            ]

    def keyed(self, requests: Sequence[PreprocessRequest]) -> list[tuple[str, PreprocessRequest]]:
        # the keys leave out the backend's code, which is fixed in this process even if its files change
        with warnings_ignored():
            return [(self._key(request), request) for request in requests]

    def results(self, requests: Sequence[PreprocessRequest]) -> list[tuple[str, str]]:
        """Lower partitions without a cache; return the key of each, and the digest of its result."""
        keyed = self.keyed(requests)  # before a backend may mutate the inputs
        # a partition's key does not cover other partitions that the backend would lower jointly with it
        calls = [[request] for request in requests] if lowers_jointly(self.backend) else [requests]
        with warnings_ignored():
            responses = [response for call in calls for response in preprocess_all(call, None)]
        return [(key, result_digest(response.result)) for (key, _), response in zip(keyed, responses, strict=True)]

    def _key(self, request: PreprocessRequest) -> str:
        components = partition_key(request, self._fingerprints).components()
        return digest_of({**components, "fingerprint": dict(components["fingerprint"]) | {"code": ""}})

    def partitions(self, case: Case) -> list[LoweredBackendModule]:
        return list(lowered_modules(self.lowered(case).program))

    def claimed(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases with operations that the backend takes and lowers."""
        return [case for case in cases if self._takes(case)]

    def _takes(self, case: Case) -> bool:
        with suppress(Exception):  # the case itself reports the error
            return self.lowered(case).partitions > 0
        return False

    def save(self, lowered: DelegatedMethod) -> Path:
        self._count += 1
        with warnings_ignored():
            return save_program(LoweredProgram({METHOD: lowered.program}, {}, {}), self.folder / f"saved{self._count}")

    def load(self, folder: Path, kind: type[Delegate] | None = None) -> LoadedModel:
        chosen = kind or self.subject.delegate
        given = None if chosen is None else {self.subject.backend_id: chosen}
        return load_in_folder(open_folder(folder), None, None, DelegateKinds(given, checks_outputs=True), False, ARRAYS)

    def delegate(self) -> type[Delegate]:
        return self.subject.delegate or DelegateKinds().load(self.subject.backend_id)


def export(case: Case) -> ExportedProgram:
    with warnings_ignored(), torch.no_grad():
        return torch.export.export(case.module(), case.arguments()[0], dynamic_shapes=case.dynamic, strict=False)


def result_digest(result: PreprocessResult) -> str:
    data = result.data_store_output
    named: object = None
    if isinstance(data, NamedDataStoreOutput):
        places = {"": data.pte_data, **data.external_data}
        contents = [sha256_bytes(buffer) for buffer in data.buffers]
        named = [
            [tag, name, contents[entry.buffer_index], entry.alignment, repr(entry.tensor_layout)]
            for tag, entries in sorted(places.items())
            for name, entry in sorted(entries.items())
        ]
    handles = result.debug_handle_map
    return digest_of(
        {
            "bytes": sha256_bytes(result.processed_bytes),
            "data": named,
            "handles": None if handles is None else sorted([str(key), list(value)] for key, value in handles.items()),
            "info": dict(result.info),
            "requirements": list(result.requirements),
            "suffix": result.suffix,
            "target": repr(result.target),
        }
    )


@contextmanager
def warnings_ignored() -> Iterator[None]:
    # torch's export emits warnings about torch itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# lowered several times, also in other processes
SAMPLE = (
    "operators/fused",
    "operators/perceptron",
    "operators/convolution",
    "operators/functions float32",
    "outputs/several",
    "constants/every kind",
    "symbolic sizes/two",
    "symbolic sizes/batch",
    "operators/arithmetic float32",
    "control flow/cond",
)

LEAST = 3
MOST = 6


def sample(bench: Bench, cases: Sequence[Case]) -> list[Case]:
    by_name = {case.name: case for case in cases}
    claimed = bench.claimed([by_name[name] for name in SAMPLE if name in by_name])
    if len(claimed) < LEAST:
        for case in cases:
            if len(claimed) < LEAST and case.name not in SAMPLE:
                claimed += bench.claimed([case])
    if not claimed:
        raise NotClaimedError("the backend takes no operation of any program")
    return claimed[:MOST]


def probe(bench: Bench, cases: Sequence[Case], *names: str) -> Case:
    """Return the first program, of the named or else of the sample, of which the backend takes an operation."""
    by_name = {case.name: case for case in cases}
    claimed = bench.claimed([by_name[name] for name in names if name in by_name])
    return claimed[0] if claimed else sample(bench, cases)[0]


def refuse_null(bench: Bench) -> None:
    if not bench.subject.computes:
        raise NotClaimedError("the backend computes nothing")


Load = Callable[[type[Delegate], DelegateBlob, Sequence[Tensor]], Delegate]
Run = Callable[[Delegate, list[Tensor]], Sequence[object]]


def watched(kind: type[Delegate], load: Load | None = None, run: Run | None = None) -> type[Delegate]:
    """Return a run half that wraps another run half; both functions see tensors, whatever the inner run half takes."""
    kind = of_tensors(kind)

    class Watched(Delegate):
        def __init__(self, inner: Delegate) -> None:
            self._inner = inner

        @classmethod
        def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
            return cls(load(kind, blob, constants) if load else kind.load(blob, constants))

        def run(self, inputs: list[Tensor]) -> Sequence[object]:
            return run(self._inner, inputs) if run else self._inner.run(inputs)

    return Watched


def of_tensors(kind: type[Delegate]) -> type[Any]:
    """Return a run half that takes and returns tensors, around a run half for NumPy's arrays: its `inner`."""
    if kind.arrays == "torch":
        return kind

    class OfTensors(Delegate):
        def __init__(self, inner: Delegate) -> None:
            self.inner = inner

        @classmethod
        def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> Delegate:
            return cls(kind.load(blob, [array_of(constant.detach()) for constant in constants]))

        def run(self, inputs: list[Any]) -> Sequence[object]:
            results = self.inner.run([array_of(value) if isinstance(value, Tensor) else value for value in inputs])
            return [tensor_from_array(value) if isinstance(value, np.ndarray) else value for value in results]

    return OfTensors
