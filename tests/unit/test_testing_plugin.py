"""The pytest plugin of the kit, and its one-line form, run by pytest in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # hatchling needs it there, too
    import tomli as tomllib

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in a folder with the plugin and no other; return its status and what it printed."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "hatch_lower.backends.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-rA",
    ]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_backend_on_the_command_line_and_one_line_in_a_test_module(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "from support import sabotage\n"
        "from hatch_lower.backends.testing import backend_tests\n"
        "test_mine = backend_tests(\n"
        "    'ReferenceLike',\n"
        "    delegate=sabotage.WrongNumberDelegate,\n"
        "    only=['operators/arithmetic float[13]*', 'checks/every option*'],\n"
        ")\n"
    )
    named = ("--hatch-lower-backend", "reference", "--hatch-lower-only", "operators/perceptron")
    status, said = run_pytest(tmp_path, *named, "test_own.py")
    assert status == 1, said
    assert "1 failed, 2 passed, 1 skipped" in said
    assert "::test_backend[operators/perceptron]\n" in said
    assert "FAILED test_own.py::test_mine[operators/arithmetic float16] - Failed: call" in said
    assert "\ncall 1, output 0: " in said
    assert "not claimed: no `variations` were given" in said


def test_tests_that_the_command_line_does_not_name_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("raise RuntimeError\n")
    named = ("--hatch-lower-backend", "referenz", "--hatch-lower-only", "operators/perceptron")
    status, said = run_pytest(tmp_path, *named)
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "ERROR: there is no backend `referenz`" in said
    assert "test_own" not in said


@pytest.mark.parametrize("options", ["{fuse}", "[]"])
def test_options_that_are_no_json_object_are_refused(tmp_path: Path, options: str) -> None:
    status, said = run_pytest(tmp_path, "--hatch-lower-backend", "reference", "--hatch-lower-options", options)
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert f"--hatch-lower-options: invalid json_object value: '{options}'" in said


def test_a_backend_that_does_not_compute_says_so_on_the_command_line(tmp_path: Path) -> None:
    named = ("--hatch-lower-backend", "null", "--hatch-lower-only", "operators/perceptron")
    status, said = run_pytest(tmp_path, *named, "--hatch-lower-facts", '{"computes": false}')
    assert status == 0, said
    assert "1 passed" in said


def test_facts_that_there_are_not_are_refused(tmp_path: Path) -> None:
    status, said = run_pytest(tmp_path, "--hatch-lower-backend", "null", "--hatch-lower-facts", '{"compute": false}')
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "ERROR: --hatch-lower-facts: there is no `compute`; there are variations, computes, checks_inputs, " in said


def test_the_plugin_imports_nothing_heavy(modules_after: Callable[[str], set[str]]) -> None:
    modules = modules_after("import hatch_lower.backends.testing.plugin")
    ours = {name for name in modules if name.startswith("hatch_lower")}
    assert ours == {"hatch_lower", "hatch_lower.backends.testing", "hatch_lower.backends.testing.plugin"}
    assert "torch" not in modules


def test_no_pytest_run_is_changed_that_does_not_ask() -> None:
    # because of an entry point, pytest would rewrite the assertions of the whole distribution, in every run
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert "hatch_lower.backends" in declared
    assert "pytest11" not in declared
