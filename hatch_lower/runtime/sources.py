"""Places of weights on this machine: folders with files named by digest or by publication, and the hub's cache.

This module opens no connection and imports no module that downloads. It reads files with published names only, because
another file of the same size may have such a name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from hatch_lower.canonical import is_file_of
from hatch_lower.errors import FetchError

if TYPE_CHECKING:
    from hatch_lower.format.weights import WeightsSource

FOLDERS = "HATCH_LOWER_WEIGHTS"  # folders, separated as in `PATH`; downloads go into the first folder
FETCH = "HATCH_LOWER_FETCH"
MODES = ("ask", "always", "never")  # `ask`: a command or an argument asks for a download
HUB_OFFLINE = "HF_HUB_OFFLINE"
SUFFIX = ".safetensors"
HUB = "hf://"


class HubFile(NamedTuple):
    repository: str
    revision: str
    path: str


def local_copy(source: WeightsSource) -> Path | None:
    """Return the path of a source's file: the first of its size, under a published name also of its digest."""
    if found := next((path for path in list_fixed_paths(source) if size_of(path) == source.size), None):
        return found
    published = (path for path in list_published_paths(source) if size_of(path) == source.size)
    return next((path for path in published if is_file_of(path, source.size, source.sha256)), None)


def list_search_paths(source: WeightsSource) -> Iterator[Path]:
    # in search order
    yield from list_fixed_paths(source)
    yield from list_published_paths(source)


def list_fixed_paths(source: WeightsSource) -> Iterator[Path]:
    """Give the paths that the digest or the commit names, where no other file is."""
    for folder in weights_folders():
        yield folder / file_name(source.sha256)
    if source.url.startswith(HUB):
        yield hub_path(hub_file(source.url))


def list_published_paths(source: WeightsSource) -> Iterator[Path]:
    """Give the paths under the published name, in the folders that the user has named."""
    names = [file_name_in_url(source.url)]
    if source.url.startswith(HUB):  # of a file in a folder of its repository
        names.insert(0, hub_file(source.url).path)
    safe = [name for name in dict.fromkeys(names) if "\0" not in name and not {"", "..", "."} & {*name.split("/")}]
    for folder in named_folders():
        yield from (path for name in safe if (path := folder / name) != folder / file_name(source.sha256))


def weights_folders() -> list[Path]:
    return named_folders() or [cache_home() / "hatch-lower" / "weights"]


def named_folders() -> list[Path]:
    return [Path(text) for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]


def cache_home() -> Path:
    """Return the user's folder of caches, by the rule of huggingface_hub. Raises `FetchError` without a home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if folder.startswith("~"):
        raise FetchError(
            "there is no folder for weights",
            found="the environment has no `HOME`, and the user has no entry in the password database",
            hint=f"name the folder of the weights in `{FOLDERS}`",
        )
    return Path(folder).expanduser()


def file_name(sha256: str) -> str:
    return sha256 + SUFFIX


def size_of(path: Path) -> int | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def file_name_in_url(url: str) -> str:
    path = url.partition("?")[0]
    if "://" in path:
        path = path.partition("://")[2].partition("/")[2]
    return unquote(path).rpartition("/")[2]


def hub_file(url: str) -> HubFile:
    """Parse `hf://org/name@revision/path`."""
    repository, _, rest = url.removeprefix(HUB).partition("@")
    revision, _, path = rest.partition("/")
    return HubFile(repository, revision, path)


def hub_path(file: HubFile) -> Path:
    """Return the path of a file in the cache of the Hugging Face hub; the revision must be a commit."""
    repository = f"models--{file.repository.replace('/', '--')}"
    return hub_folder() / repository / "snapshots" / file.revision / file.path


def hub_folder() -> Path:
    # the rule of huggingface_hub, which takes long to import
    home = os.environ.get("HF_HOME") or str(cache_home() / "huggingface")
    hub = os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or hub)))


def fetch_mode() -> str:
    mode = os.environ.get(FETCH) or MODES[0]
    if mode not in MODES:
        raise FetchError(
            "weights cannot be fetched in this way",
            where=f"environment variable `{FETCH}`",
            found=f"`{mode}`",
            hint="use one of " + ", ".join(f"`{name}`" for name in MODES),
        )
    return mode


def forbidding_variable() -> str | None:
    """Return the environment variable that forbids connections, if there is one."""
    if fetch_mode() == "never":
        return FETCH
    return HUB_OFFLINE if os.environ.get(HUB_OFFLINE, "").lower() in ("1", "on", "yes", "true") else None
