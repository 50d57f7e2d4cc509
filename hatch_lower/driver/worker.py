"""The build's child process: `python -m hatch_lower.driver.worker request.json` lowers one model.

Events go through a separate pipe as JSON lines, errors into the answer. Output of the model's own code disturbs
neither. The times of recipes are kept as estimates for the next build.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_lower.cache.entry import Outbox, RemoteCache
from hatch_lower.cache.recipes import put_cost, read_cost
from hatch_lower.cache.remote import open_remote
from hatch_lower.cache.remote.policy import SECRETS
from hatch_lower.cache.store import Store, open_store
from hatch_lower.canonical import digest_of
from hatch_lower.config.settings import ModelSettings
from hatch_lower.driver.child_guards import PipeReporter, end_with_parent, ended_error, refuse_signals, shorten_sockets
from hatch_lower.driver.inputs.machine import find_accelerators
from hatch_lower.driver.inputs.record import secret, shareable
from hatch_lower.driver.inputs.recorder import Recorder
from hatch_lower.driver.inputs.strict import (
    PausingRemote,
    PausingReporter,
    Watch,
    hidden_refused,
    refuse_undeclared,
    undeclared_read,
)
from hatch_lower.driver.lookup import ResultLookup, keeps_promises, remember, remember_made, roots_of
from hatch_lower.driver.protocol import UNANSWERED, Answer, ChildRequest, Mode, out_of_memory_error, write_answer
from hatch_lower.errors import CaptureError, LowerError, ProcessError, refused_error
from hatch_lower.events import Event, Reporter, make_note_reporter, stage
from hatch_lower.format.codec import read_record, write_record
from hatch_lower.format.record import ModelReport
from hatch_lower.format.results import lacks_device
from hatch_lower.pipeline.exceptions import chain_of, describe_exception, is_out_of_memory
from hatch_lower.pipeline.localize.finding import FINDINGS
from hatch_lower.pipeline.precision.finding import PRECISIONS, PrecisionSearch
from hatch_lower.runtime.torch_private.unimported import why_untried

if TYPE_CHECKING:
    from hatch_lower.pipeline.capture import CapturedModel
    from hatch_lower.pipeline.discover import EntryPoint
    from hatch_lower.pipeline.fresh_process import FreshProcess


class StageSeconds:
    """Hands events on, and adds up how long the stages of each recipe took."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def report(self, event: Event) -> None:
        if event.state == "end":
            self._seconds[event.recipe] += event.seconds
        self._reporter.report(event)

    def of(self, recipe: str) -> float:
        """Return the seconds of a recipe and of the shared stages, as for a machine that makes the recipe alone."""
        return self._seconds[""] + self._seconds[recipe]


def keep_costs(store: Store, distribution: str, report: ModelReport, timed: StageSeconds) -> None:
    """Keep the seconds of each recipe that was lowered; a recipe from the cache takes less time, and is left out."""
    for recipe in dict.fromkeys(row.recipe for row in report.rows):
        rows = [row for row in report.rows if row.recipe == recipe]
        if any(row.level in (1, 2) for row in rows):  # no backend ran
            continue
        unit = f"{report.model}/{recipe}"
        seconds = timed.of(recipe)
        lowered = any(row.partitions and row.level != 3 for row in rows)
        if lowered or seconds > (read_cost(store, distribution, unit) or 0.0):
            put_cost(store, distribution, unit, seconds)


LOWERING = ("lower", "recipe")  # the modes in which something is lowered and kept
MEASURING = ("lower", "precision")  # the modes that measure the model's metric
ENDED = 128 + signal.SIGTERM  # of the time limit; the exit status that shells report


def main(arguments: list[str]) -> int:
    request = read_record(ChildRequest, Path(arguments[0]))
    faulthandler.enable(all_threads=False)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(ENDED))  # unwinding removes temporary files
    end_with_parent()
    shorten_sockets(tempfile.gettempdir())
    refuse_signals(request.model)
    # torch warns its users about its own copy of a program
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
    # a package that torch can do without
    warnings.filterwarnings("ignore", r"Failed to initialize NumPy", UserWarning)
    reporter = PipeReporter(request.events)
    environment = take_environment()
    try:
        answer: Answer | LowerError = answer_request(request, reporter, environment)
    except BaseException as error:  # of a model's code or a backend, which must not end the process
        answer = answered_error(request, error)
    try:
        write_answer(request.folder, answer)
    except OSError as error:
        print(f"{error.strerror}: {error.filename or request.folder}")
        return UNANSWERED
    return 0 if isinstance(answer, Answer) else 1


def take_environment() -> dict[str, str]:
    """Return the variables of this process, and remove secrets, which the model's code does not need."""
    environment = dict(os.environ)
    for name in SECRETS:
        os.environ.pop(name, None)
    return environment


def answer_request(request: ChildRequest, reporter: PipeReporter, environment: Mapping[str, str]) -> Answer:
    """Return the model's report and the reasons why its inputs are unknown; keep the result if its inputs are known."""
    warn = make_note_reporter(reporter, "cache", request.model)
    remote: RemoteCache | None = open_remote(environment, request.settings.cache, warn)
    if request.outbox is not None:
        remote = Outbox(request.outbox, remote)
    store = open_store(environment, warn, remote)
    if request.settings.strict:
        refuse_undeclared(request, store.directory.parent)
    timed = StageSeconds(reporter)
    remembered = [request.manifest] if request.manifest else list(request.units.values())
    if not remembered:
        reads = Recorder((request.settings.root, *request.import_roots), None)
        with reads.variables_watched():
            enter_project(request)
            return run_pipeline(request, timed, store, reads)
    with store.locked([digest_of(key) for key in remembered], "manifest"):
        report = look_again(request, store) if request.manifest else None
        if report is not None:
            return Answer(report)
        watch = Watch(request, store)
        if store.remote is not None:
            store = replace(store, remote=PausingRemote(store.remote, watch.recorder))
        enter_project(request)
        recorder = watch.recorder
        with hidden_refused(request.model, request.hidden, request.settings.pass_env, recorder):
            answer = run_pipeline(request, PausingReporter(timed, recorder), store, recorder, recorder)
        inputs = watch.inputs()
        if any(lacks_device(row.not_compared) for row in answer.report.rows):
            inputs = replace(inputs, accelerators=find_accelerators())
        shared = None
        if store.remote is not None:
            globs = request.settings.pass_env
            shared = shareable(inputs, globs, watch.environment, secret(store.directory))
        if request.manifest:
            remember(store, request.manifest, inputs, answer.report, shared)
        for recipe, record in answer.recipes.items():
            remember_made(store, request.units[recipe], inputs, record, shared)
        keep_costs(store, request.settings.name, answer.report, timed)
    if watch.recorder.clocks:
        asked = ", ".join(watch.recorder.clocks)
        warn(f"values of clocks or random numbers stay until another input changes: {asked}")
    if watch.recorder.asked_for_all and request.hidden:
        warn("the model's code goes through all variables, of which a build has only a few: `pass-env` names others")
    if inputs.unknown:
        warn(f"not reusable without an export: {'; '.join(inputs.unknown)}")
    return replace(answer, unknown=tuple(inputs.unknown))


def look_again(request: ChildRequest, store: Store) -> ModelReport | None:
    # another build on this machine may have kept a result in the meantime
    ignored = (request.work or request.folder, store.directory)
    roots = roots_of(request.settings.root, request.recorded_path, os.environ, ignored)
    found = ResultLookup(store, roots, os.environ, request.project, request.hidden).look_up(request.manifest)
    kept = found.result is not None and keeps_promises(request.settings, found.result)
    return found.report if kept else None


def run_pipeline(
    request: ChildRequest, reporter: Reporter, store: Store, reads: Recorder, recorder: Recorder | None = None
) -> Answer:
    # `reads` records variables; `recorder` records all other inputs, if the result is to be kept
    model = next(model for model in request.settings.models if model.name == request.model)
    asks_hidden = partial(hidden_refused, model.name, request.hidden, request.settings.pass_env, reads)
    with stage(reporter, "import", model.name):
        # Objects of imports stay for good: the collections during the imports, and the look through the objects in
        # later collections, took 0.6 s of a small build.
        gc.disable()
        import torch

        verified = any(recipe.verify for recipe in request.settings.recipes if recipe.name in model.recipes)
        with contextlib.nullcontext() if recorder is None else recorder.unwatched():
            fresh = start_processes(request.mode, model) if verified else None
        if recorder is not None:
            recorder.wrap_torch()
        from hatch_lower.pipeline import lower_model as pipeline
        from hatch_lower.pipeline.capture import capture_model
        from hatch_lower.pipeline.discover import discover
        from hatch_lower.pipeline.export_key import capture_report
        from hatch_lower.pipeline.metric import seed_random_numbers
        from hatch_lower.pipeline.sandbox import export_guard

        gc.freeze()
        gc.enable()
        seed_random_numbers()
        entry = entry_of(request, model)
        with asks_hidden(), export_guard(model.name):
            exports = discover(entry)
    if request.mode in LOWERING and (newer := why_untried(torch.__version__)):
        line = f"{newer}: the build compares programs with eager as always, except where `verify` is false"
        reporter.report(Event("torch", "note", model.name, detail=line))
    drawn: dict[str, str] = {}
    with asks_hidden(), export_guard(model.name):
        if model.metric and request.mode in MEASURING:
            drawn = import_metric(replace(entry, export=model.metric, setting="metric"))
        source = capture_model(
            model.name,
            exports,
            reporter,
            roots=entry.roots(),
            examples_needed=verified or bool(request.settings.check_bytes) or request.mode == "localize",
        )
    enter_folder(request.settings.root, model.name)
    if request.search is not None:
        write_precisions(request, request.search, source, reporter)
    if request.mode in ("capture", "precision"):
        return Answer(capture_report(request.settings, model, source, request.folder, reporter))
    inputs, services = pipeline.start_build(
        request.settings, model, source, request.folder, reporter, store, fresh, request.sources
    )
    services = replace(services, drawn=drawn)
    if request.localization is not None:
        write_record(request.folder / FINDINGS, pipeline.find_wrong(inputs, services, request.localization))
        return Answer(capture_report(request.settings, model, source, request.folder, reporter))
    if request.mode == "recipe":
        report, records = pipeline.make_recipes(inputs, services)
        return Answer(report, recipes=records)
    return Answer(pipeline.lower_model(inputs, services))


def entry_of(request: ChildRequest, model: ModelSettings) -> EntryPoint:
    from hatch_lower.pipeline.discover import EntryPoint

    return EntryPoint(
        model.name,
        model.export,
        request.settings.root,
        request.import_roots,
        request.later_hooks,
        checkpoint=request.checkpoint,
    )


def import_metric(entry: EntryPoint) -> dict[str, str]:
    """Return the random states after the import of a metric, by library.

    Raises `EntryPointError` for a metric that cannot be imported, before the minutes of an export.
    """
    from hatch_lower.exir.lowering.process_state import process_restored
    from hatch_lower.pipeline.metric import find_metric, random_states

    with process_restored():
        find_metric(entry)
        return random_states()


def write_precisions(request: ChildRequest, search: PrecisionSearch, source: CapturedModel, reporter: Reporter) -> None:
    from hatch_lower.pipeline.model_build import BuildInputs
    from hatch_lower.pipeline.precision.search import search_precision

    (model,) = (model for model in request.settings.models if model.name == request.model)
    found = search_precision(BuildInputs(request.settings, model, source), reporter, search)
    write_record(request.folder / PRECISIONS, found)


def start_processes(mode: Mode, model: ModelSettings) -> FreshProcess | None:
    """Start the processes in which packaged programs run, as far as a build needs the processes."""
    from hatch_lower.pipeline.fresh_process import start_fresh
    from hatch_lower.pipeline.metric_process import start_spare

    spare = start_spare() if model.metric and mode == "lower" else None
    return start_fresh(spare=spare) if mode in LOWERING else None


def enter_project(request: ChildRequest) -> None:
    """Make the project importable like an installed project, and its root the working directory."""
    # `python -m` put the request's folder first
    rest = [entry for entry in sys.path if entry and Path(entry) != Path.cwd()]
    root = request.settings.root
    sys.path[:] = [*map(str, request.search_path), *rest, str(root)]
    importlib.invalidate_caches()
    os.chdir(root)


def enter_folder(root: Path, model: str) -> None:
    try:
        os.chdir(root)
    except OSError as error:
        raise CaptureError(
            "the model's code has removed the project's folder, or moved it",
            where=f"model `{model}`",
            found=describe_exception(error),
            hint="let it remove and move only what it has made itself",
        ) from error


def answered_error(request: ChildRequest, error: BaseException) -> LowerError:
    undeclared = undeclared_read(request, error) if request.settings.strict else None
    if undeclared is not None:
        return undeclared
    if isinstance(error, LowerError):
        # the error is the reason; the output has the traceback for closer looks
        is_ended = any(isinstance(each, SystemExit) and each.code == ENDED for each in chain_of(error))
        if isinstance(error.__cause__, Exception) and not is_ended:
            print_traceback(error.__cause__)
        return error
    if is_out_of_memory(error):
        return out_of_memory_error(f"model `{request.model}`", describe_exception(error))
    if not isinstance(error, Exception):
        return ended_error(request.model, describe_exception(error))
    refused = refused_error(error, str(request.folder))
    if refused is not None:
        return refused
    print_traceback(error)
    return unexpected_error(request.model, error)


def print_traceback(error: BaseException) -> None:
    # the model's code may have closed the output
    with contextlib.suppress(Exception):
        traceback.print_exception(error)


def unexpected_error(model: str, error: BaseException) -> ProcessError:
    newer = why_untried(sys.modules["torch"].__version__) if "torch" in sys.modules else ""
    return ProcessError(
        "the build process failed unexpectedly",
        where=f"model `{model}`",
        found="".join(traceback.format_exception(error)[-4:]),
        hint=f"{newer}: build with one of these, and please report it with the whole output"
        if newer
        else "this is a fault in hatch-lower or in a backend; please report it with the whole output",
    )


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The answer is written; taking a large model's memory apart piece by piece would only keep the parent waiting.
    os._exit(status)
