"""Lowered candidates: lowered and verified as in a build, with exact figures."""

from __future__ import annotations

import importlib.metadata
import math
import zlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from packaging.utils import canonicalize_name

from hatch_lower.cache.store import Store
from hatch_lower.cli.measure.apart import ProcessSettings, process_settings
from hatch_lower.cli.measure.errors import measure_errors
from hatch_lower.cli.measure.lowered_again import lowered_again
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.cli.measure.tune.candidates import TunedCandidate, settings_of_candidate
from hatch_lower.config.requirements import read_requirement
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.driver.context import ProjectView
from hatch_lower.errors import LowerError, VerificationError
from hatch_lower.format.evidence import MeasuredAccuracy
from hatch_lower.format.manifest import RecipeEntry
from hatch_lower.frozen import Frozen

DOCUMENT = ".json"  # files that a wheel has compressed
LINES = 3  # of an error's words in the reason of a candidate that is left out


class LoweredCandidate(Frozen):
    candidate: TunedCandidate
    side: BenchSide
    folder: Path  # the `_lowered` folder
    program: str  # digest of the plan, which names partitions by their digests
    wheel_bytes: int
    installed_bytes: int
    accuracy: MeasuredAccuracy | None
    versions: Mapping[str, str]
    process_settings: ProcessSettings


class LeftOutError(Exception):
    """A candidate that cannot be chosen; the text has the reason."""


def lowered_candidate(
    settings: Settings, model: ModelSettings, candidate: TunedCandidate, view: ProjectView, store: Store
) -> AbstractContextManager[BenchSide]:
    own = settings_of_candidate(settings, model, candidate)
    return lowered_again(own, view, store, candidate.name, reuses=True)


def examined(
    candidate: TunedCandidate, model: str, side: BenchSide, seconds: float, sizes: Sizes, shared: SharedFiles
) -> LoweredCandidate:
    """Return a lowered candidate with its figures; raise `LeftOutError` if the candidate is not verified."""
    folder = side.folders[model]
    if (constants := folder.manifest.models[model].constants) is not None:
        shared.share(folder.path / constants.path, constants.sha256)
    manifest = folder.manifest
    entry = manifest.models[model].recipes[candidate.name]
    if entry.not_compared:
        raise LeftOutError(f"not verified: {entry.not_compared}")
    files = [path for path in sorted(folder.path.rglob("*")) if path.is_file()]
    return LoweredCandidate(
        candidate,
        side,
        folder.path,
        entry.plan.sha256,
        wheel_bytes=sum(map(packed_size, files)),
        installed_bytes=sum(path.stat().st_size for path in files) + sizes.of_all(entry.requirements),
        accuracy=accuracy_of(side, model, candidate, entry, seconds),
        versions={"torch": manifest.torch, **manifest.tools},
        process_settings=process_settings(side.plan(model, candidate.name).delegates),
    )


def accuracy_of(
    side: BenchSide, model: str, candidate: TunedCandidate, entry: RecipeEntry, seconds: float
) -> MeasuredAccuracy | None:
    """Return the model's metric, or else the largest error of any method; `None` without packaged check inputs."""
    found = measure_errors(side.folders, candidate.name, seconds, {candidate.name: candidate.recipe.imports})
    errors = [metrics["error"] for subject, metrics in found.figures.items() if subject.model == model]
    if math.inf in errors:
        raise LeftOutError("not verified: outputs without a finite difference from eager's")
    if entry.metric is not None:
        return MeasuredAccuracy("metric", entry.metric.value, entry.metric.eager)
    return MeasuredAccuracy("error", max(errors)) if errors else None


def packed_size(path: Path) -> int:
    """Return the bytes of a file in the wheel, which compresses documents only."""
    return len(zlib.compress(path.read_bytes())) if path.suffix == DOCUMENT else path.stat().st_size


class SharedFiles:
    """Files of weights, which all candidates have: on the disk only once."""

    def __init__(self) -> None:
        self._known: dict[str, Path] = {}  # by digest

    def share(self, path: Path, sha256: str) -> None:
        """Replace a file by a link to an equal file, or keep the file for others."""
        first = self._known.setdefault(sha256, path)
        if first == path or not first.exists():
            self._known[sha256] = path
            return
        link = path.with_suffix(".link")
        with suppress(OSError):  # a file system without links, or another file system: the file stays
            link.hardlink_to(first)
            link.replace(path)


class Sizes:
    """Sizes of installed distributions."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of_all(self, requirements: Iterable[str]) -> int:
        """Return the bytes of the installed distributions that requirements bring, with their own requirements."""
        seen: set[str] = set()
        waiting = list(requirements)
        total = 0
        while waiting:
            requirement = read_requirement(waiting.pop())
            if requirement is None or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
                continue
            name = canonicalize_name(requirement.name)
            if name in seen:
                continue
            seen.add(name)
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            waiting += distribution.requires or ()
            if name not in self._known:
                self._known[name] = sum(file.size or 0 for file in distribution.files or ())
            total += self._known[name]
        return total


def left_out_reason(error: LowerError) -> str:
    """Return the reason of a candidate that a build refuses, in a line."""
    words = "not verified" if isinstance(error, VerificationError) else "refused"
    found = "; ".join(line.strip() for line in error.found.split("\n")[:LINES] if line.strip())
    return ": ".join(filter(None, [words, error.what, found]))
