"""The measuring process, `python -m hatch_lower.cli.measure.worker`, which `Host` of `command` starts.

The process imports torch and the modules of every load. A fork answers each request, a line of JSON. A fork has
loaded no model yet, so its loads are those of a fresh process, and a crash ends only the fork. When stdin is closed,
the process and its children end.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import select
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatch_lower.cli.measure.opened import check_tensors, input_values, load_opened, open_model, recipe_refusal
from hatch_lower.cli.measure.profile.measure import measure_profile
from hatch_lower.driver.child_guards import end_group
from hatch_lower.errors import LowerError, ProgramError
from hatch_lower.format.plan import MethodPlan
from hatch_lower.runtime.arrays import Arrays
from hatch_lower.runtime.check import make_call_arguments
from hatch_lower.runtime.eager import EagerModel, make_eager
from hatch_lower.runtime.loaded import LoadedModel, arrays_of

BLOCK = 0.001  # seconds of calls of a side before the other sides have their turn
FEWEST_ROUNDS = 5
GOOD_ROUNDS = 16  # rounds of slow calls, within `LONGEST` times the seconds
LONGEST = 5
MOST_CALLS = 10_000  # in a block
STABLE = 0.97  # calls are warm if four rounds take at least this share of the time of the four rounds before
LOAD_CALLS = 3  # calls before memory is read
CHUNK = 1 << 16  # bytes of an answer

Request = Mapping[str, Any]
Call = Callable[[int], float]  # calls a method a number of times, and returns the seconds of a call


def main() -> None:
    import torch

    # a model's output goes to stderr, not into the answer
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_grad_enabled(False)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        text = forked(json.loads(line))
        with suppress(BrokenPipeError):  # the parent has ended
            answers.write(text + "\n")
            answers.flush()
    end_group()


def forked(request: Request) -> str:
    """Return the answer of a fork, or the way in which the fork ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as file:
                json.dump(answer(request), file)
            status = 0
        finally:
            os._exit(status)  # skip the interpreter's end: engines' threads may not survive it
    os.close(writing)
    text = read_while_asked(reading)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return text if code == 0 and text else json.dumps({"ended": code})


def read_while_asked(reading: int) -> str:
    """Read a pipe to its end. If the parent has ended, end this process and its children."""
    # not `end_with_parent`, whose thread would exist when this process forks
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(0, 0)  # reports only that the other end is closed
    with os.fdopen(reading, "rb", buffering=0) as file:
        data = b""
        while True:
            if any(descriptor == 0 for descriptor, _ in poll.poll()):
                end_group()
            read = file.read(CHUNK)
            if not read:
                return data.decode()
            data += read


def answer(request: Request) -> Mapping[str, object]:
    import torch

    torch.set_num_threads(request["threads"])
    try:
        for side, path in request["sides"].items():
            if reason := recipe_refusal(Path(path), request["model"], of_side(request, side)["recipe"]):
                return {"refused": reason}
        return KINDS[request["kind"]](request)
    except LowerError as error:
        return {"error": error.to_json()}
    except Exception as error:  # delegates and models may raise any exception
        found = f"{type(error).__name__}: {error}"
        return {"error": ProgramError("a model cannot be measured", found=found).to_json()}


def of_side(request: Request, side: str) -> Request:
    """Return a request with the recipe of a side, which may differ from the recipe of the other sides."""
    return {**request, "recipe": request.get("recipes", {}).get(side, request["recipe"])}


def measure_load(request: Request) -> Mapping[str, object]:
    """Measure the load of a side, its first calls, and the memory of both."""
    opened = open_model(request["sides"]["A"], request["model"], request["recipe"])
    tensors = check_tensors(request)
    values = {name: input_values(name, opened.methods[name], tensors, {}) for name in request["methods"]}
    before = proportional_memory()
    begin = time.perf_counter()
    loaded = load_opened(opened, request)
    arrays_of(loaded).clock()()  # waits for copies to a GPU
    seconds = time.perf_counter() - begin
    first = {}
    for name, leaves in values.items():
        method = opened.methods[name]
        first[name], *_ = [method_call(loaded, name, method, leaves, changes=True)(1) for _ in range(LOAD_CALLS)]
    return {"load-seconds": seconds, "memory-bytes": max(proportional_memory() - before, 1), "methods": first}


def proportional_memory() -> int:
    """Return the memory of this process in bytes, shared pages divided among their users."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))


def measure_calls(request: Request) -> Mapping[str, object]:
    """Measure calls of all sides in turns, so that other work of the machine affects all sides equally."""
    model = request["model"]
    opened = {
        side: open_model(path, model, of_side(request, side)["recipe"]) for side, path in request["sides"].items()
    }
    tensors = check_tensors(request)
    loaded = {side: load_opened(opened[side], of_side(request, side)) for side in request["order"]}
    device = next((each.device for each in loaded.values() if each.device != "cpu"), "")
    refusal = ""
    if (eager := request["eager"]) is not None and device:
        refusal = f"eager runs on the CPU, and the recipe on {device}"
    elif eager is not None:
        sys.path[:0] = eager["paths"]
        try:
            loaded["eager"] = make_eager(model, eager["export"])
        except LowerError as error:  # the sides are compared without eager
            refusal = ": ".join(filter(None, [error.what, error.found]))
    series = []
    for call in request["calls"]:
        name, method = call["method"], next(iter(opened.values())).methods[call["method"]]
        leaves = input_values(name, method, tensors, call["sizes"])
        changes = any(side.changes(name) for side in opened.values())
        ways = {
            side: method_call(owner, name, method, leaves, changes=changes)
            for side, owner in loaded.items()
            if name in owner.methods
        }
        series.append(timed_rounds(ways, request["order"], request["seconds"], request["rest"]))
    return {"calls": series, "no eager": refusal}


def measure_eager(request: Request) -> Mapping[str, object]:
    """Measure calls of the module itself with its example inputs, by method; nothing where a GPU may run recipes."""
    import torch

    if torch.cuda.is_available():  # no recipe on a GPU is timed beside eager
        return {"calls": {}}
    sys.path[:0] = request["eager"]["paths"]
    eager = make_eager(request["model"], request["eager"]["export"])
    calls = {name: fastest_call(eager.methods[name], *example) for name, example in eager.examples.items()}
    return {"calls": calls}


def fastest_call(method: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the seconds of the fastest of a few calls; slow calls are fewer."""
    seconds: list[float] = []
    while len(seconds) < FEWEST_ROUNDS and sum(seconds) < 1:
        begin = time.perf_counter()
        method(*args, **kwargs)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def method_call(owner: Any, name: str, method: MethodPlan, leaves: list[object], *, changes: bool) -> Call:
    """Return a function that calls a method a number of times and returns the seconds of a call.

    If a call `changes` its inputs or the model's state, each call gets copies of the first inputs, made before timing.
    """
    function, arrays = owner.methods[name], program_arrays(owner)
    args, kwargs = make_call_arguments(method, leaves, arrays)
    wait = arrays.clock()  # work on a GPU goes on after a call has returned

    def once_each(count: int) -> float:
        total = 0.0
        for _ in range(count):
            owner.reset()
            given, named = make_call_arguments(method, leaves, arrays)
            wait()
            begin = time.perf_counter()
            function(*given, **named)
            wait()
            total += time.perf_counter() - begin
        return total / count

    def repeated(count: int) -> float:
        calls = itertools.repeat(None, count)
        begin = time.perf_counter()
        for _ in calls:
            function(*args, **kwargs)
        wait()
        return (time.perf_counter() - begin) / count

    return once_each if changes else repeated


def program_arrays(owner: LoadedModel | EagerModel) -> Arrays:
    return arrays_of(owner) if isinstance(owner, LoadedModel) else owner.arrays


def timed_rounds(ways: Mapping[str, Call], order: Sequence[str], limit: float, rest: float) -> dict[str, list[float]]:
    """Return the seconds of a call in each round, by side, for at most `limit` seconds, with rests between sides."""
    counts = block_sizes(ways)
    warm_up(ways, counts, limit)
    times: dict[str, list[float]] = {side: [] for side in ways}
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    for turn in itertools.count():
        most = limit if turn >= GOOD_ROUNDS else LONGEST * limit
        if turn >= FEWEST_ROUNDS and time.perf_counter() - begin >= most:
            break
        # alternate rounds reverse the order, because the side after eager finds its memory in the caches
        for side in [*(order if turn % 2 == 0 else reversed(order)), *(ways.keys() - set(order))]:
            if rest and len(ways) > 1:
                settle(ways[side], counts[side], rest)
            times[side].append(ways[side](counts[side]))
    gc.enable()
    return times


def settle(way: Call, count: int, rest: float) -> None:
    """Wait until the threads of other sides are idle; then fill the caches, if a call is short."""
    time.sleep(rest)
    if count > 1:
        way(count)


def block_sizes(ways: Mapping[str, Call]) -> dict[str, int]:
    """Return the number of calls of each side that take as long as a block, or as a call of the slower side."""
    seconds = {}
    for side, way in ways.items():
        way(1)
        seconds[side] = min(way(1) for _ in range(3))
    block = max(BLOCK, *(each for side, each in seconds.items() if side != "eager"))
    return {side: min(max(1, round(block / each)), MOST_CALLS) for side, each in seconds.items()}


def warm_up(ways: Mapping[str, Call], counts: Mapping[str, int], limit: float) -> None:
    """Call until four rounds are no faster than the four rounds before, or for the time of a measurement."""
    rounds: list[float] = []
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        rounds.append(sum(way(counts[side]) * counts[side] for side, way in ways.items()))
        latest, earlier = rounds[-4:], rounds[-8:-4]
        if len(earlier) == 4 and statistics.median(latest) > STABLE * statistics.median(earlier):
            return


KINDS: Mapping[str, Callable[[Request], Mapping[str, object]]] = {
    "calls": measure_calls,
    "eager": measure_eager,
    "load": measure_load,
    "profile": measure_profile,
}

if __name__ == "__main__":
    main()
