"""What a URL stands for at this moment: files of which nobody has written down size and digest yet, for builds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hatch_lower.canonical import canonical_json, sha256_bytes, sha256_file
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode_file
from hatch_lower.format.values import Digest, Natural
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.download import Received, complete, errors_of, private_part
from hatch_lower.runtime.obtain import Progress, download_from_hub, limits_from, name_of, refuse_offline
from hatch_lower.runtime.origins import Limits, RefusedError, local_path, origin_of
from hatch_lower.runtime.sources import (
    HUB,
    OFFLINE,
    file_name,
    hub_file,
    hub_path,
    is_on,
    size_of,
    weights_folders,
)

NOTE_SCHEMA = 1


class Published(Frozen):
    """A file under a URL, and where it is on this machine."""

    url: str
    path: Path
    size: int
    sha256: str


class Note(Frozen):
    """What was found under a URL the last time."""

    url: str
    size: Natural
    sha256: Digest
    stamp: str  # by which a server says that it is still the same


def published(url: str) -> Published:
    """Return the file that a URL stands for, downloaded if it is not here or has changed.

    A commit of huggingface's hub does not change. Other servers are asked; where no connection is to be opened, the URL
    stands for what it did the last time.

    Raises:
        FetchError: if it cannot be had.
    """
    folder = weights_folders()[0]
    with errors_of(url, folder):
        if url.startswith("file:"):
            return described(url, local_path(url))
        if url.startswith(HUB):
            path = hub_path(hub_file(url))
            if size_of(path) is None:
                refuse_offline(url)
                path = download_from_hub(url)
            return described(url, path)
        return ask(url, folder, limits_from(os.environ))


def described(url: str, path: Path) -> Published:
    if not path.is_file():
        raise RefusedError("it is no file" if path.exists() else "there is no such file")
    return Published(url, path, path.stat().st_size, sha256_file(path))


def ask(url: str, folder: Path, limits: Limits) -> Published:
    note_path = folder / "urls" / f"{sha256_bytes(url.encode())}.json"
    known = read_note(note_path)
    path = folder / file_name(known.sha256) if known is not None else None
    if known is not None and (path is None or known.url != url or size_of(path) != known.size):
        known = None
    if known is not None and path is not None and any(is_on(os.environ, name) for name in OFFLINE):
        return Published(url, path, known.size, known.sha256)
    refuse_offline(url)
    origin = origin_of(url, limits)
    if known is not None and path is not None and known.stamp:
        stream = origin.open(0, "")
        stream.close()
        if (stream.stamp, stream.size) == (known.stamp, known.size):
            return Published(url, path, known.size, known.sha256)
    folder.mkdir(parents=True, exist_ok=True)
    with private_part(folder / "new") as part, Progress(sys.stderr, name_of(url), None) as progress:
        received = Received(part.file)
        stamp = complete(received, origin, None, limits, progress.show)
        os.fsync(part.file.fileno())
        target = folder / file_name(received.sha256())
        os.replace(part.path, target)
    write_note(note_path, Note(url, received.size, received.sha256(), stamp))
    return Published(url, target, received.size, received.sha256())


def read_note(path: Path) -> Note | None:
    try:
        return decode_file(Note, path.read_bytes(), NOTE_SCHEMA, str(path))
    except (OSError, ProgramError):  # a damaged one is none
        return None


def write_note(path: Path, note: Note) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"url": note.url, "size": note.size, "sha256": note.sha256, "stamp": note.stamp}
    with private_part(path) as part:
        part.file.write(canonical_json({"schema": NOTE_SCHEMA, **fields}))
        part.file.flush()
        os.replace(part.path, path)
