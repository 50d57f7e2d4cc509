"""Models of which no earlier result holds: a child process for each, and the reason why, in words.

Only a build with such a model imports this.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hatch_lower.build.explain.compare import explain_methods
from hatch_lower.build.explain.history import BuildHistory, ModelHistory, read_history, write_history
from hatch_lower.build.explain.settings import key_changes
from hatch_lower.build.inputs.distributions import marks_of_project
from hatch_lower.build.inputs.preload import built_library, preload_environment
from hatch_lower.build.lookup import LookupResult
from hatch_lower.build.outcome import Answer
from hatch_lower.build.process import run_children
from hatch_lower.build.project_view import ProjectView, write_site
from hatch_lower.build.protocol import Request
from hatch_lower.cache.quarantine import forget_suspects
from hatch_lower.cache.store import Store
from hatch_lower.cache.trim import limits_of, maybe_trim
from hatch_lower.config.settings import ModelSettings, Settings
from hatch_lower.errors import LowerError
from hatch_lower.events import Reporter
from hatch_lower.format.codec import encode
from hatch_lower.format.manifest import model_json
from hatch_lower.format.results import ModelResult

SHOWN = 3
"""Reasons of a method that the summary of a build names."""
TRIMMING_S = 10.0
"""How long the end of a build waits for the cache to be trimmed; most take longer than that by themselves."""


def export_models(
    settings: Settings,
    models: Sequence[ModelSettings],
    work: Path,
    reporter: Reporter,
    *,
    view: ProjectView,
    lower: str,
    store: Store,
    known: Mapping[str, LookupResult],
    environment: Mapping[str, str],
    search_path: Sequence[Path],
) -> list[Answer]:
    """Export and lower models in child processes; meanwhile the cache is trimmed, if it is time to.

    Args:
        settings: of the build.
        models: those to export.
        work: the folder of this build.
        reporter: is told of the stages.
        view: what the models' code sees of its project.
        lower: `module:function` that lowers one captured model.
        store: the cache.
        known: what was found out about each model; empty if nothing is to be remembered.
        environment: of the children.
        search_path: their `sys.path`, without folders of this build.

    Raises:
        LowerError: if a model cannot be lowered; no child process is left.
    """
    path = write_site(view, work, settings.root)
    (work / "temporary").mkdir()
    library = built_library(store.directory.parent, environment) if store.writes else None
    requests = []
    for model in models:
        folder = work / "models" / model.name
        folder.mkdir(parents=True)
        log = folder / "reads.log"
        request = Request(
            settings=settings,
            model=model.name,
            folder=folder,
            lower=lower,
            search_path=path,
            import_roots=path[1:],
            later_hooks=view.later_hooks,
            events=-1,
            manifest=known[model.name].key if store.writes else {},
            recorded_path=tuple(search_path),
            work=work,
            log=None if library is None else log,
            variables={} if library is None else preload_environment(library, log, environment),
            project=marks_of_project(settings.name, settings.version, view.metadata),
        )
        requests.append(request)
    trimming = threading.Thread(target=maybe_trim, args=(store, limits_of(settings.cache)), name="trim", daemon=True)
    trimming.start()
    threading.Thread(target=import_writer, name="import", daemon=True).start()
    try:
        return run_children(
            requests, jobs=settings.jobs, timeout=settings.timeout, environment=environment, reporter=reporter
        )
    except LowerError:
        forget_suspects(store, [request.folder for request in requests])
        raise
    finally:
        trimming.join(TRIMMING_S)  # a process that ends in its midst would leave an unfinished file in the cache


def import_writer() -> None:
    """Import what writes the SBOM when the models are there: that takes 0.3 s, in which this process only waits."""
    with contextlib.suppress(ImportError):  # who needs it will say so
        importlib.import_module("hatch_lower.build.sbom.document")


def explained(
    settings: Settings, store: Store, known: Mapping[str, LookupResult], answers: Sequence[Answer]
) -> dict[str, ModelResult]:
    """Return the results of models that were exported; their rows say why. It is kept for `hatch-lower explain`, too.

    Args:
        settings: of the build.
        store: the cache.
        known: what was found out about each model before.
        answers: of the models that were exported.
    """
    before = read_history(store.directory, settings.root) if store.mode != "off" else None
    histories: dict[str, ModelHistory] = {}
    results = {}
    for answer in answers:
        report = answer.report
        earlier = None if before is None else before.models.get(report.model)
        key = known[report.model].key if known else {}
        changes = tuple(change.text() for change in known[report.model].changes) if known else ()
        if not changes and earlier is not None:  # nothing was stored under this key
            changes = tuple(key_changes(earlier.manifest, key)) if earlier.manifest else ()
            changes = changes or earlier.unknown
        reasons = explain_methods(earlier, report, changes, store.read_blob) if store.mode != "off" else {}
        rows = tuple(replace(row, note=shortened(reasons.get(row.method, ()))) for row in report.rows)
        level = min((row.level for row in rows), default=0)
        histories[report.model] = ModelHistory(
            level, changes, answer.unknown, reasons, report.methods, report.key, rows, key
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
        )
    for name, each in known.items():
        if (held := each.report) is not None:
            histories[name] = ModelHistory(1, methods=held.methods, key=held.key, rows=held.rows, manifest=each.key)
    if store.writes:
        write_history(store.directory, settings.root, BuildHistory(settings.name, settings.version, histories))
    return results


def shortened(reasons: Sequence[str]) -> str:
    """Return the weightiest reasons, and how many more there are."""
    more = len(reasons) - SHOWN
    return "; ".join([*reasons[:SHOWN], *([f"{more} more, see `hatch-lower explain`"] if more > 0 else [])])
