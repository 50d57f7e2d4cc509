"""The executor's name, and what is wrong with executors before any unit runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pool_units import run_unit

from hatch_lower.driver.spread.executors.any import JobExecutor
from hatch_lower.driver.spread.executors.choose import opener
from hatch_lower.errors import ExecutorError


def refusal(name: str, setting: str = "") -> str:
    with pytest.raises(ExecutorError) as caught:
        opener(name, setting or name, 1, Path(), run_unit)()
    return str(caught.value)


@pytest.mark.parametrize("name", ["slurm", "dask:", "module:", ":factory", "a b:c", "dask: x"])
def test_an_executor_that_there_is_not(name: str) -> None:
    assert refusal(name, "local") == (
        "there is no such executor\n"
        "  where: the variable `HATCH_LOWER_EXECUTOR`\n"
        f"  found: `{name}`\n"
        '  to do: write "local", "dask", "dask:ADDRESS", "ray", "ray:ADDRESS" or "module:factory"; a factory returns a'
        " `concurrent.futures.Executor`"
    )


@pytest.mark.parametrize(("engine", "library"), [("dask", "distributed"), ("ray", "ray")])
def test_an_engine_that_is_not_installed(engine: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"hatch_lower.driver.spread.executors.{engine}", raising=False)
    assert refusal(engine) == (
        f"the executor `{engine}` is not installed\n"
        "  where: `executor`\n"
        f"  found: import of {library} halted; None in sys.modules\n"
        f'  to do: install it where this build runs: pip install "hatch-lower[{engine}]"'
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_such_module:factory", "cannot be made\n  where: `executor`\n  found: ModuleNotFoundError: No module"),
        ("support.pool_units:missing", "cannot be made\n  where: `executor`\n  found: AttributeError: module"),
        ("support.pool_units:failing", "cannot be made\n  where: `executor`\n  found: OSError: no cluster today\n"),
        ("support.pool_units:json", "cannot be made\n  where: `executor`\n  found: TypeError: 'module' object is not"),
    ],
)
def test_a_factory_that_makes_no_executor(name: str, text: str) -> None:
    assert refusal(name).startswith(f"the executor `{name}` {text}")


def test_a_factory_of_another_object() -> None:
    assert refusal("support.pool_units:no_executor").startswith(
        "the factory of the executor `support.pool_units:no_executor` returned no executor\n"
        "  where: `executor`\n  found: an object of `builtins.dict`"
    )


class SlowJob:
    """A job that is over a while after it is cancelled, as one of a cluster is."""

    def __init__(self) -> None:
        self.cancelled = self.asked = 0

    def submit(self, function: Callable[..., object]) -> SlowJob:
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def done(self) -> bool:
        if self.cancelled:
            self.asked += 1
        return self.asked > 2

    def result(self) -> object:
        raise RuntimeError("it was cancelled")


def test_a_job_that_runs_is_cancelled_once_and_asked_until_it_is_over() -> None:
    job = SlowJob()
    executor = JobExecutor(job)
    executor.submit(print)
    executor.shutdown()
    assert (job.cancelled, job.asked) == (1, 3)
