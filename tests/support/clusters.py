"""Dask clusters whose workers are as good as another machine: with folders and variables of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDERS = {"HOME": "home", "TMPDIR": "temporary", "XDG_CACHE_HOME": "xdg"}


@contextlib.contextmanager
def cluster(machine: Path, workers: int, variables: Mapping[str, str]) -> Iterator[Any]:
    """Run a cluster; the workers' own files are in a new folder."""
    distributed = pytest.importorskip("distributed")
    import dask

    for name in FOLDERS.values():
        (machine / name).mkdir(parents=True)
    own = {variable: str(machine / name) for variable, name in FOLDERS.items()}
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 60}
    # else it ends workers for good that take long to start again
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        distributed.LocalCluster(
            n_workers=workers, env={**own, **variables}, local_directory=str(machine), **options
        ) as running,
    ):
        yield running
