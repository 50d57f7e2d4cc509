"""Every frontend runs the hook, in the isolated environment that it makes itself."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from safetensors.torch import save_file
from support.console import steps_of
from support.effort import LONG
from support.scenarios import Project, only, sha256, tree
from support.venv import REPOSITORY, installer_environment, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]


def environment_of(project: Project, wheelhouse: Path, tmp_path: Path) -> dict[str, str]:
    """Return variables with which every frontend finds the wheelhouse and keeps its files in this test's folder."""
    config = tmp_path / "hatch.toml"
    config.write_text("")
    own = {
        "HATCH_CACHE_DIR": str(tmp_path / "hatch-cache"),
        "HATCH_CONFIG": str(config),
        "HATCH_DATA_DIR": str(tmp_path / "hatch-data"),
    }
    return project.environment({**own, **installer_environment(wheelhouse)})


def frontend_command(frontend: str, project: Project) -> list[str | Path]:
    """Return the command that builds into the project's folder for wheels."""
    tools = Path(sys.executable).parent
    return {
        "hatch": [tools / "hatch", "build", "-t", "wheel", project.dist],
        "build": [sys.executable, "-m", "build", "--outdir", project.dist],
        "pip": [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", project.dist, "."],
        "uv": [tools / "uv", "build", "--python", sys.executable, "--out-dir", project.dist],
    }[frontend]


FRONTENDS = ("hatch", "pip", "uv") if LONG else ("pip", "uv")
"""Each sets other variables for Python. `examples/run`, a part of `.ci/run`, builds with `hatch`."""


def test_isolated_builds_give_the_same_wheel_leave_the_sources_alone_and_export_once(
    project: Callable[[str], Project], built: Callable[[str], Path], wheelhouse: Path, tmp_path: Path
) -> None:
    scenario = project("two_methods")
    before = tree(scenario.root)
    environment = environment_of(scenario, wheelhouse, tmp_path)
    for frontend in FRONTENDS:
        # commands begin with the path of the new environment's interpreter, and every file's times are new
        done = run(frontend_command(frontend, scenario), cwd=scenario.root, environment=environment).check()
        wheel = only(scenario.dist, "*.whl")
        with ZipFile(wheel) as archive:
            assert "two_methods/_lowered/manifest.json" in archive.namelist()
        # `uv` makes the sdist first and the wheel from it; the bytes must be those of the tree's wheel.
        assert sha256(wheel) == sha256(built("two_methods")), done.output
        assert tree(scenario.root) == before
        assert frontend != "uv" or done.output.count("unchanged") == 4, done.output
        wheel.unlink()


def write_guide(root: Path) -> None:
    """Write the project of the guide on weights that git ignores."""
    for step in steps_of((REPOSITORY / "docs/guides/ignored-weights.md").read_text()):
        if step.path:
            (root / step.path).parent.mkdir(parents=True, exist_ok=True)
            (root / step.path).write_text(step.text)
    (root / ".git").mkdir()
    (root / "src/digits/__init__.py").write_text("")
    save_file({"weight": torch.ones(10, 64), "bias": torch.ones(10)}, root / "src/digits/weights.safetensors")


def test_weights_that_git_ignores_are_built_by_every_frontend(tmp_path: Path) -> None:
    scenario = Project(tmp_path / "project", tmp_path / "dist", tmp_path / "cache")
    write_guide(scenario.root)
    here = sys.executable
    uv = Path(here).parent / "uv"
    options = {
        "hatchling": [here, "-m", "hatchling", "build", "--target", "wheel", "--directory"],
        "build": [here, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir"],
        "uv": [uv, "build", "--no-build-isolation", "--python", here, "--out-dir"],
    }
    digests = set()
    for frontend, command in options.items():
        folder = scenario.dist / frontend
        run([*command, folder], cwd=scenario.root, environment=scenario.environment()).check()
        digests.add(sha256(only(folder, "*.whl")))
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as file:
                assert "digits-1.0.0/src/digits/weights.safetensors" in file.getnames()
    assert len(digests) == 1
    assert len(list(scenario.dist.glob("*/*.tar.gz"))) == 2, "two of them build the wheel from the sdist"


def test_nothing_is_on_stdout_for_a_frontend_to_stumble_over(said: Callable[[str], tuple[str, str]]) -> None:
    stdout, stderr = said("two_methods")
    assert stdout == "", "hatchling itself names the artefact on stderr"
    assert "two_methods" in stderr
