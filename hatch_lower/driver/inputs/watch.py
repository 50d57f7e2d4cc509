"""The recording of an export in the child process, and its pauses."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hatch_lower.cache.entry import Keep, Record, RemoteCache
from hatch_lower.cache.store import Store
from hatch_lower.config.settings import Recipe
from hatch_lower.driver.inputs.collect import collect
from hatch_lower.driver.inputs.record import RecordedInputs
from hatch_lower.driver.inputs.recorder import Recorder
from hatch_lower.driver.inputs.variables import secret
from hatch_lower.driver.lookup import open_stats, roots_of
from hatch_lower.driver.protocol import Request
from hatch_lower.events import Event, Reporter

# stages in which backends run, or the distribution of a class is looked up: the key covers their reads
UNWATCHED = frozenset({"lookup", "compile", "package", "compare"})


class Watch:
    """The notes of an export; no notes are taken for a request whose result is not kept."""

    def __init__(self, request: Request, store: Store) -> None:
        self._request = request
        self._store = store
        self._began = time.time_ns()
        self.environment = dict(os.environ)
        self.recorder = Recorder((request.settings.root, *request.import_roots), request.log)
        self.recorder.start()

    def inputs(self) -> RecordedInputs:
        self.recorder.stop()
        request, store = self._request, self._store
        ignored = (request.work or request.folder, store.directory)
        roots = roots_of(request.settings.root, request.recorded_path, self.environment, ignored)
        stats = open_stats(store)
        model = next(model for model in request.settings.models if model.name == request.model)
        recipes = [recipe for recipe in request.settings.recipes if recipe.name in model.recipes]
        inputs = collect(
            self.recorder.observations(),
            roots,
            began_ns=self._began,
            globs=request.settings.inputs,
            tools=tools_of(recipes),
            secret=secret(store.directory),
            stats=stats,
            project=request.project,
        )
        stats.save()  # the next build compares the digests of these files
        return inputs


class PausingReporter:
    """Passes events on, and pauses the notes while hatch-lower and the backends read inputs that are in the key."""

    def __init__(self, reporter: Reporter, recorder: Recorder) -> None:
        self._reporter = reporter
        self._recorder = recorder
        self._pause = contextlib.ExitStack()

    def report(self, event: Event) -> None:
        """Pass an event on. The time after a stage belongs to the stage until the next stage starts."""
        if event.state == "start":
            self._pause.close()
            if event.stage in UNWATCHED:
                self._pause.enter_context(self._recorder.unwatched())
        self._reporter.report(event)


class PausingRemote:
    """A shared cache that pauses the notes during its own reads, which are no inputs of the export."""

    def __init__(self, remote: RemoteCache, recorder: Recorder) -> None:
        self._remote = remote
        self._recorder = recorder

    def fetch(self, key: str, keep: Keep) -> Record | None:
        with self._recorder.unwatched():
            return self._remote.fetch(key, keep)

    def offer(self, key: str, record: Record, blobs: Mapping[str, Path]) -> bool:
        with self._recorder.unwatched():
            return self._remote.offer(key, record, blobs)


def tools_of(recipes: Sequence[Recipe]) -> list[str]:
    """Return the commands on which the blobs of the recipes' backends depend."""
    from hatch_lower.exir.backend.registry import find_backend  # by now torch has been imported
    from hatch_lower.pipeline.sandbox import backend_guard

    tools: set[str] = set()
    for recipe in recipes:
        for choice in recipe.backends:
            with backend_guard(choice.name, f"recipe `{recipe.name}`"):
                tools.update(find_backend(choice.name).tools(choice.options))
    return sorted(tools)
