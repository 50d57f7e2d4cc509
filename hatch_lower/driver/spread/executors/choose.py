"""The choice of an executor by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

from hatch_lower.config.tables import EXECUTOR
from hatch_lower.driver.context import EXECUTOR as VARIABLE
from hatch_lower.driver.spread.pool import RunUnit, WorkerPool
from hatch_lower.errors import ExecutorError


def opener(name: str, setting: str, jobs: int, work: Path, run_unit: RunUnit) -> Callable[[], WorkerPool]:
    """Check an executor's name, and return a function that opens the executor.

    `setting` is the executor of the settings, `jobs` the number of workers of a cluster for this build alone.
    """
    where = "`executor`" if name == setting else f"the variable `{VARIABLE}`"
    if re.fullmatch(EXECUTOR["pattern"], name) is None:
        raise ExecutorError(
            "there is no such executor",
            where=where,
            found=f"`{name}`",
            hint=f"write {EXECUTOR['words']}; a factory returns a `concurrent.futures.Executor`",
        )
    engine, _, address = name.partition(":")
    if engine not in ("dask", "ray"):
        from hatch_lower.driver.spread.executors.any import open_any

        return lambda: open_any(name, work, where, run_unit)
    return lambda: open_engine(engine, address, jobs, where, run_unit)


def open_engine(engine: str, address: str, jobs: int, where: str, run_unit: RunUnit) -> WorkerPool:
    try:
        if engine == "dask":
            module = importlib.import_module("hatch_lower.driver.spread.executors.dask")
        else:
            module = importlib.import_module("hatch_lower.driver.spread.executors.ray")
    except ImportError as error:
        raise ExecutorError(
            f"the executor `{engine}` is not installed",
            where=where,
            found=str(error),
            hint=f'install it where this build runs: pip install "hatch-lower[{engine}]"',
        ) from error
    pool: WorkerPool = module.open_pool(address, jobs, where, run_unit)
    return pool
