"""With which versions of torch all of this room was tried. It imports no torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

TABLE = Path(__file__).with_name("tried.json")


def tried_versions() -> list[str]:
    """Return the minor versions, oldest first, that every private interface was tried with."""
    tried = [set(versions) for versions in json.loads(TABLE.read_bytes()).values()]
    return sorted(set.intersection(*tried), key=numbers)


def why_untried(version: str) -> str:
    """Return how a torch is newer than all that were tried, or an empty string."""
    tried = tried_versions()
    if numbers(version) <= numbers(tried[-1]):
        return ""
    return f"torch {version} is newer than those that hatch-lower was tried with ({', '.join(tried)})"


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a minor version, of any version of it."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
