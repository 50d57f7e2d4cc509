"""A note file of the entries that a worker made for another build.

```text
<key> made    the entry is in the local store alone
<key> sent    the entry is in the shared cache, too
<key> came    the entry came from the shared cache
```
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hatch_lower.cache.entry import DIGEST, Keep, Record, RemoteCache

STATES = ("made", "sent", "came")


class Outbox:
    """A wrapper of the shared cache, if any, that notes each entry sent and received."""

    def __init__(self, path: Path, remote: RemoteCache | None) -> None:
        self._path = path
        self._remote = remote

    def fetch(self, key: str, keep: Keep) -> Record | None:
        record = None if self._remote is None else self._remote.fetch(key, keep)
        if record is not None:
            self._note(key, "came")
        return record

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        sent = self._remote is not None and self._remote.offer(key, record, blobs)
        self._note(key, "sent" if sent else "made")
        return sent

    def _note(self, key: str, state: str) -> None:
        with self._path.open("a", encoding="ascii") as file:
            file.write(f"{key} {state}\n")


def read_outbox(path: Path) -> dict[str, str]:
    """Return the last note of each key; an empty mapping for a missing file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return {}
    notes = (line.partition(" ") for line in lines)
    # a process that was killed leaves half a line
    return {key: state for key, _, state in notes if state in STATES and DIGEST.fullmatch(key)}
