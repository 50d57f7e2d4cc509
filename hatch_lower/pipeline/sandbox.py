"""Guards around the code of backends and models in the build's process.

A backend's exception becomes a short error, and the backend's changes to the process are undone, so that the next
backend and the comparison with eager work under equal conditions. After a model's code, torch's settings and exchanged
functions of the standard library are restored; settings that would make eager and a loaded model differ are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.errors import BackendError, CaptureError, LowerError, OperationError
from hatch_lower.exir.lowering.process_state import (
    arithmetic_settings,
    library_restored,
    process_restored,
    torch_restored,
)
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.exceptions import describe_exception, refuse_out_of_memory


@contextmanager
def backend_guard(backend: str, where: str) -> Iterator[None]:
    """Run a backend's code; turn every exception except a `LowerError` into a `BackendError`, `SystemExit` included."""
    try:
        with process_restored():
            yield
    except LowerError as error:
        if "model `" in error.where:
            raise
        places = [where, error.where]
        if isinstance(error, OperationError):
            places.append(SourceRoots([Path(entry) for entry in sys.path if entry]).source(error.stack))
        place = ", ".join(filter(None, places))
        raise type(error)(error.what, where=place, found=error.found, hint=error.hint) from error
    except BaseException as error:
        refuse_out_of_memory(error)
        raise BackendError(
            f"the backend `{backend}` failed",
            where=where,
            found=describe_exception(error),
            hint="leave the backend out of the recipe, or report this to its authors",
        ) from error


@contextmanager
def export_guard(model: str) -> Iterator[None]:
    """Run the model's own code; raise `CaptureError` if the code leaves an arithmetic setting of torch changed."""
    with torch_restored(), library_restored():
        before = arithmetic_settings()
        yield
        changed = {name: value for name, value in arithmetic_settings().items() if value != before[name]}
    if changed:
        raise CaptureError(
            "the model's code leaves a setting of torch changed, and a process that loads the model lacks the change",
            where=f"model `{model}`",
            found="\n".join(f"`{name}`: {value}, before {before[name]}" for name, value in changed.items()),
            hint="restore the setting before the entry point returns; give tensors their dtype and device at their"
            " creation, and use `torch.autocast` inside the method that needs autocast",
        )
