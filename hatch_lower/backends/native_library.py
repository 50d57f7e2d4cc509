"""A partition as a library of AOTInductor, for the CPU or a GPU: its calls, its constants, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from torch import Tensor

from hatch_lower.backends.call_map import CallMap
from hatch_lower.errors import ProgramError, reading_hint
from hatch_lower.runtime.delegates import Delegate

FRAMES = "\nException raised from "  # torch's words between an error's text and its C++ frames


class LibraryDelegate(Delegate):
    without_elements: ClassVar[str] = "skip"

    def __init__(self, runner: Any, constants: Sequence[Tensor], call: CallMap) -> None:
        self._runner = runner
        self._constants = constants  # the library holds no reference to their memory
        self._map = call
        self._is_plain = call.passes_all and call.returns_all
        self._call: Callable[[list[Tensor]], Sequence[object]] = runner.run
        # The runner itself admits a single call at a time, but after a failed call wakes no waiting call.
        self._lock = Lock()

    def run(self, inputs: list[Tensor]) -> Sequence[object]:
        # state is changed in the bound tensors
        try:
            with self._lock:
                if self._is_plain:
                    return self._call(inputs)
                return self._map.arrange(inputs, self._call(self._map.select(inputs)))
        except RuntimeError as error:
            raise without_frames(error) from None


def bind_constants(runner: Any, tensors: Mapping[str, Tensor], library: Path) -> None:
    """Bind tensors, by their names in the library, without a copy."""
    names = set(runner.get_constant_names_to_original_fqns())
    if names != set(tensors):
        raise ProgramError(
            "a compiled partition and its plan disagree about the constants to bind",
            where=str(library),
            found=f"the library has {sorted(names - set(tensors))} more and {sorted(set(tensors) - names)} less",
            hint="build the wheel again",
        )
    if tensors:
        runner.update_constant_buffer(dict(tensors), False, False, True)


def without_frames(error: RuntimeError) -> RuntimeError:
    """Return torch's error without the C++ frames behind its text, which name torch's functions and no user's line."""
    text = str(error)
    reason, found, _ = text.partition(FRAMES)
    return RuntimeError(reason) if found else error


def library_error(library: Path, message: str) -> ProgramError:
    found = message.splitlines()[0]
    hint = "install the torch version that the wheel requires, or build the wheel again"
    if re.search(r"version `[^']+' not found", found):
        hint = (
            "this system is older than the wheel's tag allows: build the wheel on a system as old as this, or load a "
        )
        hint += "recipe without `aoti`"
    hint = reading_hint(found, hint)
    return ProgramError("a compiled partition cannot be loaded", where=str(library), found=found, hint=hint)
