"""Downloads of checkpoints from the Hugging Face hub, by its library and into its cache.

Only a build that lacks files of a checkpoint imports this module. The hub's list of a commit's files decides: the cache
may hold a part of them, from another program. No answer is trusted: the list has the digest of each file.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from hatch_lower.cache.stats import StatCache
from hatch_lower.config.checkpoint import HUB_SITE, SENTENCES, TIMM, TRANSFORMERS, CheckpointFolder
from hatch_lower.driver.sources import checkpoint_place
from hatch_lower.errors import EntryPointError, FetchError, LowerError
from hatch_lower.frozen import Frozen
from hatch_lower.huggingface.checkpoint import (
    ASSETS,
    CONFIG,
    INDEX,
    MODULES,
    PICKLED,
    WHOLE,
    indexed_weights,
    library_needed,
    missing_weights,
    part_folders,
    read_checkpoint_config,
)
from hatch_lower.runtime.sources import forbidding_variable, hub_folder

SMALL = (*ASSETS, MODULES, INDEX)
PART = re.compile(r"\w[\w.+-]*", re.ASCII)  # of a file's path
CODE_SUFFIX = ".py"
BUSY = (429, 500, 502, 503, 504)
GATED, UNKNOWN, NO_COMMIT = "GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError"
NO_ANSWER = ("LocalEntryNotFoundError", "OfflineModeIsEnabled")
USER = re.compile(r"//[^/@\s]*@")
OTHER_LINES = re.compile(r"\n.*", re.DOTALL)


class HubError(Exception):
    """A hub that does not answer; the text is the reason."""


class ListedFile(Frozen):
    size: int
    git: str  # the digest of git's object
    sha256: str  # empty for a file that git itself has


class HubTarget(Frozen):
    """A checkpoint to download."""

    checkpoint: CheckpointFolder
    repository: str
    commit: str
    where: str  # the setting, for errors

    @property
    def folder(self) -> Path:
        return checkpoint_place(self.checkpoint, Path())

    @property
    def page(self) -> str:
        return f"{HUB_SITE}/{self.repository}"


class HubListing(Frozen):
    target: HubTarget
    folder: Path  # in the hub's cache
    files: Mapping[str, ListedFile]  # by path in the repository


def download_checkpoint(
    target: HubTarget,
    stats: StatCache,
    note: Callable[[str], None] = lambda line: None,
    forbidding: str = "",
    *,
    weights: bool = True,
) -> tuple[str, ...]:
    """Download the files that a build needs, and return their paths in the repository.

    Without an answer of the hub, files in the hub's cache are used: the result is empty, as some may be missing.

    Args:
        forbidding: the setting that forbids connections; empty if the environment decides.
        weights: false for configurations, tokenizer and licence alone.
    """
    folder = target.folder
    if offline := forbidding or forbidding_variable():
        take_cached(target, f"`{offline}` is set", note, weights=weights)
        return ()
    with library_needed(target.checkpoint.library, target.where):
        import huggingface_hub  # noqa: F401
    try:
        with answered(target):
            listed = HubListing(target, folder, list_files(target))
            names = fetch_listed(listed, chosen_small(listed), stats)
            parts = [part.relative_to(folder).as_posix() for part in part_folders(folder) if part != folder]
            names += fetch_listed(listed, [name for part in parts for name in listed_in(listed, part, ASSETS)], stats)
            refuse_early(target)
            if weights:
                wanted = [name for part in (".", *parts) for name in chosen_weights(listed, part)]
                refuse_unlisted_weights(listed, wanted)
                names += fetch_listed(listed, wanted, stats)
    except HubError as error:
        take_cached(target, str(error), note, weights=weights)
        return ()
    return tuple(names)


def refuse_early(target: HubTarget) -> None:
    """Refuse a checkpoint by its configuration, before the download of weights."""
    checkpoint, folder = target.checkpoint, target.folder
    parts = part_folders(folder) if checkpoint.library == SENTENCES else []
    library = TIMM if checkpoint.library == TIMM else TRANSFORMERS  # also of an encoder's parts
    read_checkpoint_config(next(iter(parts), folder), target.where, library, trusts_code=checkpoint.trusts_code)


def list_files(target: HubTarget) -> dict[str, ListedFile]:
    """Return the files of a commit; paths that need quotes are left out."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=endpoint())
    tree = api.list_repo_tree(target.repository, recursive=True, revision=target.commit)
    files = [entry for entry in tree if isinstance(entry, RepoFile)]
    return {
        file.path: ListedFile(int(file.size), str(file.blob_id), str(file.lfs.sha256) if file.lfs else "")
        for file in files
        if all(PART.fullmatch(part) for part in file.path.split("/"))
    }


def endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def listed_in(hub: HubListing, folder: str, patterns: Iterable[str]) -> list[str]:
    """Return the paths of listed files in a folder whose names match a pattern."""
    paths = [PurePosixPath(name) for name in hub.files if PurePosixPath(name).parent == PurePosixPath(folder)]
    return sorted(str(path) for path in paths if any(fnmatchcase(path.name, pattern) for pattern in patterns))


def chosen_small(hub: HubListing) -> list[str]:
    code = [name for name in hub.files if hub.target.checkpoint.trusts_code and name.endswith(CODE_SUFFIX)]
    return sorted({*listed_in(hub, ".", SMALL), *code})


def chosen_weights(hub: HubListing, folder: str) -> list[str]:
    """Return the paths of weights: the parts that the index names, or one file, or all safetensors files."""
    if indexed := indexed_weights(hub.folder / folder):
        return sorted(str(PurePosixPath(folder, name)) for name in indexed)
    return listed_in(hub, folder, [WHOLE]) or listed_in(hub, folder, ["*.safetensors"])


def refuse_unlisted_weights(hub: HubListing, wanted: list[str]) -> None:
    """Refuse a repository without weights in safetensors files, before a download of weights."""
    missing = [name for name in wanted if name not in hub.files]
    if wanted and not missing:
        return
    pickled = listed_in(hub, ".", PICKLED)
    found = f"no file `{missing[0] if missing else '*.safetensors'}` in the repository"
    hint = f"name a commit with such files: {hub.target.page}/tree/main"
    if pickled and not missing:
        found = f"pickled weights alone: {', '.join(f'`{name}`' for name in pickled)}"
        hint = (
            "look for a commit with safetensors files, also in a pull request of the hub's converter:"
            f" {hub.target.page}/discussions; or convert the weights into a folder of the project, if you"
            " trust their author, because a pickle may run code"
        )
    raise EntryPointError(
        "a checkpoint must have its weights in safetensors files", where=hub.target.where, found=found, hint=hint
    )


def fetch_listed(hub: HubListing, names: list[str], stats: StatCache) -> list[str]:
    """Download files that are not in the hub's cache, or damaged there; return the paths."""
    if missing := [name for name in names if not is_intact(hub, name, stats)]:
        # the library takes a file in the cache as it is, unless forced
        damaged = any((hub.folder / name).exists() for name in missing)
        download_files(hub.target, missing, force=damaged)
        if wrong := [name for name in missing if not is_intact(hub, name, stats)]:
            raise FetchError(
                "a file of the checkpoint has other contents than the hub's list says",
                where=hub.target.where,
                found=", ".join(f"`{name}`" for name in wrong),
                hint="build again; if `HF_ENDPOINT` names a mirror, compare with the hub itself",
            )
    return names


def download_files(target: HubTarget, names: list[str], *, force: bool) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    snapshot_download(
        target.repository,
        revision=target.commit,
        allow_patterns=names,
        cache_dir=hub_folder(),
        endpoint=endpoint(),
        force_download=force,
    )


def is_intact(hub: HubListing, name: str, stats: StatCache) -> bool:
    path, listed = hub.folder / name, hub.files.get(name)
    try:
        if listed is None or path.stat().st_size != listed.size:
            return False
        if listed.sha256:
            return stats.digest(path) == listed.sha256
        return git_digest(path.read_bytes()) == listed.git
    except OSError:
        return False


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def take_cached(target: HubTarget, reason: str, note: Callable[[str], None], *, weights: bool) -> None:
    """Accept a snapshot in the hub's cache without an answer of the hub; raise `FetchError` if files are missing."""
    folder = target.folder
    missing = [] if (folder / CONFIG).is_file() or part_folders(folder) else [CONFIG]
    missing += missing_weights(next(iter(part_folders(folder)), folder)) if weights else []
    if missing:
        raise FetchError(
            "the checkpoint is not on this machine, and the hub cannot be asked",
            where=target.where,
            found=f"{reason}; no file {', '.join(f'`{name}`' for name in missing)} in {folder}",
            hint="build once with a connection to the hub; or copy the cache of a machine with the files, and name the"
            " copy in `HF_HUB_CACHE`",
        )
    note(f"{target.checkpoint.folder}: the hub was not asked for missing files, because {reason}")


@contextmanager
def answered(target: HubTarget) -> Iterator[None]:
    """Raise `HubError` for a hub that does not answer, and `FetchError` for any other failure of its library."""
    try:
        yield
    except LowerError:
        raise
    except Exception as error:  # of the library, its dependencies and the server
        raise hub_failure(error, target) from error


def hub_failure(error: Exception, target: HubTarget) -> Exception:
    names = {kind.__name__ for kind in type(error).__mro__}
    status: Any = getattr(getattr(error, "response", None), "status_code", 0)
    # a URL may have a user's name and password
    found = f"{type(error).__name__}: {OTHER_LINES.sub('', USER.sub('//', str(error).strip()))}"
    page = target.page
    if GATED in names:
        what = "the hub does not give out the checkpoint without consent to its conditions"
        hint = f"accept the conditions on {page}, and log in: `hf auth login`, or the variable `HF_TOKEN`"
    elif NO_COMMIT in names:
        what = "the repository has no such commit"
        hint = f"write a commit that `git ls-remote {page}` prints, or that {page}/commits/main lists"
    elif UNKNOWN in names or status == 401:
        what = "the hub has no such repository, or does not show the repository to this user"
        hint = "correct the name; for a private repository log in: `hf auth login`, or the variable `HF_TOKEN`"
    elif status in BUSY or (not status and (names & {*NO_ANSWER, "TransportError", "ConnectionError", "Timeout"})):
        return HubError(f"the hub does not answer ({found})")
    elif isinstance(error, OSError) and error.errno is not None:
        what, found = "a file of the checkpoint cannot be stored", f"{error.strerror}: {error.filename or hub_folder()}"
        hint = "make room there, or name another folder in `HF_HUB_CACHE`"
    else:
        what = "the hub's answer is not that of a hub"
        hint = "build again; if `HF_ENDPOINT` names a mirror, compare with the hub itself"
    return FetchError(what, where=target.where, found=found, hint=hint)
