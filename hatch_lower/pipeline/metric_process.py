"""Measures packaged recipes with the metric of a model, each recipe in a process of its own.

The process is a fork of a spare process that has run neither the model's code nor a program: a process that has used a
GPU cannot be forked, and the threads of an engine do not survive a fork.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from hatch_lower.pipeline.discover import EntryPoint


class MeasuredRecipe(Frozen):
    """A packaged recipe, and the metric that its model gets."""

    packaged: Packaged
    model: str
    recipe: str
    recipes: tuple[str, ...]  # of the model, in load order
    metric: str  # `module:function`
    root: Path  # of the project
    # of the random numbers for the import of the metric; a recipe is measured with 0, else the metric is only imported
    seed: int = 0


def start_spare() -> FreshProcess | None:
    return start_fresh(answer_in_fork)


def measure_apart(spare: FreshProcess, measured: MeasuredRecipe, drawn: Mapping[str, str] | None = None) -> float:
    """Return the metric of a recipe, from a fork of the spare process; raise the error of the metric.

    `drawn`: the random states after the import of the metric for eager. Raises `EntryPointError` for an import that
    draws other numbers here, and that does not seed the generators itself.
    """
    answer = answer_of_fork(spare, measured)
    here: dict[str, str] = answer["drawn"]
    if drawn and any(drawn.get(library) != state for library, state in here.items()):
        from hatch_lower.pipeline.metric import refuse_drawn_inputs

        other = answer_of_fork(spare, replace(measured, seed=1))["drawn"]
        free = [name for name, state in here.items() if state not in (drawn.get(name), other.get(name))]
        if free:
            refuse_drawn_inputs(entry_measured(measured), free)
    return float(answer["metric"])


def answer_of_fork(spare: FreshProcess, measured: MeasuredRecipe) -> dict[str, Any]:
    answer: dict[str, Any] = spare.ask(measured)
    if "error" in answer:
        raise error_from_json(answer["error"])
    if "memory" in answer:
        raise MemoryError(answer["memory"])
    return answer


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
    from hatch_lower.pipeline.metric import find_metric, random_states, seed_random_numbers

    try:
        for name in measured.packaged.imports:
            importlib.import_module(name)
        seed_random_numbers(measured.seed)
        undrawn = random_states()
        find_metric(entry_measured(measured), measured.seed)
        drawn = {name: state for name, state in random_states().items() if state != undrawn.get(name)}
        return {"drawn": drawn} if measured.seed else {"drawn": drawn, "metric": measure_here(measured)}
    except LowerError as error:
        return {"error": error.to_json()}
    except MemoryError as error:
        return {"memory": str(error)}


def measure_here(measured: MeasuredRecipe) -> float:
    """Return the metric of a packaged recipe in this process."""
    # late imports: the start of the spare process, before the export, does not wait for the modules
    from hatch_lower.pipeline.metric import measure_metric, provenance_of
    from hatch_lower.runtime.loaded import LoadedModel

    packaged = measured.packaged
    for name in packaged.imports:
        importlib.import_module(name)
    _, executor = load_written(
        packaged.plan, packaged.constants, packaged.folder, packaged.outside, "torch", packaged.device
    )
    model = LoadedModel(executor, provenance_of(measured.model, measured.recipe, measured.recipes))
    return measure_metric(entry_measured(measured), model)


def entry_measured(measured: MeasuredRecipe) -> EntryPoint:
    from hatch_lower.pipeline.discover import EntryPoint

    return EntryPoint(measured.model, measured.metric, measured.root, setting="metric")
