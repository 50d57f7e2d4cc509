"""The entry point of pytest's plugin: the options, and the plugin itself where pytest is new enough.

pytest imports this module in every run in an environment that has hatch-lower, whichever pytest that is: the module
needs nothing that pytest 6 lacks. An older pytest goes on without fixtures and markers, and its header says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

OLDEST = "7.0"
IS_OLD = not hasattr(pytest, "StashKey")
OPTIONS = ("--hatch-lower-bench", "--hatch-lower-root", "--hatch-lower-wheel")


def pytest_addoption(parser: pytest.Parser) -> None:
    bench, root, wheel = OPTIONS
    group = parser.getgroup("hatch-lower")
    group.addoption(bench, action="store_true", help="Time every lowered method of the project, and judge its limits.")
    group.addoption(root, type=Path, metavar="PROJECT", help="The project. Default: pytest's rootdir.")
    group.addoption(wheel, type=Path, metavar="WHEEL", help="Take this wheel, or the newest in a folder; build none.")


def pytest_configure(config: pytest.Config) -> None:
    if not IS_OLD:
        from hatch_lower.cli.measure import pytest_models

        config.pluginmanager.register(pytest_models, "hatch_lower_models")
        return
    given = [option for option in OPTIONS if config.getoption(option)]
    if given:
        raise pytest.UsageError(f"{given[0]} needs pytest {OLDEST} or later, this is {pytest.__version__}")


def pytest_report_header(config: pytest.Config) -> str | None:
    if not IS_OLD:
        return None
    return f"hatch-lower: its fixtures and marker need pytest {OLDEST} or later, this is {pytest.__version__}"
