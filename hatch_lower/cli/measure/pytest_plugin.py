"""The entry point of the pytest plugin: the options, and the plugin if pytest is new enough.

Every pytest in an environment with hatch-lower imports this module, so the module works with pytest 6. An older pytest
runs without fixtures and markers, and says so in its header.
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
    group.addoption(
        wheel, type=Path, metavar="WHEEL", help="Test this wheel, or the newest wheel in a folder, without a build."
    )


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
