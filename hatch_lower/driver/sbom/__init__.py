"""The inputs of an SBOM. A build with unchanged inputs reuses the document by their digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from hatch_lower import __version__
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import Settings
from hatch_lower.format.results import BuildResult
from hatch_lower.frozen import Frozen

SCHEMA = 4  # version of this code's document, not of CycloneDX
FOLDER = "sboms"  # folder in `.dist-info`, by PEP 770


Cards: TypeAlias = Mapping[str, Mapping[str, Any]]  # model to CycloneDX's `modelCard`


class SbomInputs(Frozen):
    settings: Settings  # of the build
    cards: Cards
    result: BuildResult  # of the build: the models and their files
    # name to version of Python distributions, with `hatchling` and the SBOM library;
    # hatch-lower and torch are known otherwise
    tools: Mapping[str, str]
    python: str  # the interpreter's version
    # seconds since 1970; `None` without a fixed time: the document has no time then
    timestamp: int | None = None

    def digest(self) -> str:
        """Return the sha256 over all inputs of the document; paths on this machine are no inputs."""
        settings = self.settings
        models = [
            [asdict(model), self.cards.get(model.name), result.entry, result.origin, dict(result.tools), result.torch]
            for model, result in zip(settings.models, self.result.models, strict=True)
        ]
        files = [[file.path, file.size, file.sha256] for file in self.result.payload]
        about = [
            settings.name,
            settings.version,
            sorted(settings.extras),
            dict(self.tools),
            self.python,
            self.timestamp,
        ]
        return digest_of(["sbom", SCHEMA, __version__, about, models, files])
