"""Runs what is counted, below perf or valgrind, in a folder with a request.

It is `python -m hatch_lower.cli.measure.counted_child`.

A range is what a counter counts at once: a load, a call, or nothing at all, which says what counting itself costs. The
answer says which ranges belong to what. It is written after each part, for the next one may end the process.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hatch_lower.build.child_guards import end_with_parent
from hatch_lower.cli.measure.counted import ANSWER, CALL, FIFOS, FOLDER, LOAD, NOTHING, REQUEST, VGDB
from hatch_lower.cli.measure.opened import open_model
from hatch_lower.errors import LowerError
from hatch_lower.format.plan import MethodPlan
from hatch_lower.frozen import Frozen
from hatch_lower.runtime.check import call_arguments, input_leaves
from hatch_lower.runtime.files import PackagedFolder, open_folder
from hatch_lower.runtime.load import load_model
from hatch_lower.runtime.loaded import LoadedModel
from hatch_lower.runtime.requirements import import_modules
from hatch_lower.runtime.selection import DelegateKinds
from hatch_lower.runtime.torch_arrays import ARRAYS
from hatch_lower.runtime.torch_private.unimported import valgrind_switches

# In the first calls the interpreter specialises its code, engines make their buffers, and the heap finds its shape
WARM_CALLS = 32
CALLS = 9
ENOUGH = 3  # of either, once they have taken
ENOUGH_SECONDS = 20.0


def main() -> NoReturn:
    import torch

    end_with_parent()
    request = json.loads(Path(REQUEST).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    answer = Answer(Path(ANSWER))
    try:
        counter = Perf() if request["tool"] == "perf" else Callgrind(request["vgdb"])
        Run(request, Path(FOLDER), counter, answer).count()
    except Exception as error:  # a delegate may raise anything
        answer.refuse("", error)
    os._exit(0)  # the interpreter's own end takes long below valgrind


class Perf:
    """`perf stat --control`, which counts nothing until it is told to, and gives the sum of all ranges."""

    def __init__(self) -> None:
        self._control = os.open(FIFOS[0], os.O_WRONLY)
        self._answers = os.open(FIFOS[1], os.O_RDONLY)

    def start(self) -> None:
        pass

    def begin(self) -> None:
        self._tell(b"enable\n")

    def end(self) -> int:
        self._tell(b"disable\n")
        return 0

    def _tell(self, command: bytes) -> None:
        os.write(self._control, command)
        if not os.read(self._answers, 16).startswith(b"ack"):
            msg = "perf does not answer"
            raise RuntimeError(msg)


class Callgrind:
    """Valgrind's callgrind, which makes a dump of each range."""

    # All threads are counted, for an engine may compute in one of its own.

    def __init__(self, vgdb: str) -> None:
        switches = valgrind_switches()
        if switches is None:
            msg = "this build of torch cannot talk to valgrind"
            raise RuntimeError(msg)
        self._toggle, self._toggle_and_dump = switches
        options = [f"--vgdb-prefix={VGDB}", f"--pid={os.getpid()}", "--max-invoke-ms=0"]
        self._command = [vgdb, *options, "instrumentation", "on"]
        self._dumps = 0

    def start(self) -> None:
        """Get ready to count; the process is slow from now on."""
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:  # valgrind takes commands while this process runs, not while it waits
                pass
            assert process.stdout is not None
            said = process.stdout.read().decode("utf-8", "replace").strip()
        if process.returncode:
            raise RuntimeError(said)
        self._toggle()  # all threads are collected from now on, this one only in ranges
        self.begin()
        self.end()  # takes what was counted until now

    def begin(self) -> None:
        self._toggle()

    def end(self) -> int:
        """Return the number of the range."""
        self._toggle_and_dump()
        self._dumps += 1
        return self._dumps


class Answer:
    """The numbers of the ranges that belong to each part, and why a part could not be counted (`""`: none of them)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ranges: dict[str, list[int]] = {}
        self._reasons: dict[str, str] = {}

    def add(self, part: str, number: int) -> None:
        self._ranges.setdefault(part, []).append(number)

    def refuse(self, part: str, reason: str | Exception) -> None:
        if isinstance(reason, LowerError):
            reason = ": ".join(filter(None, (reason.what, reason.found)))
        elif isinstance(reason, Exception):
            reason = f"{type(reason).__name__}: {reason}"
        self._ranges.pop(part, None)
        self._reasons[part] = reason
        self.write()

    def write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"ranges": self._ranges, "reasons": self._reasons}), encoding="utf-8")
        new.replace(self._path)


class Run:
    def __init__(self, request: Mapping[str, Any], folder: Path, counter: Perf | Callgrind, answer: Answer) -> None:
        self._parts: list[str] = request["parts"]
        self._counter = counter
        self._answer = answer
        self._model: str = request["model"]
        self._recipe: str = request["recipe"]
        import_modules(request["imports"], str(folder), installed=True)
        opened = open_folder(folder)
        self._folder = PackagedFolder(opened.path, opened.manifest, None, request["installed"])

    def count(self) -> None:
        methods = [part for part in self._parts if part.startswith(CALL)]
        calls = self._warm_calls(methods) if methods else {}
        gc.collect()
        gc.disable()
        self._counter.start()
        for _ in range(CALLS if NOTHING in self._parts else 0):
            self._range(NOTHING, lambda: None)
        self._answer.write()
        if LOAD in self._parts:
            self._range(LOAD, self._load)
            self._answer.write()
        for part, call in calls.items():
            try:
                for _ in enough(CALLS):
                    self._range(part, call.prepared())
            except Exception as error:
                self._answer.refuse(part, error)
            self._answer.write()

    def _load(self) -> LoadedModel:
        return load_model(self._folder, self._model, self._recipe, DelegateKinds(), verify=False)

    def _warm_calls(self, parts: list[str]) -> dict[str, MethodCall]:
        loaded = self._load()
        opened = open_model(str(self._folder.path), self._model, self._recipe)
        calls = {}
        for part in parts:
            name = part.removeprefix(CALL)
            leaves, reason = input_leaves(name, opened.methods[name], opened.tensors, ARRAYS)
            if reason:
                self._answer.refuse(part, reason)
                continue
            call = MethodCall(loaded, name, opened.methods[name], leaves, opened.has_state)
            try:
                call.warm_up()
                calls[part] = call
            except Exception as error:
                self._answer.refuse(part, error)
        return calls

    def _range(self, part: str, function: Callable[[], object]) -> None:
        self._counter.begin()
        try:
            result = function()
        finally:  # what comes after a call that failed is counted as well
            number = self._counter.end()
        self._answer.add(part, number)
        del result  # it is freed outside of the range


class MethodCall(Frozen):
    loaded: LoadedModel
    name: str
    method: MethodPlan
    leaves: list[object]
    stateful: bool  # whether delegates hold state, and begin anew when it is reset

    def prepared(self) -> Callable[[], object]:
        """Return a call that finds the same state and arguments as every other one."""
        self.loaded.reset()
        if self.stateful:
            self._bound()()
        return self._bound()

    def warm_up(self) -> None:
        for _ in enough(WARM_CALLS):
            self.prepared()()

    def _bound(self) -> Callable[[], object]:
        args, kwargs = call_arguments(self.method, self.leaves, ARRAYS)
        return functools.partial(self.loaded.methods[self.name], *args, **kwargs)


def enough(number: int) -> Iterator[None]:
    began = time.monotonic()
    for position in range(number):
        if position >= ENOUGH and time.monotonic() - began > ENOUGH_SECONDS:
            break
        yield


if __name__ == "__main__":
    main()
