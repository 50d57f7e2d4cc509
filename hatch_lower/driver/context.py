"""The context of a build: made once, passed on whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hatch_lower.cache.store import Store, open_store
from hatch_lower.config.settings import Settings
from hatch_lower.driver.environment import child_environment
from hatch_lower.driver.inputs.machine import cpu_capability
from hatch_lower.driver.inputs.variables import hidden_variables
from hatch_lower.driver.project_view import ProjectView
from hatch_lower.events import Event, Reporter
from hatch_lower.frozen import Frozen

EXECUTOR = "HATCH_LOWER_EXECUTOR"  # a variable that overrides the setting


class BuildContext(Frozen):
    settings: Settings
    view: ProjectView
    work: Path
    store: Store
    reporter: Reporter
    environment: Mapping[str, str]
    files: Callable[[], Iterable[Path]] = tuple  # the project's files: in its distributions, and its inputs
    check_early: Callable[[BuildContext], None] = lambda context: (
        None
    )  # called before models are exported, and may raise
    path: tuple[str, ...] | None = None  # of the interpreter that builds; `None` for this process
    hidden: tuple[str, ...] = ()  # variables of the user that are not passed on

    @property
    def executor(self) -> str:
        return self.environment.get(EXECUTOR) or self.settings.executor

    @property
    def search_path(self) -> tuple[Path, ...]:
        """`sys.path` of the child processes, without folders of this build."""
        path = sys.path if self.path is None else self.path
        return (*self.view.import_roots, *(Path(entry) for entry in path if entry), self.settings.root)


def build_context(
    settings: Settings,
    view: ProjectView,
    work: Path,
    store: Store,
    reporter: Reporter,
    files: Callable[[], Iterable[Path]] = tuple,
) -> BuildContext:
    temporary = work / "temporary"
    environment = child_environment(os.environ, settings.pass_env, sys.path, temporary, cpu_capability())
    hidden = hidden_variables(os.environ, environment)
    return BuildContext(settings, view, work, store, reporter, environment, files=files, hidden=hidden)


def open_cache(settings: Settings, warn: Callable[[str], None]) -> Store:
    """Return the cache, connected to the team's shared cache if the settings or the environment name one."""
    if not settings.cache.remote and "HATCH_LOWER_REMOTE_CACHE" not in os.environ:
        return open_store(os.environ, warn)
    from hatch_lower.cache.remote import open_remote  # a build without a shared cache need not import its client

    return open_store(os.environ, warn, open_remote(os.environ, settings.cache, warn))


class CacheNotes:
    """Lines about the cache, kept until the reporter exists: the cache is opened before the reporter."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._early: list[str] = []
        self._reporter: Reporter | None = None

    def __call__(self, line: str) -> None:
        if self._reporter is None:
            self._early.append(line)
        else:
            self._reporter.report(Event("cache", "note", self._project, detail=line))

    def report_to(self, reporter: Reporter) -> None:
        self._reporter = reporter
        early, self._early = self._early, []
        for line in early:
            self(line)
