"""The SBOM of a wheel (PEP 770): hatchling puts the file into `.dist-info/sboms`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hatchling.__about__ import __version__ as hatchling_version

from hatch_lower.cache.store import Store
from hatch_lower.config.settings import Settings
from hatch_lower.driver.inputs.machine import find_distributions
from hatch_lower.driver.sbom import Cards, SbomInputs
from hatch_lower.errors import PackageError
from hatch_lower.format.results import SBOM_FILE, BuildResult
from hatch_lower.hatch.wheel import fixed_time

if TYPE_CHECKING:
    from hatch_lower.hatch.project import BuildData

LIBRARY = "cyclonedx-python-lib"


def check_hatchling(build_data: BuildData) -> None:
    """Refuse a hatchling that packages no SBOMs, before any model is lowered."""
    if "sbom_files" not in build_data:
        raise PackageError(
            "this hatchling cannot put an SBOM into a wheel",
            where="build-system.requires",
            found=f"hatchling {hatchling_version}",
            hint='require a newer hatchling: `requires = ["hatchling>=1.28", …]`',
        )


def add_sbom(
    build_data: BuildData, settings: Settings, cards: Cards, result: BuildResult, work: Path, store: Store
) -> None:
    path = work / SBOM_FILE
    path.write_text(build_sbom(settings, cards, result, store), encoding="utf-8", newline="\n")
    build_data["sbom_files"].append(str(path))


def build_sbom(settings: Settings, cards: Cards, result: BuildResult, store: Store) -> str:
    tools = {"hatchling": hatchling_version, LIBRARY: find_library_version(LIBRARY)}
    subject = SbomInputs(settings, cards, result, tools, platform.python_version(), fixed_time(os.environ))
    return remembered_text(subject, store)


def remembered_text(subject: SbomInputs, store: Store) -> str:
    """Return the document from the cache, or make and store the document."""
    key = subject.digest()
    known = store.find(key)
    if known is not None and "document" in known:
        return str(known["document"])
    from hatch_lower.driver.sbom.document import document_text  # a slow import, explained there

    text = document_text(subject)
    store.put(key, {"kind": "sbom", "subject": subject.settings.name}, {"document": text})
    return text


def find_library_version(library: str) -> str:
    # found by the name of the folder: reading the metadata would take 2 ms of every build
    start = library.partition("-")[0]
    listings = ((entry, os.listdir(entry)) for entry in sys.path if os.path.isdir(entry))
    named = ((entry, [name for name in names if name.startswith(start)]) for entry, names in listings)
    distribution = find_distributions(named).get(library)
    return distribution.version if distribution is not None else importlib.metadata.version(library)
