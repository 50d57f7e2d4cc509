"""The digest of this package's own code: a stored result is only as good as the code that made it."""

from __future__ import annotations

import os
from pathlib import Path

from hatch_lower import __version__
from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import digest_of

PACKAGE = Path(__file__).parents[2]
CODE = (".c", ".json", ".py")


def own_digest(stats: StatCache, package: Path = PACKAGE) -> str:
    """Return the digest of what is installed: of its RECORD, or of every file where it runs from a source tree.

    Args:
        stats: remembers the digests of files.
        package: the package's folder.
    """
    try:
        record = stats.digest_of_record(package.parent / f"{package.name}-{__version__}.dist-info" / "RECORD")
    except OSError:
        return digest_of([__version__, code_of(package, stats)])
    return digest_of([__version__, record])


def code_of(package: Path, stats: StatCache) -> dict[str, str]:
    """Return the digest of each file of code by its path in the package."""
    found = {}
    top = f"{package}/"
    for folder, folders, names in os.walk(package):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            if name.endswith(CODE) and not name.startswith("."):
                path = f"{folder}/{name}"
                found[path[len(top) :]] = stats.digest(path)
    return found
