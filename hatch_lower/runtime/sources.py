"""Where files of weights are on this machine: in folders that know them by digest, and in huggingface's cache.

Nothing here opens a connection, reads contents or imports what downloads.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hatch_lower.format.weights import Source

FOLDERS = "HATCH_LOWER_WEIGHTS"  # folders, separated as those of `PATH` are; downloads go into the first
OFFLINE = ("HATCH_LOWER_OFFLINE", "HF_HUB_OFFLINE")  # which say that no connection is to be opened
SUFFIX = ".safetensors"
HUB = "hf://"


class HubFile(NamedTuple):
    repository: str
    revision: str
    path: str


def local_copy(source: Source, environment: Mapping[str, str] = os.environ) -> Path | None:
    return next((path for path in places(source, environment) if size_of(path) == source.size), None)


def places(source: Source, environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    # in the order in which they are looked at
    for folder in weights_folders(environment):
        yield folder / file_name(source.sha256)
    if source.url.startswith(HUB):
        yield hub_path(hub_file(source.url), environment)


def weights_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    named = [Path(text) for text in environment.get(FOLDERS, "").split(os.pathsep) if text]
    return named or [cache_home(environment) / "hatch-lower" / "weights"]


def cache_home(environment: Mapping[str, str]) -> Path:
    # on every system, as huggingface_hub has it
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def file_name(sha256: str) -> str:
    return sha256 + SUFFIX


def size_of(path: Path) -> int | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def hub_file(url: str) -> HubFile:
    """Return what `hf://org/name@revision/path` means."""
    repository, _, rest = url.removeprefix(HUB).partition("@")
    revision, _, path = rest.partition("/")
    return HubFile(repository, revision, path)


def hub_path(file: HubFile, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where huggingface's cache has a file, of which the revision is a commit."""
    repository = f"models--{file.repository.replace('/', '--')}"
    return hub_folder(environment) / repository / "snapshots" / file.revision / file.path


def hub_folder(environment: Mapping[str, str]) -> Path:
    # as huggingface_hub finds it, which takes long to import
    home = environment.get("HF_HOME") or str(cache_home(environment) / "huggingface")
    hub = environment.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(environment.get("HF_HUB_CACHE") or hub)))


def is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "on", "yes", "true")
