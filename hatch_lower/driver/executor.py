"""Models without an earlier result: a child process for each model, and the reasons in words.

Only a build with unknown models imports this module.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from hatch_lower.cache.contents import limits_of, maybe_trim
from hatch_lower.cache.directory import history_path
from hatch_lower.cache.store import forget_suspects
from hatch_lower.config.requirements import refuse_incomplete_build
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.checkpoints import link_checkpoint, obtain_checkpoints
from hatch_lower.driver.context import BuildContext, write_site
from hatch_lower.driver.diff.words import key_changes
from hatch_lower.driver.explain import (
    BuildHistory,
    ModelHistory,
    explain_methods,
    places_of_path,
    read_history,
    write_history,
)
from hatch_lower.driver.inputs.machine import marks_of_project
from hatch_lower.driver.inputs.preload import built_library, preload_environment
from hatch_lower.driver.lookup import LookupResult
from hatch_lower.driver.process import run_children
from hatch_lower.driver.protocol import Answer, ChildRequest, Mode
from hatch_lower.driver.sources import weight_urls
from hatch_lower.errors import LowerError
from hatch_lower.format.codec import encode
from hatch_lower.format.manifest import model_json
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import ModelResult
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.checkpoint import LocalSource, named_in_wheel
from hatch_lower.pipeline.localize.finding import Localization
from hatch_lower.pipeline.precision.finding import PrecisionSearch

HELD = 1  # level of reuse
SHOWN = 3  # reasons for a method in the summary of a build
# The time that the end of a build waits for the cache to be trimmed; most builds take longer by themselves
TRIMMING_S = 10.0


class UnitExport(Frozen):
    """The export of units, for this machine's cache or another machine's build."""

    keys: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)  # by model and recipe
    outbox: Path | None = None  # a file in which child processes note the entries that they keep for another build
    poll: Callable[[], None] = lambda: None  # called while child processes run: its exception ends them


NO_UNITS = UnitExport()


def export_models(
    context: BuildContext,
    models: Sequence[ModelSettings],
    known: Mapping[str, LookupResult],
    mode: Mode = "lower",
    sources: Mapping[str, LocalSource] = {},  # by URL in `weights`
    localization: Localization | None = None,
    search: PrecisionSearch | None = None,
    units: UnitExport = NO_UNITS,  # mode `recipe`
) -> list[Answer]:
    """Run a child process for each model; meanwhile trim the cache, if the time has come."""
    refuse_incomplete_build()
    settings, store, work = context.settings, context.store, context.work
    obtain_checkpoints(settings.root, models, store, context.reporter)
    path = write_site(settings, context.view, work)
    (work / "temporary").mkdir()
    library = built_library(store.directory.parent, context.environment) if store.writes else None
    requests = []
    for model in models:
        folder = work / "models" / model.name
        folder.mkdir(parents=True)
        log = folder / "reads.log"
        request = ChildRequest(
            settings=settings,
            model=model.name,
            folder=folder,
            mode=mode,
            search_path=path,
            import_roots=path[1:],
            later_hooks=context.view.later_hooks,
            manifest=known[model.name].key if store.writes and known else {},
            units=units.keys.get(model.name, {}) if store.writes else {},
            recorded_path=context.search_path,
            work=work,
            log=None if library is None else log,
            variables={} if library is None else preload_environment(library, log, context.environment),
            hidden=context.hidden,
            project=marks_of_project(settings.name, settings.version, context.view.metadata),
            checkpoint=link_checkpoint(model, folder),
            sources=named_in_wheel([sources[url] for url in weight_urls(model) if url in sources]),
            localization=localization,
            search=search,
            outbox=units.outbox,
        )
        requests.append(request)
    trimming = threading.Thread(target=maybe_trim, args=(store, limits_of(store.directory)), name="trim", daemon=True)
    trimming.start()
    if mode == "lower":  # a wheel follows
        threading.Thread(target=import_sbom_writer, name="import", daemon=True).start()
    try:
        return run_children(context, requests, units.poll)
    except LowerError:
        forget_suspects(store, [request.folder for request in requests])
        raise
    finally:
        trimming.join(TRIMMING_S)  # a process that ends during a trim would leave an unfinished file in the cache


def import_sbom_writer() -> None:
    # The import takes 0.3 s (0.7 s on a busy machine), in which this process would only wait for its children.
    with contextlib.suppress(ImportError):  # the use of the SBOM writer reports the error
        import hatch_lower.driver.sbom.document  # noqa: F401


def last_build(context: BuildContext) -> BuildHistory | None:
    """Return the build to compare with; to be read before the exports, while other builds of the project may end."""
    return read_history(context.store.directory, context.settings.root) if context.store.mode != "off" else None


def record_results(
    context: BuildContext,
    known: Mapping[str, LookupResult],
    answers: Sequence[Answer],
    before: BuildHistory | None = None,
) -> dict[str, ModelResult]:
    settings, store = context.settings, context.store
    histories: dict[str, ModelHistory] = {}
    results = {}
    for answer in answers:
        report = answer.report
        level = min((row.level for row in report.rows), default=0)
        earlier = None if before is None else before.models.get(report.model)
        key = known[report.model].key if known else {}
        changes = tuple(change.text() for change in known[report.model].changes) if known else ()
        if not changes and earlier is not None:  # the key had no result
            changes = tuple(key_changes(earlier.manifest, key) if earlier.manifest else ()) or earlier.unknown
        reasons: dict[str, tuple[str, ...]] = {}
        if store.mode != "off" and level != HELD:
            reasons = explain_methods(earlier, report, changes, store.read_blob)
        rows = tuple(replace(row, note=summary_note(reasons.get(row.method, ()))) for row in report.rows)
        if level == HELD:  # another build made the result while the child process waited
            histories[report.model] = held_history(report, key)
        else:
            histories[report.model] = ModelHistory(
                level, changes, answer.unknown, reasons, report.methods, report.key, rows, report.verified, key
            )
        results[report.model] = ModelResult(
            report.model,
            model_json(report.manifest),
            report.files,
            rows,
            report.native,
            report.tools,
            report.torch,
            {"architecture": encode(report.architecture), "backends": encode(report.backends)},
            encode(report.outside),
            report.beside,
        )
    for name, lookup in known.items():
        if (held := lookup.report) is not None:
            histories[name] = held_history(held, lookup.key)
    exported = any(history.level != HELD for history in histories.values())
    if store.writes and (exported or not history_path(store.directory, settings.root).exists()):
        history = BuildHistory(settings.name, settings.version, histories, places_of_path())
        write_history(store.directory, settings.root, history)
    return results


def held_history(report: ModelReport, key: Mapping[str, object]) -> ModelHistory:
    return ModelHistory(
        HELD, methods=report.methods, key=report.key, rows=report.rows, verified=report.verified, manifest=key
    )


def summary_note(reasons: Sequence[str]) -> str:
    more = len(reasons) - SHOWN
    return "; ".join([*reasons[:SHOWN], *([f"{more} more, see `hatch-lower explain`"] if more > 0 else [])])
