"""The installed size of a recipe's requirements: the files of the distributions and of their dependencies."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from pathlib import Path

from hatch_lower.config.requirements import distributions_required, read_requirement

CACHED = ".pyc"  # written by Python at the first import, or by an installer

# bytes by normal name; `None` for a distribution that is not installed here, whose dependencies are unknown
Sizes = dict[str, int | None]


def installed_sizes(requirements: Collection[str], known: Sizes) -> Sizes:
    """Return the sizes of the distributions that requirements install, the largest first; fill `known`."""
    # a wheel may have malformed requirements
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
    except OSError:  # removed by its owner
        return 0
