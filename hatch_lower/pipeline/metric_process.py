"""Measures packaged recipes with the metric of a model, each recipe in a process of its own.

The process is a fork of a spare process that has run neither the model's code nor a program: a process that has used a
GPU cannot be forked, and the threads of an engine do not survive a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatch_lower.errors import EntryPointError, LowerError, by_hand_hint, error_from_json
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.fresh_process import (
    FreshProcess,
    Packaged,
    ending_text,
    load_written,
    read_request,
    start_fresh,
)


class MeasuredRecipe(Frozen):
    """A packaged recipe, and the metric that its model gets."""

    packaged: Packaged
    model: str
    recipe: str
    recipes: tuple[str, ...]  # of the model, in load order
    metric: str  # `module:function`
    root: Path  # of the project


def start_spare() -> FreshProcess | None:
    return start_fresh(answer_in_fork)


def measure_apart(spare: FreshProcess, measured: MeasuredRecipe) -> float:
    """Return the metric of a recipe, from a fork of the spare process; raise the error of the metric."""
    answer = spare.ask(measured)
    if "error" in answer:
        raise error_from_json(answer["error"])
    if "memory" in answer:
        raise MemoryError(answer["memory"])
    return float(answer["metric"])


def answer_in_fork(line: bytes) -> object:
    """Answer a request from a fork of this process, so that no call of a metric affects the next call."""
    measured = read_request(MeasuredRecipe, line)
    if measured is None:
        return None
    import hatch_lower.pipeline.metric  # noqa: F401 - once, for all forks

    # a file and no pipe, which processes that the metric leaves behind would hold open
    with open(os.memfd_create("answer"), "r+b") as answer:
        process = os.fork()
        if not process:
            try:
                answer.write(json.dumps(answer_measured(measured)).encode())
                answer.flush()
                for stream in (sys.stdout, sys.stderr):  # the metric's own output
                    with suppress(Exception):
                        stream.flush()
            finally:
                os._exit(1)
        status = os.waitpid(process, 0)[1]
        answer.seek(0)
        text = answer.read()
    return json.loads(text) if text else {"error": ended_metric(measured, ending_text(status)).to_json()}


def ended_metric(measured: MeasuredRecipe, found: str) -> LowerError:
    return EntryPointError(
        "the process that measures a recipe has ended",
        where=f"`metric = {measured.metric}`",
        found=found,
        hint="the metric itself, or a delegate that the metric calls, ends the process; "
        + by_hand_hint(measured.metric, measured.model, measured.recipe),
    )


def answer_measured(measured: MeasuredRecipe) -> dict[str, Any]:
    try:
        return {"metric": measure_here(measured)}
    except LowerError as error:
        return {"error": error.to_json()}
    except MemoryError as error:
        return {"memory": str(error)}


def measure_here(measured: MeasuredRecipe) -> float:
    """Return the metric of a packaged recipe in this process."""
    # late imports: the start of the spare process, before the export, does not wait for the modules
    from hatch_lower.pipeline.discover import EntryPoint
    from hatch_lower.pipeline.metric import measure_metric, provenance_of
    from hatch_lower.runtime.loaded import LoadedModel

    packaged = measured.packaged
    for name in packaged.imports:
        importlib.import_module(name)
    _, executor = load_written(
        packaged.plan, packaged.constants, packaged.folder, packaged.outside, "torch", packaged.device
    )
    model = LoadedModel(executor, provenance_of(measured.model, measured.recipe, measured.recipes))
    entry = EntryPoint(measured.model, measured.metric, measured.root, setting="metric")
    return measure_metric(entry, model)
