"""A model that is a checkpoint in a folder of the project: its settings, and its name as an export."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hatch_lower.frozen import Frozen

TRANSFORMERS, SENTENCES = LIBRARIES = ("transformers", "sentence-transformers")
# `transformers:models/reviews`, `transformers:models/reviews#text-classification`
EXPORT = re.compile(rf"(?P<library>{'|'.join(LIBRARIES)}):(?P<folder>[^#]+)(#(?P<task>[a-z0-9-]+))?")


class CheckpointFolder(Frozen):
    folder: str  # relative to the project, posix; or absolute
    task: str = ""  # empty: the architecture of the configuration decides
    library: str = TRANSFORMERS

    @property
    def export(self) -> str:
        """The checkpoint in place of an entry point."""
        return f"{self.library}:{self.folder}{f'#{self.task}' if self.task else ''}"


def absolute_export(export: str, root: Path) -> str:
    """Return an export whose folder does not depend on the working directory."""
    checkpoint = checkpoint_of(export)
    return export if checkpoint is None else replace(checkpoint, folder=str(root / checkpoint.folder)).export


def checkpoint_of(export: str) -> CheckpointFolder | None:
    """Return the checkpoint that an export names; `None` for an entry point."""
    match = EXPORT.fullmatch(export)
    return CheckpointFolder(match["folder"], match["task"] or "", match["library"]) if match else None
