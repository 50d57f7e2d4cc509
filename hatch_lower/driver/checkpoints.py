"""Checkpoints on this machine: folders of the project, and the hub's cache for checkpoints of the hub.

A commit never changes. The build's cache keeps the names and digests of the files that a build needs of a commit, so a
build with the same files in the hub's cache asks no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store
from hatch_lower.canonical import digest_of
from hatch_lower.config.checkpoint import HUB_ID, HUB_SITE, CheckpointFolder, checkpoint_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.lookup import open_stats
from hatch_lower.driver.sources import checkpoint_place
from hatch_lower.errors import ConfigError, ProgramError
from hatch_lower.events import Reporter, make_note_reporter, stage
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.values import Digest, RelativePath
from hatch_lower.frozen import Frozen
from hatch_lower.huggingface.checkpoint import ASSETS, checkpoint_files


class KnownFiles(Frozen):
    """The files that a build needs of a commit."""

    files: Mapping[RelativePath, Digest]


def obtain_checkpoints(root: Path, models: Iterable[ModelSettings], store: Store, reporter: Reporter) -> None:
    """Download the missing files of checkpoints of the hub into the hub's cache.

    Raises:
        ConfigError: for a name of the hub without a commit.
        FetchError: if files are missing here, and cannot be downloaded.
    """
    stats = open_stats(store)
    done: set[CheckpointFolder] = set()
    for model in models:
        checkpoint = checkpoint_of(model.export)
        if checkpoint is None or checkpoint in done:
            continue
        done.add(checkpoint)
        where = checkpoint.where(model.name)
        refuse_without_commit(checkpoint, root, where)
        if checkpoint.hub is None or is_unchanged_here(checkpoint, store, stats):
            continue
        from hatch_lower.driver.hub import HubTarget, download_checkpoint

        note = make_note_reporter(reporter, "checkpoint", model.name)
        forbidding = "HATCH_LOWER_CACHE=frozen" if store.mode == "frozen" else ""
        with stage(reporter, "checkpoint", model.name) as describe:
            names = download_checkpoint(HubTarget(checkpoint, *checkpoint.hub, where), stats, note, forbidding)
            describe(f"{checkpoint.folder}: {len(names)} files")
        if names:
            place = checkpoint_place(checkpoint, root)
            known = KnownFiles({name: stats.digest(place / name) for name in sorted(names)})
            subject = {"kind": "checkpoint", "subject": checkpoint.folder}
            store.put(known_key(checkpoint), subject, encode(known), shared=False)
    if store.writes and any(checkpoint.hub is not None for checkpoint in done):
        stats.save()


def link_checkpoint(model: ModelSettings, folder: Path) -> Path | None:
    """Link the files of a model's checkpoint of the hub below a folder; return the new folder, `None` without such a
    checkpoint.
    """
    # other programs add files to a folder in the hub's cache: its listing must not be an input of the export
    checkpoint = checkpoint_of(model.export)
    if checkpoint is None or checkpoint.hub is None:
        return None
    place, linked = checkpoint_place(checkpoint, Path()).absolute(), folder / "checkpoint"
    for path in checkpoint_files(place, code=checkpoint.trusts_code):
        link = linked / path.relative_to(place)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return linked


def is_unchanged_here(checkpoint: CheckpointFolder, store: Store, stats: StatCache) -> bool:
    """Return whether the hub's cache has all files of a checkpoint, unchanged since the download."""
    try:
        known: KnownFiles = decode(KnownFiles, store.find(known_key(checkpoint), shared=False), "")
    except ProgramError:
        return False
    place = checkpoint_place(checkpoint, Path())
    try:
        return bool(known.files) and all(stats.digest(place / name) == digest for name, digest in known.files.items())
    except OSError:
        return False


def known_key(checkpoint: CheckpointFolder) -> str:
    return digest_of(["checkpoint", checkpoint.folder, checkpoint.trusts_code, list(ASSETS)])


def refuse_without_commit(checkpoint: CheckpointFolder, root: Path, where: str) -> None:
    """Refuse a name of the hub without a commit; a folder of the project may have such a name."""
    match = HUB_ID.fullmatch(checkpoint.folder)
    if match is None or checkpoint.hub is not None or (root / checkpoint.folder).is_dir():
        return
    repository, revision = match["repository"], match["revision"]
    page = f"{HUB_SITE}/{repository}"
    found = f"no folder `{checkpoint.folder}` in the project"
    if revision is not None:
        found += f", and `{revision}` is not the 40 hexadecimal digits of a commit"
    raise ConfigError(
        "the setting names neither a folder of the project nor a commit of the Hugging Face hub",
        where=where,
        found=found,
        hint=f"correct the folder, or write `{repository}@<commit>` with the commit that"
        f" `git ls-remote {page} {revision or 'HEAD'}` prints, or that {page}/commits/main lists: a branch or a tag may"
        " move",
    )
