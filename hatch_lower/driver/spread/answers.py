"""A worker's answer as bytes.

```text
a line       the format's name
32 bytes     sha256 that depends on the request's secret: names the request of the answer
32 bytes     HMAC-SHA256 of all following bytes, by the secret
8 bytes      length of the answer, big-endian
answer       `UnitAnswer`, canonical JSON
entries      in the format of `entries.py`
```

A transport that changes a bit, or mixes up two units, does not know the secret. The code does not prove who made the
entries: that is the purpose of signatures.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from hatch_lower.canonical import canonical_json, sha256_bytes
from hatch_lower.driver.spread.entries import LENGTH_BYTES, Entries, Entry, read_entries, write_entries
from hatch_lower.driver.spread.protocol import UnitAnswer, UnitRequest, WrongAnswerError, read_json
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
    """Read the answer to a request and the entries in the answer; raise `WrongAnswerError` for any other bytes."""
    whole = memoryview(data)
    if len(whole) < CONTENTS + LENGTH_BYTES or whole[: len(HEAD)] != HEAD:
        raise WrongAnswerError("the bytes are no answer")
    if whole[len(HEAD) : MAC] != mark(request.secret):
        raise WrongAnswerError("the answer belongs to another request, or is damaged")
    if not hmac.compare_digest(whole[MAC:CONTENTS], code(request.secret, whole[CONTENTS:])):
        raise WrongAnswerError("the answer was changed: its authentication code is wrong")
    start = CONTENTS + LENGTH_BYTES
    end = start + int.from_bytes(whole[CONTENTS:start], "big")
    try:
        answer: UnitAnswer = read_json(UnitAnswer, bytes(whole[start:end]), "the answer")
    except ValueError as error:
        raise WrongAnswerError(f"the answer cannot be read: {error}") from error
    if (answer.name, answer.key) != (request.name, request.key):
        raise WrongAnswerError(f"the answer is about another unit, `{answer.name}`")
    entries = read_entries(whole[end:])
    if unnamed := entries.entries.keys() - set(answer.entries):
        raise WrongAnswerError(f"the answer brings the entry {min(unnamed)[:16]}… without its key")
    return answer, entries


def mark(secret: str) -> bytes:
    return bytes.fromhex(sha256_bytes(HEAD + secret.encode()))


def code(secret: str, *pieces: bytes | memoryview) -> bytes:
    total = hmac.new(bytes.fromhex(secret), digestmod="sha256")
    for piece in pieces:
        total.update(piece)
    return total.digest()
