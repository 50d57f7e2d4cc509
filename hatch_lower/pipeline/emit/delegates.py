"""The delegates of a plan, without duplicates, with blobs and named data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

import torch

from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.exir._serialize._named_data_store import CONSTANTS_TAG, NamedDataStore, NamedDataStoreOutput
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.backend.backend_details import PreprocessResult, Target
from hatch_lower.exir.graph.tensors import span_bytes
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.exir.tensor_layout import TensorLayout
from hatch_lower.format.constants import (
    PAGE_SIZE,
    DataFile,
    DataLayout,
    DelegateEntry,
    NamedConstant,
    Storage,
    TargetEntry,
    content_key,
    data_name,
    is_layout_whole,
    meanings,
)
from hatch_lower.format.plan import Plan
from hatch_lower.format.values import DTYPES
from hatch_lower.pipeline.emit.constants import ALIGNMENT, Constants, NamedStorage


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of a delegate, or of several delegates, to be written to `delegate_file`."""

    data: bytes
    suffix: str
    target: Target | None
    requirements: tuple[str, ...]


def delegate_file(digest: str, suffix: str) -> str:
    # The name begins with a letter: tools that check wheels treat a `.so` as a module, whose name must be importable.
    return f"delegates/sha256_{digest}.{suffix}"


class DelegateTable:
    """The delegates of a plan, their blobs by sha256, and the contents of their named data by sha256."""

    # named data in the constants file are added to the storages of the plan's constants

    def __init__(self, model: str, constants: Constants) -> None:
        self._model = model
        self._numbers: dict[str, int] = {}
        self._store = NamedDataStore()
        self._known: dict[int, tuple[NamedDataStoreOutput, NamedData]] = {}
        self._named: dict[str, NamedConstant] = {}
        self._meanings: dict[str, DataFile | NamedConstant] = {}
        self.storages = list(constants.storages)
        self.contents = dict(constants.data)
        changing = {constant.storage for constant in constants.constants.values() if constant.mutable}
        self._storage_numbers = {
            storage.key: index for index, storage in enumerate(self.storages) if index not in changing
        }
        self.entries: list[DelegateEntry] = []
        self.blobs: dict[str, Blob] = {}
        self.data: dict[str, bytes] = {}

    def add(self, module: LoweredBackendModule, constants: tuple[str, ...]) -> int:
        """Return the number of a lowered module's delegate; raise `BackendError` if the delegate cannot be packaged."""
        result = module.result
        digest = sha256_bytes(result.processed_bytes)
        blob = self._join_blobs(digest, result)
        needs = None if result.target is None else TargetEntry(**asdict(result.target))
        file = f"{self._model}/{delegate_file(digest, blob.suffix)}"
        data, named = self._add_data(module)
        entry = DelegateEntry(module.backend_id, file, constants, dict(result.info), needs, data, named)
        try:
            key = digest_of([entry.backend, file, constants, entry.info, repr((needs, data, named))])
        except (TypeError, ValueError) as error:
            raise BackendError(
                "a backend returned facts for its run half that are not JSON",
                where=f"backend `{module.backend_id}`, `PreprocessResult.info`",
                found=str(error),
                hint="use strings, finite numbers, booleans, None, lists and dictionaries with string keys",
            ) from error
        self.blobs[digest] = blob
        # a delegate with state of its own belongs to a single partition, even if another delegate is equal
        if entry.info.get("stateful") is True or key not in self._numbers:
            self._numbers[key] = len(self.entries)
            self.entries.append(entry)
        return self._numbers[key]

    def _join_blobs(self, digest: str, result: PreprocessResult) -> Blob:
        # equal bytes share a file, across backends
        blob = self.blobs.get(digest) or Blob(result.processed_bytes, result.suffix, result.target, ())
        requirements = sorted({*blob.requirements, *result.requirements})
        return replace(blob, target=blob.target or result.target, requirements=tuple(requirements))

    def _add_data(self, module: LoweredBackendModule) -> NamedData:
        # sorted by name; many partitions may share an output, which is processed once
        output = module.named_data_store_output
        if output is None:
            return {}, {}
        where = f"backend `{module.backend_id}`"
        if not isinstance(output, NamedDataStoreOutput):
            raise BackendError(
                "a backend returned an invalid value as named data beside its blob",
                where=f"{where}, `PreprocessResult.data_store_output`",
                found=type(output).__name__,
                hint="return `NamedDataStore.get_named_data_store_output()`",
            )
        if id(output) not in self._known:
            self._store.merge_named_data_store(without_layouts(output))
            digests = [sha256_bytes(buffer) for buffer in output.buffers]
            files: dict[str, DataFile] = {}
            named: dict[str, NamedConstant] = {}
            for tag, entries in [(None, output.pte_data), *output.external_data.items()]:
                for name, entry in entries.items():
                    digest, content = digests[entry.buffer_index], output.buffers[entry.buffer_index]
                    if tag == CONSTANTS_TAG:
                        named[name] = self._named_constant(name, entry, digest, content, where)
                        continue
                    file = f"{self._model}/data/{data_name(digest)}"
                    files[name] = data_file(name, entry, file, len(content), where)
                    self.data.setdefault(digest, content)
            for name, meaning in meanings(files, named):
                refuse_other_layout(name, self._meanings.setdefault(name, meaning), meaning, where)
            self._known[id(output)] = output, (dict(sorted(files.items())), dict(sorted(named.items())))
        return self._known[id(output)][1]

    def _named_constant(self, name: str, entry: DataEntry, digest: str, content: bytes, where: str) -> NamedConstant:
        if name in self._named:
            # same bytes, possibly as another tensor: the reader knows the layout
            return self._named[name]
        layout = data_layout(name, entry.tensor_layout or TensorLayout.of_bytes(len(content)), len(content), where)
        check_entry(name, entry, math.gcd(ALIGNMENT, len(content)), where)
        # keyed like a constant of the model, so that equal bytes are stored once
        dtype = layout.dtype if DTYPES[layout.dtype].safetensors is not None else "uint8"
        storage = Storage(content_key(dtype, digest), dtype, len(content) // DTYPES[dtype].size)
        number = self._storage_numbers.setdefault(storage.key, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
            self.contents.setdefault(storage.key, tensor_from_bytes(content, dtype))
        return self._named.setdefault(name, NamedConstant(number, layout))


def without_layouts(output: NamedDataStoreOutput) -> NamedDataStoreOutput:
    # for data in the constants file, where a name stands for bytes
    entries = output.external_data.get(CONSTANTS_TAG, {})
    plain = {name: replace(entry, tensor_layout=None) for name, entry in entries.items()}
    return replace(output, external_data={**output.external_data, **({CONSTANTS_TAG: plain} if plain else {})})


NamedData = tuple[Mapping[str, DataFile], Mapping[str, NamedConstant]]


def tensor_from_bytes(content: bytes, dtype: str) -> torch.Tensor:
    if not content:
        return torch.empty(0, dtype=getattr(torch, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about read-only memory; the tensor is never written
        return torch.frombuffer(content, dtype=getattr(torch, dtype))


def data_file(name: str, entry: DataEntry, file: str, size: int, where: str) -> DataFile:
    check_entry(name, entry, PAGE_SIZE, where)
    layout = None if entry.tensor_layout is None else data_layout(name, entry.tensor_layout, size, where)
    return DataFile(file, size, entry.alignment, layout)


def check_entry(name: str, entry: DataEntry, limit: int, where: str) -> None:
    if not name or "\0" in name:
        raise BackendError("named data needs a name", where=where, found=repr(name), hint="give a name without NUL")
    if limit % entry.alignment:
        raise BackendError(
            "named data asks for an alignment that a mapped file does not have",
            where=f"{where}, named data `{name}`",
            found=f"{entry.alignment} bytes",
            hint=f"ask for a power of two up to {limit}",
        )


def refuse_other_layout(
    name: str, first: DataFile | NamedConstant, second: DataFile | NamedConstant, where: str
) -> None:
    if second != first:
        raise BackendError(
            "two partitions disagree on the layout or tag of named data",
            where=f"{where}, named data `{name}`",
            found=f"{first}, then {second}",
            hint="give equal data the same layout and tag in all partitions, or different names",
        )


def data_layout(name: str, given: TensorLayout, size: int, where: str) -> DataLayout:
    layout = DataLayout(given.scalar_type, tuple(given.sizes), tuple(given.dim_order))
    if not is_layout_whole(layout, size):
        raise BackendError(
            "the layout of named data does not fit the size",
            where=f"{where}, named data `{name}`",
            found=f"{layout} for {size} bytes",
            hint="use torch's name of the dtype, `float32`, and each dimension once",
        )
    return layout


def names_in_constants(programs: Iterable[tuple[Plan, Mapping[str, torch.Tensor]]]) -> dict[str, NamedStorage]:
    """Return all recipes' names for storages of the constants file, given plans and contents by storage key."""
    found: dict[str, NamedStorage] = {}
    contents: dict[str, torch.Tensor] = {}
    for plan, storages in programs:
        contents |= storages
        for entry in plan.delegates:
            for name, data in entry.named.items():
                named = NamedStorage(plan.storages[data.storage].key, data.layout)
                first = found.setdefault(name, named)
                if first.key != named.key and span_bytes(contents[first.key]) != span_bytes(contents[named.key]):
                    raise BackendError(
                        "the same name stands for different weights in two recipes",
                        where=f"backend `{entry.backend}`, named data `{name}`",
                        hint="name weights by their contents: a model has a single constants file",
                    )
    return {name: found[name] for name in sorted(found)}


def bytes_in_own_layout(plans: Iterable[Plan]) -> dict[str, int]:
    """Return, by backend, the bytes of weights that differ from the model's: folded, or in another layout."""
    found: dict[str, dict[str, int]] = {}
    for plan in plans:
        own = {plan.storages[constant.storage].key for constant in plan.constants.values()}
        for entry in plan.delegates:
            sizes = found.setdefault(entry.backend, {})
            for data in entry.named.values():
                storage = plan.storages[data.storage]
                is_plain = data.layout.dtype == storage.dtype == "uint8" and len(data.layout.sizes) == 1
                if is_plain and storage.key not in own:
                    sizes[storage.key] = storage.length
    return {backend: sum(sizes.values()) for backend, sizes in sorted(found.items()) if sizes}
