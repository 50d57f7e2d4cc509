"""Child process below `perf stat`: `python -m hatch_lower.cli.measure.counted_child`, in a folder with a request.

A range is a single stretch that perf counts: a load, a call, or an empty range, which measures the cost of counting.
The answer is the number of ranges, or the reason why counting failed.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hatch_lower.cli.measure.counted import ANSWER, CALL, FIFOS, FOLDER, LOAD, REQUEST
from hatch_lower.cli.measure.opened import open_model
from hatch_lower.driver.child_guards import end_with_parent
from hatch_lower.errors import LowerError, ProgramError
from hatch_lower.format.plan import MethodPlan
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.check import make_call_arguments
from hatch_lower.runtime.files import PackagedFolder, open_folder
from hatch_lower.runtime.leaves import input_leaves
from hatch_lower.runtime.load import load_in_folder
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.selection import DelegateKinds, import_modules
from hatch_lower.runtime.torch_arrays import ARRAYS

# In the first calls the interpreter specializes its code, engines allocate buffers, and the heap grows
WARM_CALLS = 32
CALLS = 9
ENOUGH = 3  # warm-up calls or calls, after
ENOUGH_SECONDS = 20.0


def main() -> NoReturn:
    import torch

    end_with_parent()
    request = json.loads(Path(REQUEST).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    ranges, reason = 0, ""
    try:
        ranges = CountedRun(request, Path(FOLDER), Perf()).count()
    except Exception as error:  # a delegate may raise any exception
        reason = error_reason(error)
    Path(ANSWER).write_text(json.dumps({"ranges": ranges, "reason": reason}), encoding="utf-8")
    os._exit(0)


def error_reason(error: Exception) -> str:
    if isinstance(error, LowerError):
        return ": ".join(filter(None, (error.what, error.found)))
    return f"{type(error).__name__}: {error}"


class Perf:
    """`perf stat --control`, which counts between `begin` and `end` only and reports the sum of all ranges."""

    def __init__(self) -> None:
        self._control = os.open(FIFOS[0], os.O_WRONLY)
        self._answers = os.open(FIFOS[1], os.O_RDONLY)

    def begin(self) -> None:
        self._send(b"enable\n")

    def end(self) -> None:
        self._send(b"disable\n")

    def _send(self, command: bytes) -> None:
        os.write(self._control, command)
        if not os.read(self._answers, 16).startswith(b"ack"):
            msg = "perf does not answer"
            raise RuntimeError(msg)


class CountedRun:
    def __init__(self, request: Mapping[str, Any], folder: Path, perf: Perf) -> None:
        self._part: str = request["part"]
        self._perf = perf
        self._model: str = request["model"]
        self._recipe: str = request["recipe"]
        import_modules(request["imports"], str(folder), installed=True)
        opened = open_folder(folder)
        self._folder = PackagedFolder(opened.path, opened.manifest, None, request["installed"])

    def count(self) -> int:
        """Count the part of the request in ranges, and return the number of ranges."""
        call = self._warm_call(self._part.removeprefix(CALL)) if self._part.startswith(CALL) else None
        gc.collect()
        gc.disable()
        if call is not None:
            return sum(self._range(call.prepared()) for _ in enough(CALLS))
        if self._part == LOAD:
            return self._range(self._load)
        return sum(self._range(lambda: None) for _ in range(CALLS))

    def _load(self) -> LoadedModel:
        return load_in_folder(self._folder, self._model, self._recipe, DelegateKinds(), verify=False)

    def _warm_call(self, name: str) -> MethodCall:
        loaded = self._load()
        opened = open_model(str(self._folder.path), self._model, self._recipe)
        leaves, reason = input_leaves(name, opened.methods[name], opened.tensors, ARRAYS)
        if reason:
            raise ProgramError(reason)
        call = MethodCall(loaded, name, opened.methods[name], leaves, opened.has_state)
        call.warm_up()
        return call

    def _range(self, function: Callable[[], object]) -> int:
        self._perf.begin()
        result = function()
        self._perf.end()
        del result  # freed outside of the range
        return 1


class MethodCall(Frozen):
    loaded: LoadedModel
    name: str
    method: MethodPlan
    leaves: list[object]
    stateful: bool  # whether delegates hold state; a reset makes a new delegate

    def prepared(self) -> Callable[[], object]:
        """Return a call with the packaged state and arguments."""
        self.loaded.reset()
        if self.stateful:
            self._bound()()
        return self._bound()

    def warm_up(self) -> None:
        for _ in enough(WARM_CALLS):
            self.prepared()()

    def _bound(self) -> Callable[[], object]:
        args, kwargs = make_call_arguments(self.method, self.leaves, ARRAYS)
        return functools.partial(self.loaded.methods[self.name], *args, **kwargs)


def enough(number: int) -> Iterator[None]:
    began = time.monotonic()
    for position in range(number):
        if position >= ENOUGH and time.monotonic() - began > ENOUGH_SECONDS:
            break
        yield


if __name__ == "__main__":
    main()
