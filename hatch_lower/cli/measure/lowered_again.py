"""Models of a project lowered once more, with other settings, for a measurement. The history for `explain` stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from hatch_lower.cache.store import Store
from hatch_lower.cli.measure.side import BenchSide, side_of_places
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.config.settings import Settings
from hatch_lower.driver.build import build_result, look_up, results_that_hold
from hatch_lower.driver.checkpoints import obtain_checkpoints
from hatch_lower.driver.contents import find_contents, places_in
from hatch_lower.driver.context import ProjectView, build_context
from hatch_lower.driver.executor import export_models, record_results
from hatch_lower.driver.sources import urls_of
from hatch_lower.driver.weight_sources import obtain_sources
from hatch_lower.events import NullReporter


@contextmanager
def lowered_again(
    settings: Settings,
    view: ProjectView,
    store: Store,
    title: str,
    variables: Mapping[str, str] = {},
    *,
    reuses: bool = False,
) -> Iterator[BenchSide]:
    """Lower models and open the result; `variables` are for the processes that export and lower.

    With `reuses`, a model whose inputs are unchanged since an earlier result is not exported again.
    """
    with work_folder() as work:
        (work / "build").mkdir()
        context = build_context(settings, view, work / "build", store, NullReporter())
        context = replace(context, environment={**context.environment, **variables})
        obtain_checkpoints(settings.root, settings.models, store, context.reporter)
        urls = urls_of(settings.models)
        sources = obtain_sources(context, urls) if urls else {}
        known = look_up(context) if reuses else {}
        results = results_that_hold(settings, known)
        missing = [model for model in settings.models if model.name not in results]
        answers = export_models(context, missing, known, sources=sources) if missing else []
        unrecorded = replace(context, store=replace(store, mode="off"))
        results |= record_results(unrecorded, {}, answers)
        for file in build_result(
            settings, results, {model.name: {} for model in settings.models}, context.work
        ).payload:
            (work / "site" / file.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.source, work / "site" / file.path)
            os.chmod(work / "site" / file.path, 0o600)  # native code that others may write is not loaded
        contents = find_contents(work / "site")
        yield side_of_places(title, contents, places_in(contents, installed=False))
