"""The form of a record: a JSON value, the digests of its blobs, and the readable components of its key.

```text
{"blobs": ["<sha256>", …], "components": {…}, "digest": "<sha256>", "stored": 1700000000, "value": …}
```

`digest` is over the key and all but `stored`, which says when this machine wrote it, in seconds since 1970, and which
goes nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hatch_lower.canonical import digest_of

Record = dict[str, Any]

DIGEST = re.compile("[0-9a-f]{64}")


def make_record(key: str, components: Mapping[str, Any], value: Any, blobs: Sequence[str]) -> Record:
    """Return the record of a value.

    Raises:
        ValueError: if `components` or `value` cannot be written as JSON.
    """
    record = {"blobs": list(blobs), "components": dict(components), "value": value}
    return {**record, "digest": digest_of([key, record])}


def check_record(key: str, found: object) -> Record | None:
    """Return what was read as a record, without `stored`; `None` if it is none, or is another key's."""
    if not isinstance(found, dict) or not {"blobs", "components", "value", "digest"} <= found.keys():
        return None
    record = {name: found[name] for name in ("blobs", "components", "value")}
    blobs, components = record["blobs"], record["components"]
    if not isinstance(blobs, list) or not isinstance(components, dict):
        return None
    if not all(isinstance(each, str) and DIGEST.fullmatch(each) for each in blobs):
        return None
    try:
        whole = found["digest"] == digest_of([key, record])
    except (ValueError, RecursionError):  # NaN, which Python reads and JSON does not hold; more nesting than is written
        return None
    return {**record, "digest": found["digest"]} if whole else None


def parse_record(data: bytes) -> object:
    """Return the JSON value in a record's file, for `check_record`; `None` if there is none."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
