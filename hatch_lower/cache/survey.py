"""What the store holds, for `hatch-lower cache info`, `list` and `repair`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatch_lower.cache.contents import Contents, StoredRecord, read_contents
from hatch_lower.canonical import sha256_file

KINDS = (
    ("compile_specs", "partition"),
    ("partitions", "partition"),
    ("graphs", "export"),
    ("constants", "constants"),
    ("native file", "native"),
)
"""A component that only keys of one kind have, and the kind; `kind` itself comes first."""

SUBJECTS = ("subject", "model", "backend")
"""Components that say what an entry is about, the best first."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record with its blobs.

    Args:
        kind: `partition`, `export`, `report`, `manifest`, `constants`, `native`, `sbom`, or `other`.
        key: sha256 in hexadecimal.
        subject: the model or backend that it is about; empty if its components do not say.
        size: bytes of the record and its blobs; other entries may share the blobs.
        blobs: how many there are.
        stored: when it was written, in seconds since 1970.
        used: when it was last used, to the hour.
        whole: whether the record is not damaged and all its blobs are there.
    """

    kind: str
    key: str
    subject: str
    size: int
    blobs: int
    stored: float
    used: float
    whole: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """All that the store holds.

    Args:
        entries: the last used first.
        size: bytes of all records and blobs, each counted once.
        blobs: how many there are.
        unreferenced: how many blobs no record refers to.
        leftovers: how many unfinished files there are, those that are being written among them.
    """

    entries: tuple[Entry, ...]
    size: int
    blobs: int
    unreferenced: int
    leftovers: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that does not hold what it should: its path below the store's directory, and what is wrong."""

    path: str
    found: str


def survey(directory: Path) -> Survey:
    """Return what a store's directory holds; contents of blobs are not read."""
    contents = read_contents(directory)
    entries = [describe(each, contents) for each in contents.records.values()]
    return Survey(
        tuple(sorted(entries, key=lambda each: (-each.used, each.key))),
        contents.size(),
        len(contents.blobs),
        sum(not count for count in contents.users().values()),
        len(contents.leftovers),
    )


def describe(stored: StoredRecord, contents: Contents) -> Entry:
    """Return a record as an entry."""
    components: Mapping[str, Any] = {} if stored.record is None else stored.record["components"]
    blobs = [contents.blobs[each] for each in stored.blobs if each in contents.blobs]
    return Entry(
        kind=kind_of(components),
        key=stored.key,
        subject=next((str(components[name]) for name in SUBJECTS if components.get(name)), ""),
        size=stored.found.st_size + sum(each.found.st_size for each in blobs),
        blobs=len(stored.blobs),
        stored=stored.stored,
        used=stored.found.st_mtime,
        whole=stored.record is not None and len(blobs) == len(stored.blobs),
    )


def kind_of(components: Mapping[str, Any]) -> str:
    """Return what sort of result a key with these components is of."""
    if isinstance(components.get("kind"), str):
        return str(components["kind"])
    return next((kind for name, kind in KINDS if name in components), "other")


def repair(directory: Path) -> list[Damage]:
    """Hash every record, blob and preloaded library again, remove what is damaged, and return it.

    With a blob go the records that refer to it. A record whose blob is not there is damaged; a blob that no record
    refers to is not.
    """
    contents = read_contents(directory)
    wrong = {digest: problem for digest, blob in contents.blobs.items() if (problem := problem_of(blob.path, digest))}
    problems = {contents.blobs[digest].path: problem for digest, problem in wrong.items()}
    problems |= dict.fromkeys(contents.unreadable, "it cannot be read")
    for library in sorted((directory / "preload").glob("*.so")):
        if problem := problem_of(library, library.stem.rpartition("-")[2]):
            problems[library] = problem
    for stored in contents.records.values():
        if stored.record is None:
            problems[stored.path] = "it is no record of its key"
        elif missing := [each for each in stored.blobs if each in wrong or each not in contents.blobs]:
            problems[stored.path] = f"{len(missing)} of its {len(stored.blobs)} blobs are damaged or not there"
    for path in problems:
        with contextlib.suppress(OSError):
            path.unlink()
    return [Damage(path.relative_to(directory).as_posix(), problems[path]) for path in sorted(problems)]


def problem_of(path: Path, digest: str) -> str | None:
    """Return what is wrong with a file; nothing if it has just been removed."""
    try:
        return None if sha256_file(path) == digest else "the contents are not those that its name says"
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
