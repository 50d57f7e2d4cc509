"""The pytest plugin of the kit, and its one-line form, run by pytest in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in a folder with the plugin and no other; return its status and what it printed."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "hatch_lower.testing.plugin", "-p", "no:cacheprovider", "-ra"]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_backend_is_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    raise RuntimeError\n")
    status, said = run_pytest(
        tmp_path, "--hatch-lower-backend", "reference", "--hatch-lower-only", "operators/[ps]*float32", "-v"
    )
    assert status == 0, said
    assert "test_backend[operators/products float32] PASSED" in said
    assert "test_own" not in said


def test_one_line_in_a_test_module_is_enough(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "from support import sabotage\n"
        "from hatch_lower.testing import backend_tests\n"
        "test_backend = backend_tests(\n"
        "    'ReferenceLike',\n"
        "    delegate=sabotage.WrongNumberDelegate,\n"
        "    only=['operators/arithmetic float*', 'checks/every option*'],\n"
        ")\n"
    )
    status, said = run_pytest(tmp_path)
    assert status == 1, said
    assert "1 failed, 2 passed, 1 skipped" in said
    assert "FAILED test_own.py::test_backend[operators/arithmetic float16] - Failed: call" in said
    assert "\ncall 1, output 0: " in said
    assert "not claimed: no `variations` were given" in said


def test_wrong_options_are_said(tmp_path: Path) -> None:
    arguments = ("--hatch-lower-backend", "reference", "--hatch-lower-only", "operators/perceptron")
    status, said = run_pytest(tmp_path, *arguments, "--hatch-lower-options", "{fuse}")
    assert status == 1
    assert "--hatch-lower-options is no JSON" in said


def test_the_plugin_imports_nothing_heavy(modules_after: Callable[[str], set[str]]) -> None:
    modules = modules_after("import hatch_lower.testing.plugin")
    assert not modules & {"torch", "hatchling", "hatch_lower.testing.kit"}


def test_the_plugin_is_declared() -> None:
    declared = [each.value for each in entry_points(group="pytest11") if each.name == "hatch_lower"]
    assert declared == ["hatch_lower.testing.plugin"]
