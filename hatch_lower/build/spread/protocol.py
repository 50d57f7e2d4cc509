"""What a build asks of a worker, and what a worker answers, as JSON.

A request travels with attachments, of which it says size and digest. How an answer is written is in `answers.py`: with
the entries that it brings, under a code that only who has read the request can make.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage, decode, encode, parse_json
from hatch_lower.format.values import Digest, Natural, Text
from hatch_lower.frozen import Frozen

SECRET_BYTES = 32
KEY_BYTES = 32
# roles of attachments: entries that a unit needs, and the keys of those that the build has
ENTRIES, KNOWN = "entries", "known"

UnitKind: TypeAlias = Literal["recipe", "part"]
Outcome: TypeAlias = Literal["made", "needs", "refused", "failed", "killed"]
# what a worker is: `torch`, `python`, `libc`, `compiler g++`, …, and what it has of that
Facts: TypeAlias = Mapping[str, str]


class WrongAnswerError(Exception):
    """An answer that is not used; the text says why. What it was to answer is made again elsewhere."""


class LacksError(Exception):
    """A worker cannot make a unit, and another one may."""

    def __init__(self, *lacks: Lack) -> None:
        super().__init__("; ".join(lack.text() for lack in lacks))
        self.lacks = lacks


class NeedsError(Exception):
    """A unit cannot be made without parts; `beside` are the blobs that its needs name."""

    def __init__(self, needs: Sequence[Need], beside: Sequence[bytes] = ()) -> None:
        super().__init__(", ".join(need.name for need in needs))
        self.needs = tuple(needs)
        self.beside = tuple(beside)


class Attachment(Frozen):
    role: Text  # there is one of each at most
    sha256: Digest
    size: Natural


class Lack(Frozen):
    what: str
    wanted: str  # empty: what is the matter is `found`
    found: str  # empty: nothing

    def text(self) -> str:
        if not self.wanted:
            return f"{self.what}: {self.found}"
        found = f"has {self.what} {self.found}" if self.found else f"has no {self.what}"
        return f"{found}, where {self.wanted} is wanted"


class Need(Frozen):
    """A part without whose result a unit is not made."""

    key: Digest
    name: Text
    body: Mapping[str, object]  # of the request that makes the part
    blob: Digest  # sha256 of bytes that travel with the answer and are attached to that request


class UnitRequest(Frozen):
    name: Text
    kind: UnitKind
    key: Digest
    secret: Digest  # random; who answers proves with it that it has read this request
    facts: Facts  # what the worker must be
    environment: Mapping[str, str]  # the variables that `pass-env` names, and no others
    body: Mapping[str, object]  # what a unit of this kind is made from
    attachments: tuple[Attachment, ...] = ()
    signers: tuple[str, ...] = ()  # ids of the keys by one of which what is brought must be signed; empty: by none
    bring_all: bool = True  # whether the answer brings what the worker has sent to a shared cache, too

    def validate(self) -> None:
        roles = [attachment.role for attachment in self.attachments]
        if len(set(roles)) < len(roles):
            raise Damage("two attachments of one role", ".attachments")

    def __repr__(self) -> str:
        return f"UnitRequest({self.name}, {self.key[:16]})"  # no secrets in logs


class UnitAnswer(Frozen):
    name: Text
    key: Digest
    worker: str  # `host:pid`, or the engine's own name for it
    outcome: Outcome
    entries: tuple[Digest, ...] = ()  # keys of its results: the answer brings them, or the shared cache has them
    needs: tuple[Need, ...] = ()
    lacks: tuple[Lack, ...] = ()
    error: Mapping[str, str] | None = None  # `LowerError.to_json()`
    log: tuple[str, ...] = ()

    def validate(self) -> None:
        told = ((self.needs, ("needs",)), (self.lacks, ("refused",)), (self.error, ("failed", "killed")))
        if any(bool(value) != (self.outcome in outcomes) for value, outcomes in told):
            raise Damage(f"`{self.outcome}` with what belongs to another outcome, or without its own", ".outcome")
        if self.error is not None and self.error.keys() != {"error", "what", "where", "found", "hint"}:
            raise Damage("no error", ".error")


def new_secret() -> str:
    return secrets.token_hex(SECRET_BYTES)


def attach(role: str, data: bytes | bytearray | memoryview) -> Attachment:
    return Attachment(role, sha256_bytes(data), len(data))


def attached(request: UnitRequest, given: Sequence[bytes]) -> dict[str, bytes]:
    """Return a request's attachments by role; `ValueError` if other bytes came than were sent."""
    if len(given) != len(request.attachments):
        raise ValueError(f"{len(given)} attachments came, and not {len(request.attachments)}")
    for named, data in zip(request.attachments, given, strict=True):
        if (len(data), sha256_bytes(data)) != (named.size, named.sha256):
            raise ValueError(f"the attachment `{named.role}` came with other contents than were sent")
    return {named.role: data for named, data in zip(request.attachments, given, strict=True)}


def read_keys(data: bytes) -> tuple[str, ...]:
    """Return the keys, of 32 bytes each, that an attachment lists."""
    return tuple(data[start : start + KEY_BYTES].hex() for start in range(0, len(data), KEY_BYTES))


def write_request(request: UnitRequest) -> bytes:
    return canonical_json(encode(request))


def read_request(data: bytes) -> UnitRequest:
    """Return what `write_request` wrote; `ValueError` for anything else."""
    request: UnitRequest = read_json(UnitRequest, data, "the request")
    return request


def read_json(kind: type[Frozen], data: bytes, where: str) -> Any:
    try:
        return decode(kind, parse_json(data, where), where)
    except ProgramError as error:  # its advice is for a damaged program
        raise ValueError(f"{error.where}: {error.found}") from error
