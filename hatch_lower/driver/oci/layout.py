"""An OCI image layout: a folder with an index, and with blobs named by their digests.

```text
oci-layout            the version of the layout
index.json            a descriptor for each artifact, with the artifact's tag
blobs/sha256/<hex>    manifests, configurations and layers
```

Source: image-layout.md, manifest.md and descriptor.md of the OCI image specification 1.1.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatch_lower.cache.locks import hold, remove_abandoned
from hatch_lower.canonical import canonical_json, is_file_of, open_file
from hatch_lower.errors import PackageError, ProgramError, nearest
from hatch_lower.format.codec import Damage, json_value
from hatch_lower.format.values import read_digest, read_natural, read_text
from hatch_lower.frozen import Frozen

VERSION_FILE, VERSION = "oci-layout", {"imageLayoutVersion": "1.0.0"}
INDEX_FILE, BLOBS = "index.json", "blobs/sha256"
PART = ".part-"  # before the name of an unfinished blob
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
TAG = "org.opencontainers.image.ref.name"
TAG_FORM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MOST_JSON = 1 << 22  # bytes of an index or a manifest: the limit of registries

Json = Mapping[str, Any]


class Descriptor(Frozen):
    """The reference to a blob."""

    type: str  # the media type
    size: int  # bytes
    sha256: str
    annotations: Mapping[str, str]

    def json(self) -> dict[str, object]:
        reference = {"mediaType": self.type, "size": self.size, "digest": f"sha256:{self.sha256}"}
        return reference | ({"annotations": dict(self.annotations)} if self.annotations else {})


class BlobWriter:
    """Writes blobs into a layout; `remove` deletes the blobs that are new."""

    def __init__(self, layout: Path) -> None:
        self._folder = layout / BLOBS
        self._folder.mkdir(parents=True, exist_ok=True)
        # a name of its own: where locks are not available, another process may write at the same time
        self._part = self._folder / f"{PART}{secrets.token_hex(8)}"
        self._new = [self._part]

    def write(self, kind: str, pieces: Iterable[bytes], annotations: Mapping[str, str]) -> Descriptor:
        """Write a blob of a media type, and return its descriptor."""
        digest, size = hashlib.sha256(), 0
        with self._part.open("wb") as file:
            for piece in pieces:
                digest.update(piece)
                size += file.write(piece)
        path = self._folder / digest.hexdigest()
        if not is_file_of(path, size, digest.hexdigest()):
            self._new.append(path)
            self._part.replace(path)
        self._part.unlink(missing_ok=True)
        return Descriptor(kind, size, digest.hexdigest(), annotations)

    def remove(self) -> None:
        for path in self._new:
            path.unlink(missing_ok=True)


@contextmanager
def other_writers_waiting(layout: Path) -> Iterator[None]:
    """Let other processes wait that write into the layout, whose index they would replace; Windows has no such lock."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(layout, os.O_RDONLY | os.O_CLOEXEC)
    try:
        hold(layout, descriptor)
        yield
    finally:
        os.close(descriptor)


def remove_unfinished_blobs(layout: Path) -> None:
    """Remove the parts of blobs that killed processes have left; the caller lets other writers wait.

    A living writer with such a part has the layout to itself. Where locks are not available, nothing is removed.
    """
    remove_abandoned(layout / BLOBS, f"{PART}*")


def is_layout(folder: Path) -> bool:
    return (folder / VERSION_FILE).is_file()


def read_layout_index(layout: Path) -> list[Descriptor]:
    """Return the descriptors of a layout's artifacts."""
    value = read_layout_json(layout / INDEX_FILE)
    with damage_named(layout / INDEX_FILE):
        return [read_descriptor(entry) for entry in member_list(value, "manifests")]


def add_to_index(layout: Path, entry: Descriptor) -> None:
    """Add an artifact to the index of a layout, which keeps its other members; a new layout gets its version, too."""
    known: Json = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
    if is_layout(layout):
        known = read_layout_json(layout / INDEX_FILE)
    part = layout / f".{INDEX_FILE}.part"
    try:
        part.write_bytes(canonical_json({**known, "manifests": [*known["manifests"], entry.json()]}))
        part.replace(layout / INDEX_FILE)
    finally:
        part.unlink(missing_ok=True)
    (layout / VERSION_FILE).write_bytes(canonical_json(VERSION))


def choose_artifact(layout: Path, tag: str | None) -> Descriptor:
    """Return the artifact with a tag, or the only artifact; raise `ProgramError` without exactly one."""
    entries = read_layout_index(layout)
    found = [entry for entry in entries if entry.type == MANIFEST_TYPE]
    chosen = [entry for entry in found if tag is None or entry.annotations.get(TAG) == tag]
    if len({entry.sha256 for entry in chosen}) != 1:  # an artifact may have several tags
        tags = {entry.annotations[TAG] for entry in found if entry.annotations.get(TAG)}
        raise ProgramError(
            "the layout has several artifacts" if chosen else "there is no such artifact in the layout",
            where=str(layout),
            found=nearest(tag or "", tags)
            if found
            else f"manifests: {len(entries)}, of the type {MANIFEST_TYPE}: none",
            hint="select an artifact with `--tag`" if tags - {tag} else "fetch the artifact alone into a new layout",
        )
    return chosen[0]


def read_blob(layout: Path, descriptor: Descriptor) -> Iterator[bytes]:
    """Yield the bytes of a blob; at the end raise `ProgramError` if size or digest differ from the descriptor."""
    path = layout / BLOBS / descriptor.sha256
    digest, size = hashlib.sha256(), 0
    try:
        with open_file(path) as file:
            while piece := file.read(min(1 << 20, descriptor.size + 1 - size)):
                digest.update(piece)
                size += len(piece)
                yield piece
    except OSError as error:
        raise refused_blob(path, error.strerror or str(error)) from error
    if size != descriptor.size:
        raise refused_blob(path, f"{'more' if size > descriptor.size else size} bytes, not {descriptor.size}")
    if digest.hexdigest() != descriptor.sha256:
        raise refused_blob(path, f"the digest sha256:{digest.hexdigest()}")


def refused_blob(path: Path, found: str) -> ProgramError:
    return ProgramError(
        "a blob of the artifact is not the one that its descriptor names",
        where=str(path),
        found=found,
        hint="fetch the artifact again; if that does not help, the registry has other bytes than were pushed",
    )


def read_manifest_blob(layout: Path, descriptor: Descriptor) -> Json:
    if descriptor.size > MOST_JSON:
        raise refused_blob(layout / BLOBS / descriptor.sha256, f"{descriptor.size} bytes for a manifest")
    return read_object(b"".join(read_blob(layout, descriptor)), f"{layout}: manifest sha256:{descriptor.sha256}")


def read_layout_json(path: Path) -> Json:
    try:
        with open_file(path) as file:
            data = file.read(MOST_JSON + 1)
    except OSError as error:
        raise ProgramError(
            "the folder is not an OCI image layout",
            where=str(path),
            found=error.strerror or str(error),
            hint="fetch the artifact into a layout: `skopeo copy docker://… oci:FOLDER`",
        ) from error
    return read_object(data, str(path))


def read_object(data: bytes, where: str) -> Json:
    with damage_named(where):
        if len(data) > MOST_JSON:
            raise Damage(f"more than {MOST_JSON} bytes")
        value = json_value(data)
        if not isinstance(value, dict):
            raise Damage("no JSON object")
    return value


def read_descriptor(value: object) -> Descriptor:
    """Read a descriptor; raise `Damage` for any other form."""
    if not isinstance(value, dict):
        raise Damage("no descriptor of a blob")
    name, _, digest = read_text(value.get("digest")).partition(":")
    if name != "sha256":
        raise Damage(f"a digest {name[:40]!r} instead of sha256")
    annotations = value.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(isinstance(text, str) for text in annotations.values()):
        raise Damage("annotations that are not texts")
    return Descriptor(
        read_text(value.get("mediaType")), read_natural(value.get("size")), read_digest(digest), annotations
    )


def member_list(value: Json, name: str) -> list[object]:
    found = value.get(name)
    if not isinstance(found, list):
        raise Damage(f"no list `{name}`")
    return found


@contextmanager
def damage_named(where: object) -> Iterator[None]:
    try:
        yield
    except Damage as damage:
        raise ProgramError(
            "the artifact is damaged",
            where=str(where),
            found=damage.found,
            hint="fetch the artifact again, or write it again from its wheel: `hatch-lower oci WHEEL --to LAYOUT`",
        ) from damage


def checked_tag(tag: str, where: str) -> str:
    if TAG_FORM.fullmatch(tag) is None:
        raise PackageError(
            "OCI does not allow the tag",
            where=where,
            found=f"`{tag[:200]}`",
            hint="give another tag with `--tag`: letters, digits, `_`, `.` and `-`, at most 128",
        )
    return tag
