"""Which directory the cache is in, and whether it is one that native code may be loaded from."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

__all__ = ["default_directory", "reason_to_distrust"]


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return `HATCH_LOWER_CACHE_DIR`, or the platform's cache directory for this user."""
    named = environment.get("HATCH_LOWER_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("hatch-lower", appauthor=False))


def reason_to_distrust(directory: Path) -> str | None:
    """Return why somebody else may have put files into the cache, or `None`; what is not there is trusted.

    The directory's owner, who must be this user or root, may let a group write to it. Where everybody can, as in
    `/tmp`, what is in it must be this user's as well.
    """
    if not hasattr(os, "getuid"):
        return None
    for folder in (directory, directory / "v1"):
        try:
            found = folder.stat()
        except OSError:
            return None
        if found.st_uid not in (os.getuid(), 0):
            return f"{folder} belongs to another user"
        if not found.st_mode & stat.S_IWOTH:
            return None
        if not found.st_mode & stat.S_ISVTX:
            return f"every user may write to {folder}"
    return None
