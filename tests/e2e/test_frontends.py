"""Every frontend runs the hook, in the isolated environment that it makes itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.scenarios import Project, only, sha256, tree
from support.venv import installer_environment, run

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


@pytest.mark.parametrize("frontend", ["hatch", "pip", "uv"])
def test_an_isolated_build_gives_the_wheel_and_leaves_the_sources_alone(
    frontend: str,
    project: Callable[[str], Project],
    built: Callable[[str], Path],
    wheelhouse: Path,
    tmp_path: Path,
) -> None:
    scenario = project("two_methods")
    before = tree(scenario.root)
    command = frontend_command(frontend, scenario)
    done = run(command, cwd=scenario.root, environment=environment_of(scenario, wheelhouse, tmp_path)).check()
    wheel = only(scenario.dist, "*.whl")
    with ZipFile(wheel) as archive:
        assert "two_methods/_lowered/manifest.json" in archive.namelist()
    # `build` and `uv` make the sdist first and the wheel from it; the bytes must be those of the tree's wheel.
    assert sha256(wheel) == sha256(built("two_methods")), done.output
    assert tree(scenario.root) == before


def test_another_isolated_environment_exports_nothing(
    project: Callable[[str], Project], built: Callable[[str], Path], wheelhouse: Path, tmp_path: Path
) -> None:
    scenario = project("two_methods")
    environment = environment_of(scenario, wheelhouse, tmp_path)
    digests = set()
    for _ in range(2):
        # its commands begin with the path of the new environment's interpreter, and every file's times are new
        done = run(frontend_command("build", scenario), cwd=scenario.root, environment=environment).check()
        digests.add(sha256(only(scenario.dist, "*.whl")))
    assert digests == {sha256(built("two_methods"))}
    assert done.output.count("unchanged") == 4, done.output


def test_nothing_is_on_stdout_for_a_frontend_to_stumble_over(project: Callable[[str], Project]) -> None:
    scenario = project("two_methods")
    done = scenario.build().check()
    assert done.stdout == "", "hatchling itself names the artefact on stderr"
    assert "two_methods" in done.stderr
