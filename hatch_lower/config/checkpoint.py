"""A model that is a checkpoint in a folder of the project: its settings, and its name as an export."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hatch_lower.config.tables import ModelTable
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


def declaring_settings(override: ModelTable) -> dict[str, str]:
    """Return the settings of a table that declare a model, by name."""
    given = {
        "export": override.export,
        TRANSFORMERS: override.transformers,
        SENTENCES: override.sentence_transformers,
    }
    return {name: value for name, value in given.items() if value is not None}


def declaration_problems(override: ModelTable, here: str) -> Iterator[str]:
    """Yield a sentence for each setting of the table at `here` that does not fit another one."""
    if len(sources := declaring_settings(override)) > 1:
        yield f"`{here}` has {' and '.join(f'`{each}`' for each in sources)}; keep one of them"
    if override.task is not None and override.transformers is None:
        yield f"`{here}.task` is the task of a checkpoint, and the model has no `transformers`"
