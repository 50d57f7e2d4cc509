"""The known digests of files that the setting `weights` names, found without a connection.

The cache keeps the digest of a URL. Without another change the kept digest is believed: a build of known models
downloads no file and asks no server. A file of this machine is compared like an input.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.config.tables import IN_A_FILE
from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.values import Digest, Natural
from hatch_lower.frozen import Frozen

FILE = "file://"


class KnownSource(Frozen):
    """The contents of a URL at the last look."""

    size: Natural  # bytes
    sha256: Digest
    stamp: str  # the server's ETag or date, equal for equal contents; empty if the server sends neither


def urls_of(models: Iterable[ModelSettings]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(url for model in models for url in model.weights if url != IN_A_FILE))


def file_path(url: str) -> Path:
    from urllib.parse import unquote, urlsplit  # imported here because few projects have a file URL

    return Path(unquote(urlsplit(url).path))


def known_digest(url: str, store: Store, stats: StatCache) -> str:
    """Return the sha256 of a URL's contents, or of its last known contents; empty if unknown."""
    if url.startswith(FILE):
        try:
            return stats.digest(file_path(url))
        except OSError:
            return ""
    known = None if url == IN_A_FILE else known_source(url, store)
    return "" if known is None else known.sha256


def known_source(url: str, store: Store) -> KnownSource | None:
    try:  # another machine may have written the entry, and the digest becomes a file's name
        known: KnownSource = decode(KnownSource, store.find(record_key(url)), "")
    except ProgramError:
        return None
    return known


def keep_source(url: str, known: KnownSource, store: Store) -> None:
    store.put(record_key(url), {"kind": "weights", "subject": url}, encode(known))


def record_key(url: str) -> str:
    return digest_of(["weights", url])
