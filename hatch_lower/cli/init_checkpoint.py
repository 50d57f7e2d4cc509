"""Checkpoints that `hatch-lower init` declares: folders of the project, and commits of the Hugging Face hub."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hatch_lower.cache.store import open_store
from hatch_lower.config.checkpoint import SENTENCES, TIMM, TRANSFORMERS, CheckpointFolder
from hatch_lower.driver.checkpoints import refuse_without_commit
from hatch_lower.driver.hub import HubTarget, download_checkpoint
from hatch_lower.driver.lookup import open_stats
from hatch_lower.errors import ConfigError
from hatch_lower.huggingface.checkpoint import (
    names_of_weights,
    part_folders,
    read_checkpoint_config,
    refuse_unknown_task,
)
from hatch_lower.huggingface.tasks import refuse_lacking_task


def checked_folder(root: Path, given: str, task: str | None, *, trusts_code: bool = False) -> CheckpointFolder:
    """Return a checkpoint, in the project by its relative path; raise `LowerError` if a build would refuse it."""
    refuse_unknown_task(task or "", "`--task`")
    named = CheckpointFolder(given.rstrip("/"), task or "", trusts_code=trusts_code)
    refuse_without_commit(named, root, "`--transformers`")
    if named.hub is not None:
        return downloaded_checkpoint(named, HubTarget(named, *named.hub, "`--transformers`"))
    place = folder_in_project(root, given, "`--transformers`")
    parts = [] if task else part_folders(place)
    first = parts[0] if parts else place
    config = read_checkpoint_config(first, "`--transformers`", trusts_code=trusts_code)
    refuse_lacking_task(config, task or "", "`--task`")
    kind, *_ = config.get("architectures") or ["AutoModel"]
    names_of_weights(first, str(kind), "`--transformers`")
    library = SENTENCES if parts else TRANSFORMERS
    return CheckpointFolder(place.relative_to(root).as_posix(), task or "", library, trusts_code)


def downloaded_checkpoint(named: CheckpointFolder, target: HubTarget) -> CheckpointFolder:
    """Return a checkpoint of the hub with its library, after a download of the files beside the weights."""
    stats = open_stats(open_store(os.environ, lambda line: None))
    if not named.task and named.library != TIMM:  # its configuration may be in a part's folder
        target = replace(target, checkpoint=replace(named, library=SENTENCES))
    download_checkpoint(target, stats, weights=False)
    if named.task:
        config = read_checkpoint_config(target.folder, target.where, trusts_code=named.trusts_code)
        refuse_lacking_task(config, named.task, "`--task`")
    return target.checkpoint if target.checkpoint.library == SENTENCES and part_folders(target.folder) else named


def checked_timm(root: Path, given: str) -> CheckpointFolder:
    named = CheckpointFolder(given.rstrip("/"), library=TIMM)
    refuse_without_commit(named, root, "`--timm`")
    if named.hub is not None:
        return downloaded_checkpoint(named, HubTarget(named, *named.hub, "`--timm`"))
    place = folder_in_project(root, given, "`--timm`")
    read_checkpoint_config(place, "`--timm`", TIMM)
    return CheckpointFolder(place.relative_to(root).as_posix(), library=TIMM)


def folder_in_project(root: Path, given: str, where: str) -> Path:
    place = Path(os.path.realpath(root / given))
    if not place.is_relative_to(root) or place == root:
        raise ConfigError(
            "the checkpoint is not in a folder of the project",
            where=where,
            found=f"{place}, and the project is {root}",
            hint="copy the folder into the project, such as to `models/`",
        )
    return place
