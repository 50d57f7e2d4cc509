"""Weights outside the wheel: storages mapped from files elsewhere on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from hatch_lower.canonical import sha256_bytes
from hatch_lower.errors import AbsentWeightsError, ProgramError, reading_hint
from hatch_lower.format.codec import refuse_damaged_file
from hatch_lower.format.constants import Storage
from hatch_lower.format.manifest import FileEntry
from hatch_lower.format.weights import (
    WEIGHTS,
    StorageSpan,
    Weights,
    WeightsSource,
    is_aligned,
    read_weights,
    spans_outside,
)
from hatch_lower.runtime.delegates import Place
from hatch_lower.runtime.files import PackagedFolder
from hatch_lower.runtime.mapped import ConstantsFile, map_file
from hatch_lower.runtime.sources import fetch_mode, list_search_paths, local_copy, size_of

Find = Callable[[WeightsSource], Path | None]


class OutsideWeights:
    """The storages of a model with weights outside its wheel; replaces a `ConstantsFile`."""

    # Files are found and mapped when a recipe needs their weights.
    # `where` is the path of `weights.json`; `name` is the model's name in a command `hatch-lower fetch`; `find` returns
    # the path of a source's file on this machine.

    def __init__(self, constants: ConstantsFile | None, weights: Weights, where: str, name: str, find: Find) -> None:
        self._constants = constants
        self._weights = weights
        self._where = where
        self._name = name
        self._find = find
        self._mapped: dict[int, tuple[Path, memoryview]] = {}  # by the source's position

    def spans(self, storages: Sequence[Storage]) -> tuple[memoryview, ...]:
        outside, inside = self._divided(storages)
        packed = iter(self._constants.spans(inside) if self._constants is not None else ())
        return tuple(
            self._content(storage, outside[index]) if index in outside else next(packed)
            for index, storage in enumerate(storages)
        )

    def places(self, storages: Sequence[Storage]) -> tuple[Place, ...]:
        outside, inside = self._divided(storages)
        packed = iter(self._constants.places(inside) if self._constants is not None else ())
        return tuple(
            self._place(outside[index]) if index in outside else next(packed) for index in range(len(storages))
        )

    def faults(self) -> Iterator[ProgramError]:
        """Yield the faults of files outside; reads all bytes that the model uses."""
        for position, source in enumerate(self._weights.sources):
            try:
                self._map([position])
            except ProgramError as error:
                yield error
                continue
            path, content = self._mapped[position]
            for span in self._weights.spans.values():
                if span.source == position and sha256_bytes(content[span.begin : span.end]) != span.sha256:
                    yield self._other(source, path, f"other contents in the bytes {span.begin} to {span.end}")
                    break

    def _divided(self, storages: Sequence[Storage]) -> tuple[Mapping[int, StorageSpan], list[Storage]]:
        outside = spans_outside(storages, self._weights, self._where)
        self._map(sorted({span.source for span in outside.values()}))
        inside = [storage for index, storage in enumerate(storages) if index not in outside]
        if inside and self._constants is None:
            refuse_damaged_file(
                f"{self._where}: {inside[0].key}", "the storage is missing, and the model has no constants file"
            )
        return outside, inside

    def _content(self, storage: Storage, span: StorageSpan) -> memoryview:
        path, mapped = self._mapped[span.source]
        content = mapped[span.begin : span.end]
        if storage.may_hold_indices and sha256_bytes(content) != span.sha256:
            raise self._other(self._weights.sources[span.source], path, "different integers than in the build")
        return content if is_aligned(storage, span) else memoryview(bytearray(content))

    def _place(self, span: StorageSpan) -> Place:
        path, _ = self._mapped[span.source]
        return Place(path, span.begin, span.end - span.begin)

    def _map(self, positions: Collection[int]) -> None:
        for position in positions:
            if position not in self._mapped:
                source = self._weights.sources[position]
                path = self._find(source)
                if path is None:
                    raise self._missing(source)
                try:
                    self._mapped[position] = path, map_file(path, source.size)
                except (OSError, ValueError) as error:
                    raise ProgramError(
                        "a file of weights cannot be read",
                        where=str(path),
                        found=str(error),
                        hint=reading_hint(str(error), "fetch the weights again with `hatch-lower fetch`"),
                    ) from error

    def _missing(self, source: WeightsSource) -> AbsentWeightsError:
        looked = "\n".join(found_at(path, source) for path in list_search_paths(source))
        origin = "" if source.has_place else " --from URL"
        return AbsentWeightsError(
            "weights of the model are not on this machine",
            where=source.url,
            found=f"no file of {source.size} bytes at any of these paths:\n{looked}",
            hint=f"run `hatch-lower fetch {self._name}{origin}`; `HATCH_LOWER_WEIGHTS` names the folders to look into",
        )

    def _other(self, source: WeightsSource, path: Path, found: str) -> ProgramError:
        return ProgramError(
            "a file of weights differs from the file that the wheel was built with",
            where=str(path),
            found=found,
            hint=f"run `hatch-lower fetch {self._name}`, which replaces the file from {source.url}",
        )


def found_at(path: Path, source: WeightsSource) -> str:
    size = size_of(path)
    if size is None:
        return str(path)
    return f"{path}, a file " + ("with another sha256" if size == source.size else f"of {size} bytes")


def open_outside(
    folder: PackagedFolder, model: str, file: FileEntry, constants: ConstantsFile | None, *, fetch: bool = False
) -> OutsideWeights:
    find: Find = local_copy
    if fetch or fetch_mode() == "always":
        from hatch_lower.runtime.obtain import fetched_copy as find  # late: modules for connections import slowly
    return OutsideWeights(
        constants,
        read_listed(folder, file),
        str(folder.path / model / WEIGHTS),
        f"{folder.manifest.distribution}:{model}" if folder.installed else shlex.quote(str(folder.path.absolute())),
        find,
    )


def read_listed(folder: PackagedFolder, file: FileEntry) -> Weights:
    return read_weights(folder.read(file), str(folder.path / file.path))
