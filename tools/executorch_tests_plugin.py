"""The pytest plugin of `executorch_tests.py`: lays translated tests over `hatch_lower.exir`, writes down outcomes."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hatch_lower.exir

FOLDER = Path(os.environ["PORTED_TESTS"])
ROOT = "hatch_lower.exir"
OUTCOMES: dict[str, tuple[str, str]] = {}


class MissingType(type):
    """A class that `hatch_lower.exir` does not have: any use of it but as a base or annotation fails."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("missing"):
            raise NotImplementedError(f"not here: {cls.__qualname__}")
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"not here: {cls.__qualname__}.{name}")

    def __setitem__(cls, key: Any, value: Any) -> None:
        """Forget it: what a test writes into a table that is not here matters to those that read the table only."""


class MissingModule(ModuleType):
    """A module that `hatch_lower.exir` does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(self.__name__, name)


def missing(module: str, name: str) -> Any:
    """Return the stand-in for a name."""
    return MissingType(f"{module}.{name}", (), {"missing": True})


class MissingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, after all others, what is not there below `hatch_lower.exir`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name.startswith(f"{ROOT}.") else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = MissingModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def lay_over() -> None:
    """Let every package of `hatch_lower.exir` also hold the translated tests, and stand-ins for missing names."""
    names = [ROOT, *(found.name for found in pkgutil.walk_packages(hatch_lower.exir.__path__, f"{ROOT}."))]
    for name in names:
        module = importlib.import_module(name)
        if hasattr(module, "__path__"):
            module.__path__.append(str(FOLDER.joinpath(*name.split(".")[2:])))
        if not hasattr(module, "__getattr__"):
            vars(module)["__getattr__"] = stand_in(name)
    sys.meta_path.append(MissingFinder())


def stand_in(module: str) -> Any:
    """Return a module's `__getattr__`."""

    def get(name: str) -> Any:
        if name.startswith("__") or importlib.util.find_spec(module) is None:
            raise AttributeError(name)
        try:
            return importlib.import_module(f"{module}.{name}") if (FOLDER / name).exists() else missing(module, name)
        except ImportError:
            return missing(module, name)

    return get


lay_over()


def name_of(nodeid: str) -> str:
    """Return a test's name relative to `exir`."""
    return nodeid.partition("exir/")[2] or nodeid


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep each test's outcome, and in one line why it failed."""
    if OUTCOMES.get(name_of(report.nodeid), ("passed",))[0] != "passed":
        return  # a test whose subtests failed is reported as passed afterwards
    if report.when == "call" or report.outcome != "passed":
        text = str(getattr(report.longrepr, "reprcrash", None) or report.longrepr or "")
        OUTCOMES[name_of(report.nodeid)] = (report.outcome, " ".join(text.split())[-300:])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep files that cannot be imported."""
    if report.outcome == "failed":
        OUTCOMES[name_of(report.nodeid)] = ("error", " ".join(str(report.longrepr).split())[-300:])


def pytest_sessionfinish() -> None:
    """Write the outcomes down."""
    Path(os.environ["PORTED_REPORT"]).write_text(json.dumps(OUTCOMES))
