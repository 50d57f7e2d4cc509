"""What `hatch-lower new-backend` writes is built, installed from its wheel, and passes its own tests."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from support.effort import LONG
from support.venv import VirtualEnvironment, run

from hatch_lower.config.requirements import own_requirements

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

CHOSEN = ("-p", "brief", "-k", "not debug and (perceptron or fused or counted or bytes or every or wrong)")
"""Some of everything but the check that lowers every program; all of it in a long run."""
BRIEF = """
from hatch_lower.backends.testing import bench, determinism

determinism.SEEDS = ("1",)
bench.SAMPLE = ("operators/fused", "operators/perceptron", "constants/every kind")
"""
"""With this plugin the checks lower several times what is lowered anyway, and start one process instead of two."""


def test_a_new_backend_is_built_installed_and_passes_its_tests(
    tmp_path: Path, wheelhouse: Path, clean: VirtualEnvironment
) -> None:
    (own,) = wheelhouse.glob("hatch_lower-*.whl")
    with zipfile.ZipFile(own) as archive:
        assert "hatch_lower/cli/template/compile.py.in" in archive.namelist()
    written = run([clean.path / "bin" / "hatch-lower", "new-backend", "my_engine"], cwd=tmp_path).check()
    project = tmp_path / "my-engine-backend"
    assert project.name in written.stdout
    made, site = tmp_path / "made", tmp_path / "site"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*build, "--wheel-dir", made, project]).check()
    (wheel,) = made.iterdir()
    # beside the environment that all share, which stays as it is
    clean.install("--target", str(site), "--no-deps", str(wheel))
    # as its extra `test` names them; torch is there
    needed = [text for text in map(str, own_requirements(["build"])) if not text.startswith("torch")]
    clean.install("--target", str(site), "pytest", *needed)
    (site / "brief.py").write_text(BRIEF)
    tests = clean.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", *(() if LONG else CHOSEN), "tests"),
        cwd=project,
        environment={"PYTHONPATH": str(site)},
    )
    assert tests.status == 0, tests.output
    summary = tests.stdout.strip().splitlines()[-1]
    assert "failed" not in summary
    assert int(summary.split(" passed")[0].split()[-1]) >= 8, summary
