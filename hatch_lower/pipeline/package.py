"""Write an emitted program as files in a model's folder, under the manifest's paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hatch_lower.cache.directory import LEFTOVER, make_folder
from hatch_lower.cache.locks import make_held, remove_abandoned
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.format.constants import CONSTANTS, CONSTANTS_WITH_MAP, data_name
from hatch_lower.format.debug_map import write_debug
from hatch_lower.format.manifest import FileEntry
from hatch_lower.format.plan import write_plan
from hatch_lower.format.results import PayloadFile
from hatch_lower.format.weights import WEIGHTS, Weights, write_weights
from hatch_lower.pipeline.checkpoint import LocalSource, OutsideFiles
from hatch_lower.pipeline.emit.constants import NamedStorage, WrittenConstants, write_constants
from hatch_lower.pipeline.emit.delegates import delegate_file

if TYPE_CHECKING:
    from hatch_lower.pipeline.emit.emit import EmittedProgram

CONSTANTS_SCHEMA = 2

BESIDE, SUFFIX = "weights.safetensors", ".safetensors"
DIGITS = 16  # of the sha256 in the name of a file beside the wheel

UNFINISHED = "constants-"  # prefix of the store's files that are being written


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    plan: FileEntry
    debug: FileEntry
    delegates: tuple[FileEntry, ...]
    native: tuple[Path, ...]


class Packager:
    """Writes a model's files below the future `_lowered` folder, each file once, and lists the files."""

    def __init__(self, folder: Path, model: str, store: Store) -> None:
        self.folder = folder
        self.model = model
        self._store = store
        self._files: dict[str, PayloadFile] = {}
        self.constants: Path | None = None  # the constants file, after the file is written
        self.outside: OutsideFiles | None = None  # places of weights outside the wheel, after `weights.json` is written
        self.beside: tuple[PayloadFile, ...] = ()

    def files(self) -> tuple[PayloadFile, ...]:
        return tuple(self._files[path] for path in sorted(self._files))

    def refuse_changed(self, program: ProgramFiles, where: str) -> None:
        # A run half may remove a file or write into a file. Only existence and size are checked here; the wheel's
        # writer compares contents with digests.
        for entry in (program.plan, program.debug, *program.delegates):
            source = self.source(entry.path)
            size = source.stat().st_size if source.is_file() else None
            if size != entry.size:
                raise BackendError(
                    "a backend has changed a packaged file",
                    where=f"{where}, `{entry.path}`",
                    found="no file" if size is None else f"{size} bytes instead of {entry.size}",
                    hint="a run half may only read its blob; report this to the backend's authors, or leave the backend"
                    " out",
                )

    def source(self, path: str) -> Path:
        return self._files[path].source

    def write(self, name: str, data: bytes) -> FileEntry:
        path = f"{self.model}/{name}"
        entry = FileEntry(path, len(data), sha256_bytes(data))
        if path not in self._files:
            source = self.folder / path
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(data)
            self._files[path] = PayloadFile(path, source, entry.size, entry.sha256)
        return entry

    def write_program(self, recipe: str, emitted: EmittedProgram) -> ProgramFiles:
        delegates = []
        native = []
        for digest in sorted(emitted.blobs):
            blob = emitted.blobs[digest]
            entry = self.write(delegate_file(digest, blob.suffix), blob.data)
            delegates.append(entry)
            if blob.target is not None:
                native.append(self._files[entry.path].source)
        delegates += [self.write(f"data/{data_name(digest)}", emitted.data[digest]) for digest in sorted(emitted.data)]
        return ProgramFiles(
            self.write(f"{recipe}.json", write_plan(emitted.plan)),
            self.write(f"{recipe}.debug.json", write_debug(emitted.debug)),
            tuple(delegates),
            tuple(native),
        )

    def write_storages(
        self, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage] = {}
    ) -> FileEntry | None:
        """Write the constants file, or reuse an earlier build's; return `None` if there are no constants."""
        # `names` are the names by which delegates find storages in the file
        if not storages:
            return None
        path = f"{self.model}/{CONSTANTS_WITH_MAP if names else CONSTANTS}"
        written, source = self._constants_file(path, storages, names)
        self._files[path], self.constants = PayloadFile(path, source, written.size, written.sha256), source
        return FileEntry(path, written.size, written.sha256, written.header_sha256)

    def write_beside(self, storages: Mapping[str, torch.Tensor], distribution: str) -> LocalSource:
        """Write the weights to a file beside the wheel, like the constants file; the name contains the digest."""
        # the name has no version: a release without new weights keeps the file
        written, source = self._constants_file(f"{self.model}/{BESIDE}", storages, {})
        name = f"{distribution}-{self.model}-{written.sha256[:DIGITS]}{SUFFIX}"
        self.beside = (PayloadFile(name, source, written.size, written.sha256),)
        return LocalSource(name, written.size, written.sha256, source)

    def _constants_file(
        self, path: str, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage]
    ) -> tuple[WrittenConstants, Path]:
        # Storage keys are digests of contents, so the keys determine the file. A stored file is accepted by size; the
        # wheel's writer checks the contents against the digest.
        described = [[key, str(tensor.dtype), tensor.numel()] for key, tensor in sorted(storages.items())]
        named = {name: asdict(storage) for name, storage in names.items()}
        key = digest_of(["constants", CONSTANTS_SCHEMA, described, named])
        stored = self._stored_constants(key)
        written, source = stored or self._write_constants(path, storages, names)
        if stored is None:
            self._store.put(key, {"constants": len(described)}, asdict(written), [written.sha256], shared=False)
        return written, source

    def write_weights(self, weights: Weights, sources: Iterable[LocalSource]) -> FileEntry | None:
        if not weights.spans:
            return None
        entry = self.write(WEIGHTS, write_weights(weights))
        paths = {source.url: source.path for source in sources}
        self.outside = OutsideFiles(self.source(entry.path), tuple(paths[source.url] for source in weights.sources))
        return entry

    def _stored_constants(self, key: str) -> tuple[WrittenConstants, Path] | None:
        known = self._store.find(key, shared=False)
        if known is None or known.keys() != {"size", "sha256", "header_sha256"}:
            return None
        source = self._store.blob_path(known["sha256"])
        is_whole = source.is_file() and source.stat().st_size == known["size"]
        return (WrittenConstants(**known), source) if is_whole else None

    def _write_constants(
        self, path: str, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage]
    ) -> tuple[WrittenConstants, Path]:
        # Write to the final place: into the store, as the folder may be on another file system or in memory; below the
        # folder if the store is read-only.
        if self._store.writes:
            with suppress(OSError):  # `adopt` below reports a broken store
                return self._write_into_store(storages, names)
        source = self.folder / path
        source.parent.mkdir(parents=True, exist_ok=True)
        written = write_constants(source, storages, names)
        return written, self._store.adopt(source, written.sha256)

    def _write_into_store(
        self, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage]
    ) -> tuple[WrittenConstants, Path]:
        # beside the blobs, so that adopting the file is a rename; leftovers of killed builds are removed
        folder = self._store.directory
        make_folder(folder)
        remove_abandoned(folder, f"{UNFINISHED}*{LEFTOVER}")
        part = folder / f"{UNFINISHED}{os.urandom(4).hex()}{LEFTOVER}"
        descriptor = make_held(part)
        try:
            written = write_constants(part, storages, names)
            adopted = self._store.adopt(part, written.sha256)
            if adopted == part:
                raise OSError("the store does not take the file")
            return written, adopted
        finally:
            os.close(descriptor)
            part.unlink(missing_ok=True)
