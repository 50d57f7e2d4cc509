"""One side of a benchmark: a wheel, an installed model, or a folder, with its models where they can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hatch_lower.build.contents import Contents
from hatch_lower.runtime.files import PackagedFolder


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What is known of the build of a side that was built here."""

    levels: Mapping[str, int]  # model to the level of reuse of its build: 0 where it was lowered
    compilations: Mapping[str, int]  # model to the number of partitions that a backend lowered


@dataclass(frozen=True, slots=True)
class Side:
    title: str  # `digits-1.0.0-py3-none-any.whl`, or what else names it to people
    contents: tuple[Contents, ...]  # as `diff` reads them
    folders: Mapping[str, PackagedFolder]  # model to the folder that it is loaded from; a wheel's is unpacked
    wheel: Path | None = None
    source: Path | None = None  # the project's folder that it was built from, if that is at hand
    build: BuildFacts | None = None
