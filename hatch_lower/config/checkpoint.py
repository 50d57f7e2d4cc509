"""A model that is a checkpoint, in a folder of the project or of the Hugging Face hub: its settings, and its name as an
export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hatch_lower.config.tables import ON_THE_HUB, ModelTable
from hatch_lower.frozen import Frozen
from hatch_lower.urls import COMMIT

TRANSFORMERS, SENTENCES, TIMM = LIBRARIES = ("transformers", "sentence-transformers", "timm")
CODE = "?trust-remote-code"
# `transformers:models/reviews`, `transformers:models/reviews#text-classification`,
# `transformers:org/name@<commit>?trust-remote-code`
EXPORT = re.compile(
    rf"(?P<library>{'|'.join(LIBRARIES)}):(?P<folder>[^#]+?)(?P<code>{re.escape(CODE)})?(#(?P<task>[a-z0-9-]+))?"
)
HUB_SITE = "https://huggingface.co"
HUB_ID = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^/]*))?", re.ASCII)


class HubCommit(NamedTuple):
    repository: str  # `org/name`
    commit: str


class CheckpointFolder(Frozen):
    folder: str  # relative to the project, posix; or absolute; or `org/name@<commit>` of the hub
    task: str = ""  # empty: the architecture of the configuration decides
    library: str = TRANSFORMERS
    trusts_code: bool = False  # whether the build runs code of the checkpoint

    @property
    def export(self) -> str:
        """The checkpoint in place of an entry point."""
        code, task = CODE if self.trusts_code else "", f"#{self.task}" if self.task else ""
        return f"{self.library}:{self.folder}{code}{task}"

    @property
    def hub(self) -> HubCommit | None:
        """The place on the hub; `None` for a folder."""
        match = HUB_ID.fullmatch(self.folder)
        if match is None or not COMMIT.fullmatch(match["revision"] or ""):
            return None
        return HubCommit(match["repository"], match["revision"])

    def where(self, model: str) -> str:
        """Return the setting, for errors."""
        return f'model `{model}`, `{self.library} = "{self.folder}"`'


def absolute_export(export: str, root: Path) -> str:
    """Return an export whose folder does not depend on the working directory."""
    checkpoint = checkpoint_of(export)
    if checkpoint is None or checkpoint.hub is not None:
        return export
    return replace(checkpoint, folder=str(root / checkpoint.folder)).export


def checkpoint_of(export: str) -> CheckpointFolder | None:
    """Return the checkpoint that an export names; `None` for an entry point."""
    match = EXPORT.fullmatch(export)
    if match is None:
        return None
    return CheckpointFolder(match["folder"], match["task"] or "", match["library"], match["code"] is not None)


def declared_checkpoint(override: ModelTable) -> CheckpointFolder | None:
    """Return the checkpoint that a model's table names; `None` for a table without a checkpoint."""
    sources = declaring_settings(override)
    library = next((name for name in LIBRARIES if name in sources), "")
    if not library:
        return None
    return CheckpointFolder(
        sources[library].rstrip("/"), override.task or "", library, override.trust_remote_code is True
    )


def declaring_settings(override: ModelTable) -> dict[str, str]:
    """Return the settings of a table that declare a model, by name."""
    given = {
        "export": override.export,
        TRANSFORMERS: override.transformers,
        SENTENCES: override.sentence_transformers,
        TIMM: override.timm,
    }
    return {name: value for name, value in given.items() if value is not None}


def declaration_problems(override: ModelTable, here: str) -> Iterator[str]:
    """Yield a sentence for each setting of the table at `here` that does not fit another one."""
    if len(sources := declaring_settings(override)) > 1:
        yield f"`{here}` has {' and '.join(f'`{each}`' for each in sources)}; keep one of them"
    if override.task is not None and override.transformers is None:
        yield f"`{here}.task` is the task of a checkpoint, and the model has no `transformers`"
    if override.trust_remote_code and not sources.keys() & {TRANSFORMERS, SENTENCES}:
        yield (
            f"`{here}.trust-remote-code` is for the code of a checkpoint, and the model has no `{TRANSFORMERS}` and no"
            f" `{SENTENCES}`"
        )


def place_problems(override: ModelTable, default: Sequence[str], model: str, here: str) -> Iterator[str]:
    """Yield a sentence if the weights of a model shall stay on the hub, and the model is no checkpoint of the hub."""
    weights = default if override.weights is None else override.weights
    checkpoint = declared_checkpoint(override)
    if ON_THE_HUB in weights and (checkpoint is None or checkpoint.hub is None):
        yield (
            f'`weights` is `"{ON_THE_HUB}"`, and the model `{model}` is no checkpoint of the hub: write'
            f' `transformers = "org/name@<commit>"`, or other `weights` in `{here}`'
        )
