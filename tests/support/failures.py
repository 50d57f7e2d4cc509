"""Failures shown when they happen: a run takes long, and may be ended from outside before its summary."""

from __future__ import annotations

import pytest


class FailuresAtOnce:
    """Writes the reason of each failure to the terminal; with pytest-xdist, in the process that starts the others."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None and not hasattr(self._config, "workerinput"):
            terminal.write_line("")
            terminal.section(f"{report.nodeid} ({report.when})", red=True)
            terminal.write_line(report.longreprtext)
