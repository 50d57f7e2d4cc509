"""Cached results that are being run: if the process dies meanwhile, the store forgets these results.

A library from a broken compiler may kill the process that runs the library. So the child notes the keys of the results
in a file for the parent before running.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.cache.store import Store
from hatch_lower.errors import SampleError, VerificationError

NOTE = "suspects.json"


@contextmanager
def suspected(folder: Path, keys: Sequence[str]) -> Iterator[None]:
    note = folder / NOTE
    note.write_text(json.dumps(list(keys)), encoding="utf-8")
    try:
        yield
    except (VerificationError, SampleError):  # the results were compared, so the process survived
        note.unlink()
        raise
    note.unlink()


def forget_suspects(store: Store, folders: Sequence[Path]) -> None:
    for folder in folders:
        note = folder / NOTE
        if note.exists():
            store.forget(json.loads(note.read_text(encoding="utf-8")))
