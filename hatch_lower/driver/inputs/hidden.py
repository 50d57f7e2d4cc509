"""Variables of the user that are hidden from the model: an unnoticed read would change the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hatch_lower.driver.inputs.recorder import Recorder
from hatch_lower.errors import HiddenVariableError, LowerError
from hatch_lower.pipeline.exceptions import describe_exception, is_out_of_memory


@contextmanager
def hidden_refused(model: str, hidden: Sequence[str], passed: Sequence[str], reads: Recorder) -> Iterator[None]:
    """Refuse a model that has asked for a hidden variable, whether or not the code inside the block fails."""
    try:
        yield
    except HiddenVariableError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            refuse_hidden(model, hidden, passed, reads, error)
        raise
    refuse_hidden(model, hidden, passed, reads)


def refuse_hidden(
    model: str, hidden: Sequence[str], passed: Sequence[str], reads: Recorder, cause: Exception | None = None
) -> None:
    names = reads.asked_of(hidden)
    if not names:
        return
    listed = ", ".join(f'"{name}"' for name in dict.fromkeys((*passed, *names)))
    raise HiddenVariableError(
        "the export asked for variables that are set for this build, and that a build does not pass on",
        where=f"model `{model}`",
        found=", ".join(f"`{name}`" for name in names) + ("" if cause is None else f"; then {failure_text(cause)}"),
        hint=f"write `pass-env = [{listed}]` in the hook's table, or unset variables that the model does not need",
    ) from cause


def failure_text(error: Exception) -> str:
    text = error.found or error.what if isinstance(error, LowerError) else describe_exception(error)
    return text.splitlines()[0] if text else type(error).__name__
