"""MLflow's library, and its errors as errors of hatch-lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hatch_lower.errors import FetchError, LowerError, ProcessError


def import_mlflow() -> Any:
    try:
        import mlflow.pyfunc
    except ModuleNotFoundError as error:
        raise ProcessError(
            "MLflow is not installed",
            where="hatch_lower.mlflow",
            found=str(error),
            hint='pip install "hatch-lower[mlflow]"',
        ) from error
    return mlflow


@contextmanager
def mlflow_answers(where: str) -> Iterator[None]:
    """Raise `FetchError` for a server or a store of MLflow that does not take or give a model."""
    try:
        yield
    except (LowerError, TypeError):  # a `TypeError` is for an option that MLflow does not have
        raise
    except Exception as error:  # of MLflow, or of the library of a store: each has its own classes
        raise FetchError(
            "MLflow does not take or give the model",
            where=where,
            found=f"{type(error).__name__}: {str(error).strip():.1000}",
            hint="compare the tracking address (`MLFLOW_TRACKING_URI`) and the name of the model; see that the server"
            " runs and has space",
        ) from error
