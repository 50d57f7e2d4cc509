"""A model's files against the RECORD that an installer wrote, or that a wheel brings: the same list, the same digests.

The manifest lists every file of a model with its sha256, and so does RECORD. The two are compared with each other, so
each file is read once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.canonical import sha256_file
from hatch_lower.errors import ProgramError
from hatch_lower.frozen import Frozen

if TYPE_CHECKING:
    from hatch_lower.format.manifest import FileEntry


class Recorded(Frozen):
    """What a RECORD says of the files in one `_lowered` folder."""

    owner: str  # whose RECORD it is, for messages
    digests: Mapping[str, str]  # path in the folder → sha256 in hexadecimal; empty where RECORD has none

    def faults(self, folder: Path, model: str, files: Iterable[FileEntry]) -> Iterator[ProgramError]:
        """Yield what is wrong with the files of one model, beside the contents of those that the manifest lists."""
        listed = {entry.path: entry.sha256 for entry in files}
        if not self.digests.get("manifest.json"):
            yield self._fault(folder / "manifest.json", "it has no sha256 of this file")
        for path, sha256 in listed.items():
            recorded = self.digests.get(path)
            if recorded is None:
                yield self._fault(folder / path, "it does not list this file, which the manifest lists")
            elif recorded != sha256:
                found = "it has another sha256 than the manifest" if recorded else "it has no sha256 of this file"
                yield self._fault(folder / path, found)
        for path, recorded in self.digests.items():
            if path.startswith(f"{model}/") and path not in listed:
                found = self._difference(folder / path, recorded)
                if found:
                    yield self._fault(folder / path, found)

    def _difference(self, path: Path, recorded: str) -> str:
        try:
            if not path.is_file():
                return "it lists this file, which is missing"
            return "" if recorded and sha256_file(path) == recorded else "it has another sha256 of this file"
        except (OSError, ValueError) as error:
            return f"it lists this file, which cannot be read: {type(error).__name__}: {error}"

    def _fault(self, path: Path, found: str) -> ProgramError:
        return ProgramError(
            f"the RECORD of {self.owner} does not vouch for a packaged program file",
            where=str(path),
            found=found,
            hint="install the distribution again; if that does not help, build its wheel again",
        )


def record_digest(text: str) -> str:
    """Return the hexadecimal sha256 of RECORD's `sha256=<base64 without padding>`; empty for anything else."""
    algorithm, _, value = text.partition("=")
    try:
        digest = base64.urlsafe_b64decode(f"{value}{'=' * (-len(value) % 4)}")
    except (binascii.Error, ValueError):
        return ""
    return digest.hex() if algorithm == "sha256" else ""
