"""What `hatch-lower new-backend` writes is built, installed from its wheel, and passes its own tests."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from support.venv import make_environment, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]


def test_a_new_backend_is_built_installed_and_passes_its_tests(tmp_path: Path, wheelhouse: Path) -> None:
    (own,) = wheelhouse.glob("hatch_lower-*.whl")
    with zipfile.ZipFile(own) as archive:
        assert "hatch_lower/cli/template/compile.py.in" in archive.namelist()
    environment = make_environment(tmp_path / "venv")
    environment.install("hatch-lower", "torch==2.13.*", "pytest", "hatchling", wheelhouse=wheelhouse)
    written = run([environment.path / "bin" / "hatch-lower", "new-backend", "my_engine"], cwd=tmp_path).check()
    project = tmp_path / "my-engine-backend"
    assert project.name in written.stdout
    made = tmp_path / "made"
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", made, project]
    environment.run(*build, cwd=tmp_path).check()
    (wheel,) = made.iterdir()
    environment.install("--no-deps", str(wheel))
    chosen = ("-k", "float32 or fused or constants or outputs or state or checks")
    tests = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, "tests", cwd=project)
    assert tests.status == 0, tests.output
    summary = tests.stdout.strip().splitlines()[-1]
    assert "failed" not in summary
    assert int(summary.split(" passed")[0].split()[-1]) > 40, summary
