"""What an SBOM is made from. A build in which none of it has changed has the document already, by its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from hatch_lower import __version__
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import Settings
from hatch_lower.format.results import BuildResult
from hatch_lower.frozen import Frozen

SCHEMA = 3  # counts the forms of the document: of this code's, not of CycloneDX
FOLDER = "sboms"  # of `.dist-info`, by PEP 770


Cards: TypeAlias = Mapping[str, Mapping[str, Any]]  # model to CycloneDX's `modelCard`


class Subject(Frozen):
    settings: Settings  # of the build
    cards: Cards
    result: BuildResult  # of the build: the models and their files
    # name to version of the Python distributions at work, `hatchling` and what writes the document among them;
    # hatch-lower and torch are known
    tools: Mapping[str, str]
    python: str  # the interpreter's version
    # seconds since 1970; `None` where nobody has fixed a time, for then the document has none
    timestamp: int | None = None

    def digest(self) -> str:
        """Return the sha256 over all that shapes the document; where files lie on this machine does not."""
        settings = self.settings
        models = [
            [asdict(model), self.cards.get(model.name), result.entry, result.origin, dict(result.tools), result.torch]
            for model, result in zip(settings.models, self.result.models, strict=True)
        ]
        files = [[file.path, file.size, file.sha256] for file in self.result.payload]
        about = [settings.name, settings.version, dict(self.tools), self.python, self.timestamp]
        return digest_of(["sbom", SCHEMA, __version__, about, models, files])
