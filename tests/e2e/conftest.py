"""What the end-to-end tests share: one wheelhouse and one clean environment for the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Known, Supervisor, compiled, known_project
from support.scenarios import Project, copy_project
from support.venv import VirtualEnvironment, make_environment, make_wheelhouse


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hatch-lower's own wheel."""
    return make_wheelhouse(tmp_path_factory.mktemp("wheelhouse"))


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> VirtualEnvironment:
    """An environment with hatch-lower, what its metadata requires, and nothing that builds."""
    environment = make_environment(tmp_path_factory.mktemp("clean") / "venv")
    environment.install("hatch-lower", "torch==2.13.*", wheelhouse=wheelhouse)
    return environment


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    """Copies a scenario of `tests/projects` into this test's folder."""
    return lambda name: copy_project(name, tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the wheel of an unchanged scenario, built once in the run."""
    wheels: dict[str, Path] = {}

    def wheel_of(name: str) -> Path:
        if name not in wheels:
            wheels[name] = copy_project(name, tmp_path_factory.mktemp(name)).wheel()
        return wheels[name]

    return wheel_of


@pytest.fixture(scope="session")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Supervisor:
    """Strikes builds."""
    return Supervisor(compiled("supervise.cpp", tmp_path_factory.mktemp("supervisor")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, supervisor: Supervisor) -> Known:
    """The scenario `tiny`, built undisturbed."""
    return known_project("tiny", tmp_path_factory.mktemp("known") / "tiny", supervisor)
