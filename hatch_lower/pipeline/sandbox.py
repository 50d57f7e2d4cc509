"""Other people's code at work in the build's process.

What a backend raises becomes one paragraph, and what it changed of the process is put back, so that neither the next
backend nor the comparison with eager works under other conditions. Of the model's code torch's settings are put back,
and the functions of the standard library that it exchanged; but settings under which eager computes something else than
a loaded model are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatch_lower.errors import BackendError, CaptureError, LowerError, OperationError
from hatch_lower.exir.lowering.process_state import arithmetic, library_restored, process_restored, torch_restored
from hatch_lower.pipeline.emit.sources import SourceRoots
from hatch_lower.pipeline.exceptions import describe_exception, refuse_out_of_memory


@contextmanager
def backend_guard(backend: str, where: str) -> Iterator[None]:
    """Run a backend's code: whatever it raises that is no error of ours, `SystemExit` included, is a `BackendError`."""
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
    """Run the model's own code; a `CaptureError` if it leaves a setting changed that decides what code computes."""
    with torch_restored(), library_restored():
        before = arithmetic()
        yield
        changed = {name: value for name, value in arithmetic().items() if value != before[name]}
    if changed:
        raise CaptureError(
            "the model's code leaves a setting of torch changed, and whoever loads the model has not changed it",
            where=f"model `{model}`",
            found="\n".join(f"`{name}`: {value}, before {before[name]}" for name, value in changed.items()),
            hint="put it back before the entry point returns; give tensors their dtype and device where they are made,"
            " and use `torch.autocast` inside the method that needs it",
        )
