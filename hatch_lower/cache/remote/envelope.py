"""A shared entry as bytes: the contents and their signature, and the entries that are accepted without a signature.

The signature covers the canonical JSON of the parsed value, so the verified contents are the contents in use.

A build compares a program that was assembled from partitions with the eager model. No comparison covers the result of
a whole model, the inputs of an export, or the libraries that a file needs: a writer of the server could forge these.
So an entry without a trusted signature is used only if the entry is the result of a partition, holds no native code,
and requires only packages that the backends of this environment require.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hatch_lower import BACKEND_GROUP
from hatch_lower.cache.entry import Record
from hatch_lower.cache.partition import FIELDS, StoredPartition
from hatch_lower.cache.remote.signing import SigningKey, VerifyingKeys, can_sign
from hatch_lower.canonical import canonical_json
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode
from hatch_lower.format.values import Digest, Natural
from hatch_lower.frozen import Frozen

SCHEMA = 1
NATIVE_SUFFIXES = frozenset({"a", "dll", "dylib", "o", "pt2", "pte", "pyd", "so"})
NATIVE_HEADS = (
    b"\x7fELF",
    b"MZ",
    b"PK\x03\x04",  # an archive may hold libraries
    b"!<arch>\n",
    *(bytes.fromhex(magic) for magic in ("feedface", "feedfacf", "cefaedfe", "cffaedfe", "cafebabe", "bebafeca")),
)
HEAD_BYTES = 8
OTHER_COMPONENTS = "the entry has the components of another key"


class RefusedEntryError(Exception):
    """A received entry must not be used; the text is the reason."""


class SharedEntry(Frozen):
    key: Digest
    value: object
    components: Mapping[str, object]
    # sha256 and size in bytes of each blob that the value refers to, in the order of the record
    blobs: tuple[tuple[Digest, Natural], ...]
    native: bool  # whether the entry holds native code

    def text(self) -> bytes:
        """Return the bytes to sign."""
        return canonical_json({"schema": SCHEMA, **{field.name: getattr(self, field.name) for field in fields(self)}})


class Signature(Frozen):
    key_id: str  # names the signing key
    value: bytes


def shared_entry(key: str, record: Record, blobs: Mapping[str, Path]) -> SharedEntry:
    """Return the shared form of a record whose blobs are in the given files."""
    sizes = {name: blobs[name].stat().st_size for name in record["blobs"]}
    native = is_native(record["value"]) or any(is_native_file(blobs[name]) for name in sizes)
    listed = tuple((name, sizes[name]) for name in record["blobs"])
    return SharedEntry(key, record["value"], record["components"], listed, native)


def write_envelope(entry: SharedEntry, signing_key: SigningKey | None) -> bytes:
    text = entry.text()
    signature = None
    if signing_key is not None:
        value = base64.b64encode(signing_key.sign(text)).decode()
        signature = {"key": signing_key.key_id(), "ed25519": value}
    return canonical_json({"entry": json.loads(text), "signature": signature})


def read_envelope(data: bytes) -> tuple[SharedEntry, Signature | None]:
    """Return the entry and its signature, not verified yet; raise `ValueError` for other bytes."""
    try:
        envelope = json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("an entry is nested too deeply") from error
    stated = envelope.get("entry") if isinstance(envelope, dict) else None
    if not isinstance(stated, dict) or stated.pop("schema", None) != SCHEMA:
        raise ValueError("no entry, or an entry of another version")
    try:
        entry: SharedEntry = decode(SharedEntry, stated, "an entry")
    except ProgramError as error:
        raise ValueError("an entry without a key, components or blobs") from error
    return entry, read_signature(envelope.get("signature"))


def read_signature(value: object) -> Signature | None:
    if value is None:
        return None
    if not (isinstance(value, dict) and isinstance(value.get("key"), str) and isinstance(value.get("ed25519"), str)):
        raise ValueError("a signature without a key")
    if not re.fullmatch(r"[0-9a-f]{16}", value["key"]):
        raise ValueError("a signature whose key has no name")
    try:
        return Signature(value["key"], base64.b64decode(value["ed25519"], validate=True))
    except ValueError as error:
        raise ValueError("a signature that is not base64") from error


def is_native(value: object) -> bool:
    """Return whether a record's value declares native code: a `target`, `native` files, a suffix of libraries."""
    if isinstance(value, Mapping):
        suffix = value.get("suffix")
        return (
            bool(value.get("target"))
            or bool(value.get("native"))
            or (isinstance(suffix, str) and suffix.lower().lstrip(".") in NATIVE_SUFFIXES)
            or any(is_native(member) for member in value.values())
        )
    return isinstance(value, list) and any(is_native(member) for member in value)


def is_signed_entry(entry: SharedEntry, signature: Signature | None, known: VerifyingKeys) -> bool:
    """Return whether a known key signed an entry; refuse an entry with a wrong signature under a known key."""
    if signature is None or not known.knows(signature.key_id):
        return False
    if not can_sign():
        raise RefusedEntryError("the signature cannot be checked: install `hatch-lower[remote]`")
    if not known.verify(signature.key_id, signature.value, entry.text()):
        raise RefusedEntryError(f"the signature by the key {signature.key_id} is wrong")
    return True


def unsigned_text(signature: Signature | None, why: str) -> str:
    if signature is None:
        return f"the entry {why}, and is not signed"
    return f"the entry {why}, and is signed by the key {signature.key_id}, which is not among the public keys"


def is_native_file(file: Path) -> bool:
    # a record may not declare its native code
    with file.open("rb") as stream:
        return stream.read(HEAD_BYTES).startswith(NATIVE_HEADS)


def reason_to_refuse_unsigned(value: Any) -> str:
    joint = isinstance(value, Mapping) and value.keys() == {"results"} and isinstance(value["results"], list)
    return next(filter(None, map(reason_to_refuse_one, value["results"] if joint else [value])), "")


def reason_to_refuse_one(value: object) -> str:
    if not isinstance(value, Mapping) or value.keys() != FIELDS:
        return "is not the result of a partition alone"
    try:
        stored = StoredPartition.read(value)
    except ValueError:
        return "is not a valid result of a partition"
    if stored.target is not None:
        return "holds native code"
    foreign = foreign_requirement(stored.requirements)
    return "" if foreign is None else f"requires `{foreign:.80}`, which no backend of this environment requires"


def foreign_requirement(requirements: Sequence[str]) -> str | None:
    """Return the first requirement that no package of this environment's backends meets, or `None`."""
    if not requirements:
        return None
    from packaging.utils import canonicalize_name

    from hatch_lower.config.requirements import read_requirement

    versions = {canonicalize_name(name): version for name, version in known_versions()}
    for text in requirements:
        requirement = read_requirement(text)
        if requirement is None:
            return text
        version = versions.get(canonicalize_name(requirement.name))
        plain = not (requirement.url or requirement.extras or requirement.marker)
        if version is None or not plain or not requirement.specifier.contains(version, prereleases=True):
            return text
    return None


def known_versions() -> Iterator[tuple[str, str]]:
    """Yield name and installed version of the packages that programs of this environment's backends may require."""
    from hatch_lower.config.requirements import read_requirement

    # torch, hatch-lower, the distributions with backends, and the requirements of these distributions
    names = {"torch", "hatch-lower"}
    for point in importlib.metadata.entry_points(group=BACKEND_GROUP):
        if point.dist is not None:
            names.add(point.dist.name)
            listed = filter(None, map(read_requirement, point.dist.requires or ()))
            names |= {each.name for each in listed if each.marker is None or each.marker.evaluate({"extra": ""})}
    for name in sorted(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
