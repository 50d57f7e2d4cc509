"""What installing a recipe's requirements weighs: the files of their distributions, and of those that they require."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from pathlib import Path

from hatch_lower.config.requirements import distributions_required, read_requirement

CACHED = ".pyc"  # Python writes them when modules are imported, and an installer may, too

Sizes = dict[str, int | None]  # bytes by normal name; `None` for what is not installed here, and may bring others


def installed_sizes(requirements: Collection[str], known: Sizes) -> Sizes:
    """Return what the distributions weigh that requirements bring, the heaviest first; `known` grows meanwhile."""
    # a wheel that is looked at may say anything
    unreadable = [text for text in requirements if read_requirement(text) is None]
    names = distributions_required(text for text in requirements if text not in unreadable)
    known.update((name, installed_size(name)) for name in names if name not in known)
    sizes = {name: known[name] for name in sorted(names, key=lambda name: (-(known[name] or 0), name))}
    return {**sizes, **dict.fromkeys(unreadable)}


def installed_size(name: str) -> int | None:
    """Return how many bytes the files of an installed distribution have, without compiled modules."""
    try:
        files = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return sum(size_on_disk(Path(str(file.locate()))) for file in files or () if file.suffix != CACHED)


def size_on_disk(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # its owner removed it
        return 0
