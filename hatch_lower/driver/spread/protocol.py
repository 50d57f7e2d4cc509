"""The messages between a build and its workers: requests and answers, as JSON.

A request travels beside the snapshot of the project, and holds its digest. `answers.py` writes an answer with its
entries, under an authentication code by the request's secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from hatch_lower.canonical import canonical_json
from hatch_lower.driver.spread.snapshot import Relocated
from hatch_lower.driver.units import Unit
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import Damage, decode, encode, parse_json
from hatch_lower.format.values import Digest, Text
from hatch_lower.frozen import Frozen

SECRET_BYTES = 32
SENT = "the request and its snapshot"  # the subject of a `Lack`

Outcome: TypeAlias = Literal["made", "refused", "failed", "killed"]
# by name (`torch`, `Python`, `C library`, `C++ compiler`, …): the version or the description on a machine
Facts: TypeAlias = Mapping[str, str]


class WrongAnswerError(Exception):
    """An answer that is not used; the text is the reason. The unit is made again elsewhere."""


class LacksError(Exception):
    """A worker cannot make a unit that another worker may make."""

    def __init__(self, *lacks: Lack) -> None:
        super().__init__("; ".join(lack.text() for lack in lacks))
        self.lacks = lacks


class Lack(Frozen):
    what: str
    wanted: str  # empty: `found` is a sentence about the trouble
    found: str  # empty: missing

    def text(self) -> str:
        if not self.wanted:
            return f"{self.what}: {self.found}"
        found = f"has {self.what} {self.found}" if self.found else f"has no {self.what}"
        return f"{found}, where {self.wanted} is wanted"


class UnitBody(Frozen):
    project: Relocated
    unit: Unit


class UnitRequest(Frozen):
    name: Text
    key: Digest
    secret: Digest  # random; an answer proves with it that its writer has read this request
    facts: Facts  # required of the worker
    environment: Mapping[str, str]  # exactly the variables that `pass-env` names
    body: Mapping[str, object]  # a `UnitBody`
    snapshot: Digest  # sha256 of the archive beside the request
    # ids of keys, one of which must have signed each returned entry; empty: no signature needed
    signers: tuple[str, ...] = ()
    bring_all: bool = True  # whether the answer also brings entries that the worker sent to a shared cache

    def __repr__(self) -> str:
        return f"UnitRequest({self.name}, {self.key[:16]})"  # no secrets in logs


class UnitAnswer(Frozen):
    name: Text
    key: Digest
    worker: str  # `host:pid`, or the engine's own name of the worker
    outcome: Outcome
    entries: tuple[Digest, ...] = ()  # keys of the results, which the answer brings or the shared cache has
    lacks: tuple[Lack, ...] = ()
    error: Mapping[str, str] | None = None  # `LowerError.to_json()`
    log: tuple[str, ...] = ()

    def validate(self) -> None:
        told = ((self.lacks, ("refused",)), (self.error, ("failed", "killed")))
        if any(bool(value) != (self.outcome in outcomes) for value, outcomes in told):
            raise Damage(f"`{self.outcome}` with fields of another outcome, or without its own", ".outcome")
        if self.error is not None and self.error.keys() != {"error", "what", "where", "found", "hint"}:
            raise Damage("no error", ".error")


def new_secret() -> str:
    return secrets.token_hex(SECRET_BYTES)


def write_request(request: UnitRequest) -> bytes:
    return canonical_json(encode(request))


def read_request(data: bytes) -> UnitRequest:
    """Read a request of `write_request`; raise `ValueError` for any other bytes."""
    request: UnitRequest = read_json(UnitRequest, data, "the request")
    return request


def read_json(kind: type[Frozen], data: bytes, where: str) -> Any:
    try:
        return decode(kind, parse_json(data, where), where)
    except ProgramError as error:  # its advice is for a damaged program
        raise ValueError(f"{error.where}: {error.found}") from error
