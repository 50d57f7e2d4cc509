"""An emitted program as files in a model's folder, in the places that the manifest names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hatch_lower.cache.files import LEFTOVER, make_folder
from hatch_lower.cache.locks import make_held, remove_abandoned
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of, sha256_bytes
from hatch_lower.errors import BackendError
from hatch_lower.format.constants import CONSTANTS, CONSTANTS_WITH_MAP
from hatch_lower.format.debug_map import write_debug
from hatch_lower.format.delegates import data_name
from hatch_lower.format.manifest import FileEntry
from hatch_lower.format.plan import write_plan
from hatch_lower.format.results import PayloadFile
from hatch_lower.format.weights import WEIGHTS, Weights, write_weights
from hatch_lower.pipeline.checkpoint import LocalSource, OutsideFiles
from hatch_lower.pipeline.emit.constants_file import NamedStorage, WrittenConstants, write_constants
from hatch_lower.pipeline.emit.delegates import delegate_file
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
    """Writes the files of one model below what will be `_lowered`, each once, and keeps the list of them."""

    def __init__(self, folder: Path, model: str, store: Store) -> None:
        self.folder = folder
        self._model = model
        self._store = store
        self._files: dict[str, PayloadFile] = {}
        self.constants: Path | None = None  # the constants file, once it is written
        self.outside: OutsideFiles | None = None  # where weights outside the wheel are, once that is written
        self.beside: tuple[PayloadFile, ...] = ()

    def files(self) -> tuple[PayloadFile, ...]:
        return tuple(self._files[path] for path in sorted(self._files))

    def refuse_changed(self, program: ProgramFiles, where: str) -> None:
        # a run half may take a file away, or write into it: whether each is still there, as large as it was written;
        # contents are compared with digests when files are put into the wheel
        for entry in (program.plan, program.debug, *program.delegates):
            source = self.source(entry.path)
            size = source.stat().st_size if source.is_file() else None
            if size != entry.size:
                raise BackendError(
                    "a backend has changed a packaged file",
                    where=f"{where}, `{entry.path}`",
                    found="no file" if size is None else f"{size} bytes instead of {entry.size}",
                    hint="a run half only reads its blob; report this to the authors of the backend, or leave it out",
                )

    def source(self, path: str) -> Path:
        return self._files[path].source

    def write(self, name: str, data: bytes) -> FileEntry:
        path = f"{self._model}/{name}"
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
        """Write the constants file, or take the one that an earlier build wrote; none where there are no constants."""
        # delegates find storages in it by `names`
        if not storages:
            return None
        path = f"{self._model}/{CONSTANTS_WITH_MAP if names else CONSTANTS}"
        written, source = self._constants_file(path, storages, names)
        self._files[path], self.constants = PayloadFile(path, source, written.size, written.sha256), source
        return FileEntry(path, written.size, written.sha256, written.header_sha256)

    def write_beside(self, storages: Mapping[str, torch.Tensor], distribution: str) -> LocalSource:
        """Write a file like the constants file, which does not go into the wheel; its name says what it holds."""
        # without the version: a release that changes no weights needs no other file
        written, source = self._constants_file(f"{self._model}/{BESIDE}", storages, {})
        name = f"{distribution}-{self._model}-{written.sha256[:DIGITS]}{SUFFIX}"
        self.beside = (PayloadFile(name, source, written.size, written.sha256),)
        return LocalSource(name, written.size, written.sha256, source)

    def _constants_file(
        self, path: str, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage]
    ) -> tuple[WrittenConstants, Path]:
        # Storage keys are digests of contents, so the keys say what the file holds. A stored file is taken by its size;
        # its contents are checked against its digest when they are put into the wheel.
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
        # It is written where it will stay: in the store, for the folder may be on another file system, or in memory;
        # below the folder if the store is not written.
        if self._store.writes:
            with suppress(OSError):  # the store will say what is wrong with it when it is asked to adopt a file
                return self._write_into_store(storages, names)
        source = self.folder / path
        source.parent.mkdir(parents=True, exist_ok=True)
        written = write_constants(source, storages, names)
        return written, self._store.adopt(source, written.sha256)

    def _write_into_store(
        self, storages: Mapping[str, torch.Tensor], names: Mapping[str, NamedStorage]
    ) -> tuple[WrittenConstants, Path]:
        # beside the blobs, so that adopting it is a rename; what killed builds left of theirs goes
        folder = self._store.directory
        make_folder(folder)
        remove_abandoned(folder, f"{UNFINISHED}*{LEFTOVER}")
        part = folder / f"{UNFINISHED}{os.urandom(4).hex()}{LEFTOVER}"
        descriptor = make_held(part)
        try:
            written = write_constants(part, storages, names)
            adopted = self._store.adopt(part, written.sha256)
            if adopted == part:
                raise OSError("the store does not take it")
            return written, adopted
        finally:
            os.close(descriptor)
            part.unlink(missing_ok=True)
