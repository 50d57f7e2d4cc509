"""Ids of tests that passed, so that a later run of the same checkout leaves them out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


class Writer:
    """Writes the ids of the tests that passed, when a run ends.

    With pytest-xdist the process that starts the others gets all reports, and the others get none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the id of a test that passed."""
        if report.when == "call" and report.passed:
            self.ids.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the ids."""
        if not hasattr(session.config, "workerinput"):
            self.path.write_text(json.dumps(sorted(self.ids)))


def read(path: str | None) -> frozenset[str]:
    """Return the ids that a file has, or none where there is no such file."""
    if path is None or not Path(path).exists():
        return frozenset()
    return frozenset(json.loads(Path(path).read_text()))
