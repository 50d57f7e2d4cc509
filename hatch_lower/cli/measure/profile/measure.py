"""Calls for a profile in the measuring process: a method with and without timers, in turns."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.opened import check_tensors, input_values, load_opened, open_model
from hatch_lower.errors import SampleError
from hatch_lower.format.graph import DelegateCall, Instruction, OpCall, PythonCall
from hatch_lower.format.plan import MethodPlan
from hatch_lower.runtime.check import make_call_arguments
from hatch_lower.runtime.loaded import arrays_of
from hatch_lower.runtime.samples import read_samples, sample_leaves, sample_paths
from hatch_lower.runtime.timing import REST, RESULTS, Clock, Timing

WARM_SECONDS, WARM_CALLS = 0.5, 3  # for which, and how often, a method is called before anything is measured
FEWEST, MOST = 10, 500  # calls that are measured

Request = Mapping[str, Any]


def measure_profile(request: Request) -> Mapping[str, object]:
    """Return the nanoseconds of calls of a method on two sides, and the time of each instruction."""
    name = request["method"]
    opened = {side: open_model(path, request["model"], request["recipe"]) for side, path in request["sides"].items()}
    method, timing = opened["timed"].methods[name], Timing()
    loaded = {"plain": load_opened(opened["plain"], request), "timed": load_opened(opened["timed"], request, timing)}
    tensors = check_tensors(request)
    if request["samples"] is not None:
        cases = samples_of(Path(request["samples"]), name, opened["timed"].methods)
    else:
        cases = [input_values(name, method, tensors, {})]
    changes = any(side.changes(name) for side in opened.values())
    ways = {side: Way(model, name, method, cases, changes=changes) for side, model in loaded.items()}
    steps = InstructionTimes(timing, timing.clocks[name])
    warm = 0
    begin = time.perf_counter()
    while warm < WARM_CALLS or (time.perf_counter() - begin < WARM_SECONDS and warm < MOST):
        for way in ways.values():
            way.call(warm)
        warm += 1
    timing.forget_runs()
    times: dict[str, list[int]] = {"plain": [], "timed": []}
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    for turn in range(max(MOST, len(cases))):
        if turn >= max(FEWEST, len(cases)) and time.perf_counter() - begin >= request["seconds"]:
            break
        # each is called first as often as last
        for side in sorted(ways, reverse=turn % 2 == 1):
            start, end = ways[side].call(turn)
            times[side].append(end - start)
            if side == "timed":
                steps.take(start, end)
    gc.enable()
    report = steps.report()
    made_up = request["samples"] is None and not any(key.startswith(f"{name}/input/") for key in tensors)
    return {"times": times, "steps": report, "untimed": steps.untimed, "made up": made_up}


def samples_of(path: Path, name: str, methods: Mapping[str, MethodPlan]) -> list[list[object]]:
    """Return the flat inputs of each case that a sample file has for a method."""
    samples = read_samples(path, {each: sample_paths(plan) for each, plan in methods.items()})[name]
    if not samples:
        raise SampleError(
            "a sample file has no inputs for the method that is profiled",
            where=str(path),
            found=f"no inputs of `{name}`",
            hint=f"write inputs under keys such as `{name}/0/{(sample_paths(methods[name]) or ['x'])[0]}`",
        )
    return [sample_leaves(name, methods[name], sample) for sample in samples]


class Way:
    """Calls a method with each case in turn; a call that `changes` inputs or state gets copies of the first inputs."""

    def __init__(self, model: Any, name: str, method: MethodPlan, cases: list[list[object]], *, changes: bool) -> None:
        self._model, self._function, self._changes = model, model.methods[name], changes
        self._make = [partial(make_call_arguments, method, leaves, arrays_of(model)) for leaves in cases]
        self._now = arrays_of(model).clock()
        self._given = [make() for make in self._make]

    def call(self, turn: int) -> tuple[int, int]:
        case = turn % len(self._given)
        if self._changes:
            self._model.reset()
            self._given[case] = self._make[case]()
        args, kwargs = self._given[case]
        begin = self._now()
        self._function(*args, **kwargs)
        return begin, self._now()


class InstructionTimes:
    """Adds up the times of each instruction, and of each instruction inside a delegate."""

    def __init__(self, timing: Timing, clock: Clock) -> None:
        self._timing, self._clock = timing, clock
        self._nanoseconds: dict[int, int] = defaultdict(int)
        self._counts: dict[int, int] = defaultdict(int)
        self._callers: dict[int, list[int]] = defaultdict(list)  # of each delegate, the instruction of each run
        self.untimed: dict[int, str] = {}  # delegate's index to the reason why its instructions are not measured

    def take(self, begin: int, end: int) -> None:
        for number, nanoseconds in self._clock.take(begin, end):
            if number == REST:
                continue
            self._nanoseconds[number] += nanoseconds
            self._counts[number] += 1
            if number == RESULTS:
                continue
            _, instruction = self._clock.instructions[number]
            if isinstance(instruction, DelegateCall):
                self._callers[instruction.delegate].append(number)

    def report(self) -> list[dict[str, object]]:
        parts = self._parts()
        rows = []
        for number in self._nanoseconds:
            path, instruction = ("", None) if number == RESULTS else self._clock.instructions[number]
            row: dict[str, object] = {"path": path, "op": op_of(instruction), "nanoseconds": self._nanoseconds[number]}
            row["count"] = self._counts[number]
            if isinstance(instruction, DelegateCall):
                row["delegate"] = instruction.delegate
                row["parts"] = [[ids, *figures] for ids, figures in parts[number].items()]
            rows.append(row)
        return rows

    def _parts(self) -> Mapping[int, Mapping[tuple[str, ...], Sequence[float]]]:
        # by instruction, nanoseconds and counts of inner instructions
        parts: dict[int, dict[tuple[str, ...], list[float]]] = defaultdict(dict)
        for delegate, callers in self._callers.items():
            runs = self._timing.take_runs(delegate)
            if len(runs) != len(callers):  # the delegate measures no runs, or lost unknown runs
                own = self._timing.delegates[delegate].untimed
                self.untimed[delegate] = own if not runs else f"{len(runs)} of {len(callers)} runs are known"
                continue
            for number, run in zip(callers, runs, strict=True):
                for ids, nanoseconds in run.items():
                    figures = parts[number].setdefault(ids, [0, 0])
                    figures[0] += nanoseconds
                    figures[1] += 1
        return parts


def op_of(instruction: Instruction | None) -> str:
    if instruction is None:
        return "copies of results and state"
    return instruction.op if isinstance(instruction, OpCall | PythonCall) else instruction.kind
