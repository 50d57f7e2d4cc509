"""A worker's answer as bytes.

```text
a line       what this is
32 bytes     sha256 that follows from the request's secret: of which request this is the answer
32 bytes     HMAC-SHA256 of all that follows, by that secret
8 bytes      length of the answer, big-endian
answer       `UnitAnswer`, canonical JSON
entries      as `entries.py` writes them
```

Who changes a bit, or mixes up two units, does not know the secret. It says nothing about who made the entries: that is
what signatures are for.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from hatch_lower.build.spread.entries import LENGTH_BYTES, Entries, Entry, read_entries, write_entries
from hatch_lower.build.spread.protocol import UnitAnswer, UnitRequest, WrongAnswerError, read_json
from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.format.codec import encode

HEAD = b"hatch-lower answer 1\n"
DIGEST_BYTES = 32
MAC = len(HEAD) + DIGEST_BYTES
CONTENTS = MAC + DIGEST_BYTES


def write_answer(answer: UnitAnswer, entries: Collection[Entry], secret: str) -> bytes:
    """Return an answer with its entries."""
    text = canonical_json(encode(answer))
    bundle = write_entries(entries)
    length = len(text).to_bytes(LENGTH_BYTES, "big")
    return b"".join([HEAD, mark(secret), code(secret, length, text, bundle), length, text, bundle])


def read_answer(data: bytes, request: UnitRequest) -> tuple[UnitAnswer, Entries]:
    """Return the answer to a request, and the entries that came with it; a `WrongAnswerError` for any other bytes."""
    whole = memoryview(data)
    if len(whole) < CONTENTS + LENGTH_BYTES or whole[: len(HEAD)] != HEAD:
        raise WrongAnswerError("it is no answer")
    if whole[len(HEAD) : MAC] != mark(request.secret):
        raise WrongAnswerError("it is the answer to another request, or damaged")
    if not hmac.compare_digest(whole[MAC:CONTENTS], code(request.secret, whole[CONTENTS:])):
        raise WrongAnswerError("it is not as its worker wrote it: its authentication code is wrong")
    start = CONTENTS + LENGTH_BYTES
    end = start + int.from_bytes(whole[CONTENTS:start], "big")
    try:
        answer: UnitAnswer = read_json(UnitAnswer, bytes(whole[start:end]), "the answer")
    except ValueError as error:
        raise WrongAnswerError(f"it cannot be read: {error}") from error
    if (answer.name, answer.key) != (request.name, request.key):
        raise WrongAnswerError(f"it is about another unit, `{answer.name}`")
    entries = read_entries(whole[end:])
    if unnamed := entries.entries.keys() - set(answer.entries):
        raise WrongAnswerError(f"it brings the entry {min(unnamed)[:16]}… and does not name it")
    return answer, entries


def mark(secret: str) -> bytes:
    return bytes.fromhex(sha256_bytes(HEAD + secret.encode()))


def code(secret: str, *pieces: bytes | memoryview) -> bytes:
    total = hmac.new(bytes.fromhex(secret), digestmod="sha256")
    for piece in pieces:
        total.update(piece)
    return total.digest()
