"""Installed distributions, from the names of their folders: `torch-2.13.0.dist-info` says most of what is needed.

Nothing is imported and no metadata is read for it, as it is done in every build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hatch_lower.cache.stats import StatCache
from hatch_lower.canonical import sha256_bytes

SEPARATORS = re.compile(r"[-_.]+")
PYTHON_TAG = re.compile(r"-py\d[\d.]*$")
RECORDS = ("RECORD", "METADATA", "PKG-INFO")
"""Files that stand for a distribution's contents: the first that it has. An `.egg-info` can be a file itself."""


class Distribution(NamedTuple):
    """An installed distribution.

    Args:
        name: normalised: `typing-extensions`.
        version: as its folder's name has it.
        entry: the entry of the search path in which it was found.
        information: its `.dist-info` or `.egg-info` folder, or file.
    """

    name: str
    version: str
    entry: str
    information: str


def find_distributions(listings: Iterable[tuple[str, Sequence[str]]]) -> Mapping[str, Distribution]:
    """Return the installed distributions by normalised name; the first on the search path wins.

    Args:
        listings: each entry of the search path, in order, and the names in it.
    """
    found: dict[str, Distribution] = {}
    for entry, names in listings:
        for name in sorted(names):
            distribution = distribution_in(entry, name)
            if distribution is not None:
                found.setdefault(distribution.name, distribution)
    return found


def distribution_in(entry: str, name: str) -> Distribution | None:
    """Return the distribution that a name in an entry of the search path stands for, if it does for any."""
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("dist-info", "egg-info") or not stem:
        return None
    if suffix == "egg-info":
        stem = PYTHON_TAG.sub("", stem)
    title, _, version = stem.rpartition("-") if "-" in stem else (stem, "", "")
    return Distribution(SEPARATORS.sub("-", title).lower(), version, entry, f"{entry}/{name}")


def mark_of_distribution(distribution: Distribution | None, stats: StatCache) -> str:
    """Return `<version> <digest of RECORD>`, as it is recorded; empty if it is not installed.

    Two installations of one wheel have the same, whoever installed it and wherever.
    """
    if distribution is None:
        return ""
    paths = (*(f"{distribution.information}/{name}" for name in RECORDS), distribution.information)
    path = next((each for each in paths if os.path.isfile(each)), None)
    if path is None:
        return f"{distribution.version} "
    digest = stats.digest_of_record(path) if path == paths[0] else stats.digest(path)
    return f"{distribution.version} {digest}"


def marks_of_project(name: str, version: str, metadata: str) -> Mapping[str, str]:
    """Return the project's own normalised name, and what is recorded of it where its metadata was read."""
    return {SEPARATORS.sub("-", name).lower(): f"{version} {sha256_bytes(metadata.encode())}"}


def installed_files(distributions: Iterable[Distribution]) -> Mapping[str, str]:
    """Return each installed file's absolute path and the name of the distribution that installed it.

    It reads every RECORD, so it is for the export's process only.
    """
    owners: dict[str, str] = {}
    for distribution in distributions:
        try:
            with open(f"{distribution.information}/RECORD", encoding="utf-8", newline="") as file:
                rows = file.read().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for row in rows:
            path = row.rsplit(",", 2)[0]
            if path.startswith('"'):
                path = path[1:-1].replace('""', '"')
            if path.startswith((".", "/")):
                path = os.path.normpath(os.path.join(distribution.entry, path))
            else:
                path = f"{distribution.entry}/{path}"
            owners.setdefault(path, distribution.name)
    return owners
