"""A process without the model's code, in which packaged programs must run as for a user of the wheel.

The process is a fork of the build's child process, made before the child imports the model's code. The child itself
has the operators, classes and settings that this code leaves behind; the user of the wheel does not.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.metadata
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from packaging.utils import canonicalize_name

from hatch_lower.config.requirements import distributions_required
from hatch_lower.errors import LowerError, ProcessError, UnavailableError, VerificationError
from hatch_lower.format.codec import decode, encode
from hatch_lower.format.plan import Plan, read_plan
from hatch_lower.format.weights import read_weights
from hatch_lower.frozen import Frozen
from hatch_lower.pipeline.checkpoint import OutsideFiles
from hatch_lower.runtime.arrays import find_arrays
from hatch_lower.runtime.check import check_loaded_method
from hatch_lower.runtime.delegates import Delegate
from hatch_lower.runtime.devices import place_program
from hatch_lower.runtime.executor import Executor
from hatch_lower.runtime.leaves import stored_arrays
from hatch_lower.runtime.load import executor_of
from hatch_lower.runtime.mapped import ConstantsFile
from hatch_lower.runtime.numbers import Tolerance
from hatch_lower.runtime.outside import OutsideWeights
from hatch_lower.runtime.selection import DelegateKinds, unsupported_reason
from hatch_lower.runtime.torch_reasons import torch_reasons

Request = TypeVar("Request")


class Packaged(Frozen):
    """The written files of a model's recipe, and eager's results."""

    folder: Path  # base of the delegates' paths in the plan
    plan: Path
    constants: Path | None
    imports: tuple[str, ...]
    examples: Path  # file of the example inputs and eager's outputs, with the names of `check.safetensors`
    methods: tuple[str, ...]
    tolerance: Tolerance
    outside: OutsideFiles | None = None
    device: str = "cpu"  # of the recipe: `cpu`, `cuda`
    # the wheel's requirements: only modules of these distributions can be imported; `None` if unknown
    requirements: tuple[str, ...] | None = None


class FreshProcess:
    """The parent's end of a process that answers requests; `spare` is a process to be forked, which runs no program."""

    def __init__(self, process: int, requests: BinaryIO, answers: BinaryIO, spare: FreshProcess | None = None) -> None:
        self.spare = spare
        self._process = process
        self._requests = requests
        self._answers = answers
        self._ending = ""
        self._pipes = self._identities()

    def _identities(self) -> list[tuple[int, int]]:
        try:
            statuses = [os.fstat(file.fileno()) for file in (self._requests, self._answers)]
        except OSError:
            return []
        return [(status.st_dev, status.st_ino) for status in statuses]

    @property
    def is_open(self) -> bool:
        """Whether no other code has closed or replaced the pipes to the process."""
        return self._pipes == self._identities()

    def check(self, packaged: Packaged, where: str) -> bool:
        """Run a recipe in the process and compare with eager; return False if the pipes to the process were closed."""
        if not self.is_open:
            return False
        try:
            problem = str(self.ask(packaged))
        except EndedError as error:
            problem = error.found
        if problem:
            raise VerificationError(
                "the packaged program does not run in a process that has not run the model's code",
                where=where,
                found=problem,
                hint="if the program needs operators or classes of a library, name the library's module in the setting"
                " `imports`; if the program needs a setting of the process, such as the default dtype, change the"
                " model's code to do without",
            )
        return True

    def ask(self, request: object) -> Any:
        """Return the process's answer, as JSON; raise `EndedError` if the process has ended."""
        try:
            if self._ending:
                raise ended_error(self._ending)
            self._requests.write(b"\n" + json.dumps(encode(request)).encode() + b"\n")
            self._requests.flush()
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = b""
        if answer:
            return json.loads(answer)
        self._ending = ending_text(os.waitpid(self._process, 0)[1])
        raise ended_error(self._ending)


class EndedError(ProcessError):
    pass


def ended_error(found: str) -> EndedError:
    return EndedError(
        "a process of the build that runs packaged programs has ended",
        found=found,
        hint="a delegate, or another program, has ended the process: build again, and look at the output",
    )


def ending_text(status: int) -> str:
    status = os.waitstatus_to_exitcode(status)
    return f"the process ended: {signal.Signals(-status).name if status < 0 else f'exit status {status}'}"


def answer_check(line: bytes) -> str | None:
    packaged = read_request(Packaged, line)
    return None if packaged is None else find_problem(packaged)


def read_request(kind: type[Request], line: bytes) -> Request | None:
    # a backend that writes into all descriptors writes into this pipe, too
    try:
        request: Request = decode(kind, json.loads(line), "")
    except (ValueError, RecursionError, LowerError):
        return None
    return request


def start_fresh(
    answer: Callable[[bytes], object] = answer_check, spare: FreshProcess | None = None
) -> FreshProcess | None:
    """Return a fork of this process on Linux, else `None`: elsewhere system libraries do not survive a fork.

    The fork answers each line of its requests with the JSON of `answer`, or with no line for `None`.
    """
    # called after torch is imported and before any code runs on several threads
    if sys.platform != "linux":
        return None
    requests, answers = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread only waits for the parent's end
        process = os.fork()
    if process:
        os.close(requests[0])
        os.close(answers[1])
        return FreshProcess(process, open(requests[1], "wb"), open(answers[0], "rb"), spare)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(requests[1])
        os.close(answers[0])
        with open(requests[0], "rb") as given, open(answers[1], "wb") as written:
            for line in given:
                if (value := answer(line)) is not None:
                    written.write(json.dumps(value).encode() + b"\n")
                    written.flush()
    finally:
        os._exit(1)  # the callers up the stack belong to the parent


class RequiredOnly(importlib.abc.MetaPathFinder):
    """Import hook that hides installed distributions which the wheel does not require, even indirectly."""

    def __init__(self, requirements: Sequence[str]) -> None:
        self._requirements = requirements

    @functools.cached_property
    def _hidden(self) -> frozenset[str]:
        brought = distributions_required(self._requirements)
        return frozenset(
            module
            for module, owners in importlib.metadata.packages_distributions().items()
            if brought.isdisjoint(canonicalize_name(owner) for owner in owners)
        )

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if path is None and fullname not in sys.stdlib_module_names and fullname in self._hidden:
            raise ModuleNotFoundError(
                f"`{fullname}` is installed here, but no requirement of the wheel brings the module", name=fullname
            )


def load_written(
    path: Path,
    constants: Path | None,
    folder: Path,
    outside: OutsideFiles | None = None,
    library: str = "torch",
    device: str = "cpu",
    stand_ins: Mapping[str, type[Delegate]] | None = None,
) -> tuple[Plan, Executor]:
    """Return a written plan and its executor, as in an installed package: with installed run halves, or `stand_ins`.

    Raises an `UnavailableError` if this machine lacks the program's processor or device.
    """
    plan = read_plan(path.read_bytes(), path.name)
    if plan.target is not None and (reason := unsupported_reason(plan.target)):
        raise UnavailableError(
            "the build's machine lacks the processor or the device of the program",
            where=path.name,
            found=reason,
            hint="name a target of this machine in the options of the recipe's backend",
        )
    kinds, arrays = DelegateKinds(stand_ins, checks_outputs=True), find_arrays(library)
    placement = place_program(device, plan.backends, plan.target, arrays, kinds)
    if isinstance(placement, str):
        raise UnavailableError(
            "there is no GPU here for the program",
            where=path.name,
            found=placement,
            hint="take another recipe on this machine",
        )
    file = open_written(constants, outside)
    return plan, executor_of(plan, file, kinds, arrays.on_device(placement.arrays, placement.computes_on), folder)


def libraries_of(packaged: Packaged) -> tuple[str, ...]:
    """Return the array libraries on which a program must run: torch, and NumPy if the program works without torch."""
    plan = read_plan(packaged.plan.read_bytes(), packaged.plan.name)
    needs_torch = torch_reasons(plan, DelegateKinds().on_numpy(plan.backends), packaged.imports)
    return ("torch",) if needs_torch else ("torch", "numpy")


def open_written(constants: Path | None, outside: OutsideFiles | None) -> ConstantsFile | OutsideWeights | None:
    file = ConstantsFile(constants, constants.name) if constants is not None else None
    if outside is None:
        return file
    where = outside.weights.name
    weights = read_weights(outside.weights.read_bytes(), where)
    paths = {source.url: path for source, path in zip(weights.sources, outside.sources, strict=True)}
    return OutsideWeights(file, weights, where, "", find=lambda source: paths[source.url])


def find_problem(packaged: Packaged) -> str:
    finder = RequiredOnly([*(packaged.requirements or ()), "torch"])  # torch compares the results
    try:
        if packaged.requirements is not None:
            sys.meta_path.insert(0, finder)
        for name in packaged.imports:
            importlib.import_module(name)
        examples = ConstantsFile(packaged.examples, packaged.examples.name)
        for library in libraries_of(packaged):
            plan, executor = load_written(
                packaged.plan, packaged.constants, packaged.folder, packaged.outside, library, packaged.device
            )
            arrays = executor.arrays
            tensors = stored_arrays(examples, packaged.examples.name, arrays)
            for name in packaged.methods:
                status, detail, _ = check_loaded_method(executor, plan, name, tensors, packaged.tolerance, arrays)
                if status not in ("ok", "skipped"):
                    return f"method `{name}`{' on arrays of NumPy' * (library == 'numpy')}: {detail}"
    except LowerError as error:
        return f"{error.what}: {error.found}" if error.found else error.what
    except BaseException as error:  # a run half may raise any exception, which must fail this check only
        return f"{type(error).__name__}: {error}"
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    return ""
