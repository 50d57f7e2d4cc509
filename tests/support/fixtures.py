"""What the end-to-end tests share: one wheelhouse, one clean environment and one build of each scenario for the run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.faults import Known, Supervisor, compiled, known_project, read_known
from support.scenarios import Project, built_scenario, copy_project, only
from support.shared import Shared
from support.venv import VirtualEnvironment, make_environment, make_wheelhouse

if TYPE_CHECKING:
    from hatch_lower.pipeline.capture import CapturedModel
    from support.exports import Workshop


@pytest.fixture(scope="session")
def wheelhouse(shared: Shared) -> Path:
    """A folder with hatch-lower's own wheel."""
    return only(shared.once("wheelhouse", make_wheelhouse), "*")


@pytest.fixture(scope="session")
def clean(shared: Shared, wheelhouse: Path) -> VirtualEnvironment:
    """An environment with hatch-lower, what its metadata and models' wheels require, and nothing that builds."""

    def make(folder: Path) -> None:
        environment = make_environment(folder / "venv")
        # NumPy is there from the start: a test that installed it with a wheel would do so under another one's feet
        environment.install("hatch-lower[cli]", "torch==2.13.*", "numpy", wheelhouse=wheelhouse)

    return VirtualEnvironment(shared.once("clean", make) / "venv")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A place to lower models, with a cache of its own, in which the models' modules can be imported."""
    from support.exports import Workshop  # torch

    monkeypatch.setenv("HATCH_LOWER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HATCH_LOWER_CACHE", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Workshop(tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> CapturedModel:
    """The model of `Workshop`, captured once."""
    from support.exports import Workshop

    return Workshop(tmp_path_factory.mktemp("shop")).capture()


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    """Copies a scenario of `tests/projects` into this test's folder; its cache is empty."""
    return lambda name: copy_project(name, tmp_path)


@pytest.fixture(scope="session")
def built(shared: Shared) -> Callable[[str], Path]:
    """Returns the wheel of an unchanged scenario, built once in the run."""
    return lambda name: only(built_scenario(shared, name) / "dist", "*.whl")


@pytest.fixture(scope="session")
def said(shared: Shared) -> Callable[[str], tuple[str, str]]:
    """Returns what the build of an unchanged scenario said on stdout and stderr."""

    def read(name: str) -> tuple[str, str]:
        folder = built_scenario(shared, name)
        return (folder / "stdout").read_text(), (folder / "stderr").read_text()

    return read


@pytest.fixture
def known(shared: Shared, tmp_path: Path) -> Callable[[str], Project]:
    """Copies a scenario into this test's folder, with the cache of its build."""

    def copy(name: str) -> Project:
        project = copy_project(name, tmp_path)
        shutil.copytree(built_scenario(shared, name) / "cache", project.cache)
        return project

    return copy


@pytest.fixture(scope="session")
def supervisor(shared: Shared) -> Supervisor:
    """Strikes builds."""
    return Supervisor(shared.once("supervisor", lambda folder: compiled("supervise.cpp", folder)) / "supervise")


@pytest.fixture(scope="session")
def tiny(shared: Shared, supervisor: Supervisor) -> Known:
    """The scenario `tiny`, built undisturbed."""
    return read_known(shared.once("tiny", lambda folder: known_project("tiny", folder, supervisor)))
