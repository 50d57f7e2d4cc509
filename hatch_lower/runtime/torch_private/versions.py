"""The torch versions with which this folder's private names were tried. Does not import torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

TABLE = Path(__file__).with_name("tried.json")


def tried_versions() -> list[str]:
    """Return the minor versions with which every private name was tried, oldest first."""
    tried = [set(versions) for versions in json.loads(TABLE.read_bytes()).values()]
    return sorted(set.intersection(*tried), key=numbers)


def why_untried(version: str) -> str:
    """Return a message if a torch version is newer than all tried versions, or an empty string."""
    tried = tried_versions()
    if numbers(version) <= numbers(tried[-1]):
        return ""
    return f"torch {version} is newer than all versions that hatch-lower was tried with ({', '.join(tried)})"


def numbers(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
