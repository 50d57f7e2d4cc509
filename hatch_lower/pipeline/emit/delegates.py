"""The delegates of a plan: each distinct one once, with its blob, and the named data of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from hatch_lower.exir._serialize.data_serializer import DataEntry
from hatch_lower.exir.backend.backend_details import PreprocessResult, Target
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule
from hatch_lower.format.delegates import (
    PAGE_SIZE,
    DataFile,
    DataLayout,
    DelegateEntry,
    Head,
    TargetEntry,
    data_name,
    is_whole,
)


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of one or more delegates, to be written to `delegate_file`."""

    data: bytes
    suffix: str
    target: Target | None
    requirements: tuple[str, ...]


def delegate_file(digest: str, suffix: str) -> str:
    # The name begins with a letter because a `.so` counts as a module for tools that check wheels, and a module's name
    # has to be one that can be imported.
    return f"delegates/sha256_{digest}.{suffix}"


class DelegateTable:
    """The delegates of a plan, their blobs by sha256, and by sha256 the contents of their named data."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._numbers: dict[str, int] = {}
        self._store = NamedDataStore()
        self._known: dict[int, tuple[NamedDataStoreOutput, dict[str, DataFile]]] = {}
        self.entries: list[DelegateEntry] = []
        self.blobs: dict[str, Blob] = {}
        self.data: dict[str, bytes] = {}

    def add(self, module: LoweredBackendModule, constants: tuple[str, ...]) -> int:
        """Return the number of a lowered module's delegate; a `BackendError` if it cannot be packaged."""
        result = module.result
        digest = sha256_bytes(result.processed_bytes)
        blob = self._join_blobs(digest, result)
        needs = None
        if result.target is not None:
            needs = TargetEntry(result.target.system, result.target.machine, result.target.isa)
        file = f"{self._model}/{delegate_file(digest, blob.suffix)}"
        data = self._add_data(module)
        head = None
        if result.head is not None:
            head = Head(result.head, sha256_bytes(memoryview(result.processed_bytes)[: result.head]))
        entry = DelegateEntry(module.backend_id, file, constants, dict(result.info), needs, data, head)
        try:
            key = digest_of([entry.backend, file, constants, entry.info, repr(needs), repr(data), repr(head)])
        except (TypeError, ValueError) as error:
            raise BackendError(
                "a backend returned facts for its run half that are no JSON",
                where=f"backend `{module.backend_id}`, `PreprocessResult.info`",
                found=str(error),
                hint="use strings, finite numbers, booleans, None, lists and dictionaries with string keys",
            ) from error
        self.blobs[digest] = blob
        # a delegate that holds state of its own belongs to one partition, whatever other one is equal to it
        if entry.info.get("stateful") is True or key not in self._numbers:
            self._numbers[key] = len(self.entries)
            self.entries.append(entry)
        return self._numbers[key]

    def _join_blobs(self, digest: str, result: PreprocessResult) -> Blob:
        # equal bytes are one file, whichever backends they come from
        blob = self.blobs.get(digest) or Blob(result.processed_bytes, result.suffix, result.target, ())
        requirements = sorted({*blob.requirements, *result.requirements})
        return replace(blob, target=blob.target or result.target, requirements=tuple(requirements))

    def _add_data(self, module: LoweredBackendModule) -> dict[str, DataFile]:
        # sorted by name; many partitions may share one output, which is looked at once
        output = module.named_data_store_output
        if output is None:
            return {}
        where = f"backend `{module.backend_id}`"
        if not isinstance(output, NamedDataStoreOutput):
            raise BackendError(
                "a backend returned something else than named data beside its blob",
                where=f"{where}, `PreprocessResult.data_store_output`",
                found=type(output).__name__,
                hint="return `NamedDataStore.get_named_data_store_output()`",
            )
        if id(output) not in self._known:
            self._store.merge_named_data_store(output)
            digests = [sha256_bytes(buffer) for buffer in output.buffers]
            files: dict[str, DataFile] = {}
            for entries in (output.pte_data, *output.external_data.values()):
                for name, entry in entries.items():
                    digest, content = digests[entry.buffer_index], output.buffers[entry.buffer_index]
                    file = f"{self._model}/data/{data_name(digest)}"
                    files[name] = data_file(name, entry, file, len(content), where)
                    self.data.setdefault(digest, content)
            self._known[id(output)] = output, {name: files[name] for name in sorted(files)}
        return self._known[id(output)][1]


def data_file(name: str, entry: DataEntry, file: str, size: int, where: str) -> DataFile:
    if not name or "\0" in name:
        raise BackendError("named data needs a name", where=where, found=repr(name), hint="name it without NUL")
    where = f"{where}, named data `{name}`"
    if PAGE_SIZE % entry.alignment:
        raise BackendError(
            "named data asks for an alignment that a mapped file does not have",
            where=where,
            found=f"{entry.alignment} bytes",
            hint=f"ask for a power of two up to {PAGE_SIZE}",
        )
    if entry.tensor_layout is None:
        return DataFile(file, size, entry.alignment, None)
    given = entry.tensor_layout
    layout = DataLayout(given.scalar_type, tuple(given.sizes), tuple(given.dim_order))
    if not is_whole(layout, size):
        raise BackendError(
            "the layout of named data is not that of a tensor of its size",
            where=where,
            found=f"{layout} for {size} bytes",
            hint="use torch's name of the dtype, `float32`, and each dimension once",
        )
    return DataFile(file, size, entry.alignment, layout)
