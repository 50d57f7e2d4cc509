"""Run half of the `aoti` backend: loads a library and binds its constants. It imports torch and no compiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from hatch_lower.backends.aoti.openmp import foreign_openmp, is_openmp
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import Delegate, DelegateBlob, description_error


class AotiDelegate(Delegate):
    """A compiled partition, bound to its constants without a copy.

    Args:
        runner: torch's runner of the library.
        constants: the bound tensors; the library holds no reference to their memory, so they are kept here.
        info: what the compile half knows of inputs and outputs.
    """

    def __init__(self, runner: Any, constants: Sequence[Tensor], info: CallInfo) -> None:
        self._runner = runner
        self._constants = constants
        self._info = info
        self._call: Callable[[list[Tensor]], Sequence[Any]] = runner.run
        # The runner lets one call in at a time itself, but wakes nobody who waits for one that fails.
        self._lock = Lock()

    @classmethod
    def load(cls, blob: DelegateBlob, constants: Sequence[Tensor]) -> AotiDelegate:
        """Load the library and bind `constants`.

        Raises:
            ProgramError: if the library cannot be loaded, would bring a second OpenMP library, or was compiled for
                other constants.
        """
        info = read_info(blob, len(constants))
        foreign = foreign_openmp(info.openmp)
        if foreign:
            raise ProgramError(
                "a compiled partition would bring a second OpenMP library into the process",
                where=str(blob.path),
                found=foreign,
                hint="install torch from where the builder of the wheel had it, or load a recipe without `aoti`",
            )
        try:
            runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(blob.path), 1)
        except RuntimeError as error:
            raise refusal(blob.path, str(error)) from error
        tensors = {f"c{index}": constants[index].detach() for index in info.bound}
        names = set(runner.get_constant_names_to_original_fqns())
        if names != set(tensors):
            raise ProgramError(
                "a compiled partition and its plan disagree about the constants to bind",
                where=str(blob.path),
                found=f"the library has {sorted(names - set(tensors))} more and {sorted(set(tensors) - names)} less",
                hint="build the wheel again",
            )
        if tensors:
            runner.update_constant_buffer(tensors, False, False, True)
        return cls(runner, tuple(tensors.values()), info)

    def run(self, inputs: list[Tensor]) -> Sequence[Any]:
        """Run; state is changed in the bound tensors. Calls from several threads take turns."""
        with self._lock:
            if self._info.plain:
                return self._call(inputs)
            return self._info.arrange(inputs, self._call(self._info.select(inputs)))


def refusal(library: Path, message: str) -> ProgramError:
    """Return the error for a library that the dynamic linker refused with a message."""
    found = message.splitlines()[0]
    hint = "install the torch version that the wheel requires, or build the wheel again"
    if re.search(r"version `[^']+' not found", found):
        hint = "this system is older than the wheel's tag allows: build the wheel on one as old as this, or load a "
        hint += "recipe without `aoti`"
    return ProgramError("a compiled partition cannot be loaded", where=str(library), found=found, hint=hint)


class CallInfo:
    """How a call's inputs and outputs map to those of the library.

    Args:
        given: the number of inputs of a call.
        passed: positions of the inputs that the library takes; symbolic sizes are not passed.
        bound: positions of the constants that the library takes.
        outputs: how each output is made, as the compile half writes it.
        openmp: names of the OpenMP libraries that the library is linked with.
    """

    def __init__(self, given: int, passed: list[int], bound: list[int], outputs: list[Any], openmp: list[str]) -> None:
        self.bound = bound
        self.openmp = openmp
        self.plain = len(passed) == given and all(kind == "tensor" for kind in outputs)
        self._passed = passed
        self._outputs = outputs

    def select(self, inputs: list[Any]) -> list[Tensor]:
        """Return the inputs that the library takes."""
        return [inputs[position] for position in self._passed]

    def arrange(self, inputs: list[Any], results: Sequence[Tensor]) -> list[Any]:
        """Return a call's outputs; the library returns numbers as 0-d tensors."""
        found = iter(results)
        outputs: list[Any] = []
        for kind in self._outputs:
            if kind == "tensor":
                outputs.append(next(found))
            elif isinstance(kind, str):
                outputs.append(NUMBERS[kind](next(found).item()))
            elif "input" in kind:
                outputs.append(inputs[kind["input"]])
            else:
                outputs.append(kind["literal"])
        return outputs


NUMBERS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}


def read_info(blob: DelegateBlob, constants: int) -> CallInfo:
    """Return the facts that the compile half wrote.

    Raises:
        ProgramError: if they are damaged, or the plan binds another number of constants.
    """
    info = blob.info
    problem = ""
    try:
        given, passed, bound = int(info["inputs"]), list(info["passed"]), list(info["bound"])
        outputs, openmp = list(info["outputs"]), list(info["openmp"])
        if info["constants"] != constants:
            problem = f"{constants} constants for a partition with {info['constants']}"
        elif not all(0 <= position < given for position in passed):
            problem = f"inputs {passed} of {given}"
        elif not all(0 <= position < constants for position in bound):
            problem = f"constants {bound} of {constants}"
        elif not all(is_output(kind, given) for kind in outputs):
            problem = f"outputs {outputs}"
        elif not all(map(is_openmp, openmp)):
            problem = f"OpenMP libraries {openmp}"
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise description_error(blob, "aoti", problem)
    return CallInfo(given, passed, bound, outputs, openmp)


def is_output(kind: Any, given: int) -> bool:
    """Return whether the compile half could have written this kind of output."""
    if isinstance(kind, str):
        return kind == "tensor" or kind in NUMBERS
    if not isinstance(kind, dict) or len(kind) != 1:
        return False
    return "literal" in kind or (isinstance(kind.get("input"), int) and 0 <= kind["input"] < given)
