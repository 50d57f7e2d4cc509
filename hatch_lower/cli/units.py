"""The project of the next build, and its caches, for `hatch-lower plan` and `hatch-lower lower`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.cli.output import show
from hatch_lower.errors import CacheError
from hatch_lower.hatch.outside import open_project

if TYPE_CHECKING:
    from hatch_lower.cache.remote.policy import RemotePolicy
    from hatch_lower.config.settings import Settings
    from hatch_lower.driver.context import BuildContext


def shared_cache(settings: Settings) -> RemotePolicy | None:
    from hatch_lower.cache.remote.policy import read_policy

    return read_policy(os.environ, settings.cache.remote, settings.cache.public_keys, lambda line: None)


def is_sent(settings: Settings) -> bool:
    policy = shared_cache(settings)
    return policy is not None and policy.push


@contextmanager
def opened_context(root: Path) -> Iterator[BuildContext]:
    """Yield the context of a build of the project; refuse a cache that is off."""
    from hatch_lower.cache.directory import history_path
    from hatch_lower.cache.locks import held_folder
    from hatch_lower.driver.context import CacheNotes, build_context, open_cache
    from hatch_lower.events import SaidOnce
    from hatch_lower.hatch.plugin import WORK_PREFIX
    from hatch_lower.hatch.terminal import reporter_for

    project = open_project(root)
    settings = project.settings
    notes = CacheNotes(settings.name)
    store = open_cache(settings, notes)
    log = history_path(store.directory, settings.root).with_suffix(".log") if store.writes else None
    verbosity = whole_number("HATCH_VERBOSE") - whole_number("HATCH_QUIET")

    def write_line(line: str) -> None:
        if verbosity >= 0:
            show([line], err=True)

    reporter = SaidOnce(reporter_for(write_line, verbosity, log))
    notes.report_to(reporter)
    if store.mode == "off":
        raise CacheError(
            "units are made for a cache, and it is off",
            where="environment variable `HATCH_LOWER_CACHE`",
            hint="unset it, and name a cache that all machines share in `HATCH_LOWER_REMOTE_CACHE`",
        )
    with held_folder(WORK_PREFIX) as work, closing(reporter):
        yield build_context(settings, project.view, work, store, reporter)


def whole_number(variable: str) -> int:
    # as Hatch reads how much a build is to show
    try:
        return int(os.environ.get(variable, "0"))
    except ValueError:
        return 0
