"""Downloads of the files that the setting `weights` names, before models are lowered.

Only a build that lowers a model imports this module. `load` finds the downloads later in the same folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from hatch_lower.cache.locks import remove_abandoned
from hatch_lower.cache.stats import StatCache
from hatch_lower.cache.store import Store
from hatch_lower.driver.context import BuildContext
from hatch_lower.driver.lookup import open_stats
from hatch_lower.driver.sources import FILE, KnownSource, file_path, keep_source, known_source
from hatch_lower.errors import CacheError, FetchError
from hatch_lower.events import make_note_reporter, stage
from hatch_lower.format.weights import WeightsSource
from hatch_lower.pipeline.checkpoint import LocalSource, read_checkpoint
from hatch_lower.runtime.download import PART, Received, complete, errors_of, private_part
from hatch_lower.runtime.obtain import download_from_hub, fetch_sources, open_origin, refuse_offline
from hatch_lower.runtime.origins import LIMITS, BrokenError, RefusedDownloadError
from hatch_lower.runtime.sources import HUB, file_name, forbidding_variable, local_copy, weights_folders

UNFINISHED = "new"  # the name of a file with an unknown digest
WHERE = "`weights` of the build hook `lower`"


def obtain_sources(context: BuildContext, urls: Iterable[str]) -> dict[str, LocalSource]:
    """Return where the files of URLs are on this machine, after servers were asked whether they have changed."""
    store = context.store
    note = make_note_reporter(context.reporter, "weights", context.settings.name)
    stats = open_stats(store)
    found = {}
    for url in urls:
        with stage(context.reporter, "weights", context.settings.name) as describe:
            found[url] = obtain(url, store, stats, note)
            describe(f"{url}: {found[url].size:,} bytes")
    if store.writes:
        stats.save()
    return found


def obtain(url: str, store: Store, stats: StatCache, note: Callable[[str], None]) -> LocalSource:
    if url.startswith(FILE):
        return take_file(url, stats)
    known = known_source(url, store)
    if store.mode == "frozen":
        return take_known(url, known)
    try:
        if known is not None and (url.startswith(HUB) or is_unchanged(url, known, note)):
            return LocalSource(url, known.size, known.sha256, copy_of(url, known, stats))
        path, stamp = download_new(url)
    except FetchError as error:
        if isinstance(error.__cause__, RefusedDownloadError):  # its hint is for users of an installed wheel
            raise FetchError(error.what, where=error.where, found=error.found, hint=f"correct {WHERE}") from error
        raise
    size, sha256 = path.stat().st_size, stats.digest(path)
    keep_source(url, KnownSource(size, sha256, stamp), store)
    return LocalSource(url, size, sha256, path)


def take_file(url: str, stats: StatCache) -> LocalSource:
    path = file_path(url)
    try:
        return LocalSource(url, path.stat().st_size, stats.digest(path), path)
    except OSError as error:
        found = error.strerror or str(error)
        raise FetchError("a file of weights cannot be read", where=url, found=found, hint=f"correct {WHERE}") from error


def take_known(url: str, known: KnownSource | None) -> LocalSource:
    if known is None:
        raise CacheError(
            "the cache is frozen and does not know the contents of a source of weights",
            where=url,
            hint="build once with `HATCH_LOWER_CACHE=on`",
        )
    path = local_copy(WeightsSource(url, known.size, known.sha256))
    return LocalSource(url, known.size, known.sha256, path or Path())


def copy_of(url: str, known: KnownSource, stats: StatCache) -> Path:
    source = WeightsSource(url, known.size, known.sha256)
    path = local_copy(source)
    if path is not None and stats.digest(path) == known.sha256:
        return path
    return fetch_sources([source])[0].path


def is_unchanged(url: str, known: KnownSource, note: Callable[[str], None]) -> bool:
    """Return whether a server still has the known contents. If the server cannot be asked, print a note and return
    true.
    """
    offline = forbidding_variable()
    if offline is not None:
        note(f"{url} was not asked whether it has changed: `{offline}` is set")
        return True
    if not known.stamp or not known.size:
        return False
    try:
        # the answer for the last byte has the stamp as well
        with closing(open_origin(url, LIMITS).open(known.size - 1, known.stamp)) as stream:
            return stream.stamp == known.stamp and stream.size in (None, known.size)
    except (BrokenError, RefusedDownloadError) as error:
        if isinstance(error, RefusedDownloadError) and not str(error).startswith("no connection"):
            return False  # the download will raise the same error
        note(f"{url} could not be asked whether it has changed: {error}")
        return True


def download_new(url: str) -> tuple[Path, str]:
    """Download a file with unknown contents; return its path, and the server's stamp."""
    refuse_offline(url)
    folder = weights_folders()[0]
    with errors_of(url, folder):
        if url.startswith(HUB):
            return download_from_hub(url), ""
        folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder, f"{UNFINISHED}.*{PART}")  # of builds that were killed
        with private_part(folder / UNFINISHED) as part:
            found = Received(part.file)
            stamp = complete(found, open_origin(url, LIMITS), None, LIMITS, lambda count: None)
            os.fsync(part.file.fileno())
            sha256 = found.sha256()
            # an answer without a length may have ended early, and its digest would be believed from now on
            read_checkpoint(LocalSource(url, found.size, sha256, part.path))
            target = folder / file_name(sha256)
            os.replace(part.path, target)
    return target, stamp
