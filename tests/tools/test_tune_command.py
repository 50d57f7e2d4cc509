"""`hatch-lower tune`: output, files and exit status; and a project that is lowered, timed, written and checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.exports import NET_PROJECT, SOURCE
from support.processes import is_running, wait_for
from support.tuning import ScriptedBench

from hatch_lower.cli import tune as tune_module
from hatch_lower.cli.entry import main
from hatch_lower.cli.measure.tune import choose as choose_module
from hatch_lower.cli.measure.tune.choose import Wanted, tune_recipe
from hatch_lower.format.evidence import EVIDENCE_FILE, read_evidence

pytest.importorskip("scipy")
pytest.importorskip("hatchling")

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "digits"
version = "1.0"
dependencies = []

[project.entry-points."hatch_lower.models"]
digits = "digits:export"

[tool.hatch.build.hooks.lower]
backends = ["aoti"]  # of init
"""


def tune(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["tune", *map(str, arguments)])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose candidates have scripted times."""

    def tuned_model(project: Any, wanted: Wanted, tell: Any) -> Any:
        bench = ScriptedBench()
        return tune_recipe(wanted, bench, tell, lambda: bench.now)

    monkeypatch.setattr(tune_module, "tuned_model", tuned_model)
    monkeypatch.setattr(choose_module, "tools_error", lambda candidate, settings: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def test_a_measurement_changes_no_file(root: Path) -> None:
    result = tune()
    assert result.exit_code == 0, result.output
    assert "digits gets the recipe `onnxruntime`: `default` has 2.40 times its time" in result.stdout
    log = "lowering and timing recipes of digits: the timing takes 600 s at most for each model\n"
    assert result.stderr == log, "a log names the work and its limit once"
    assert (root / "pyproject.toml").read_text() == PROJECT
    assert not (root / EVIDENCE_FILE).exists()


def test_a_written_choice_names_changed_files_and_missing_dependencies(root: Path) -> None:
    result = tune("digits", "--write")
    assert result.exit_code == 0, result.output
    assert f"changed pyproject.toml\nchanged {EVIDENCE_FILE}\n" in result.stdout
    *_, heading, plan_reader, engine, arrays = result.stdout.splitlines()
    assert heading == "the next build needs other dependencies:"
    assert all(line.endswith("not among the dependencies") for line in (plan_reader, engine, arrays))
    assert "onnxruntime" in result.stdout.partition(heading)[2]
    hook = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]["lower"]
    assert hook["models"] == {"digits": {"recipes": ["onnxruntime"]}}
    again = tune("--write")
    assert "digits keeps the recipe `onnxruntime`" in again.stdout
    assert "pyproject.toml" not in again.stdout


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--budget", "0"), "is no time from 1s to 24h"),
        (("--budget", "ten"), "is no time from 1s to 24h"),
        (("--budget", "25h"), "is no time from 1s to 24h"),
        (("--limit", "nan", "--check"), "`--limit` is no number"),
        (("--limit", "1.5"), "`--limit` belongs to `--check`"),
        (("--check", "--write"), "writes a new choice: leave out one of the two"),
        (("--check", "--for", "size"), "candidates from `lowering-times.json`: leave out `--for`"),
        (("--check", "--backend", "aoti", "--precision", "int8"), "leave out `--backend` and `--precision`"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], found: str, root: Path) -> None:
    result = tune(*arguments)
    assert result.exit_code == 2
    assert found in result.stderr


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600)])
def test_a_budget_has_units(text: str, seconds: float) -> None:
    assert tune_module.Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("digit",), "the project has no such model"),
        (("--backend", "openvno"), "there is no such backend"),
        (("--check",), "no choice for the model `digits` was measured"),
        (("--root", "nowhere"), "there is no project"),
        (("--budget", "1s"), "the budget is too small"),
    ],
)
def test_a_failure_is_one_error_with_status_2(arguments: tuple[str, ...], what: str, root: Path) -> None:
    result = tune(*arguments)
    assert result.exit_code == 2
    assert what in result.stderr
    assert (root / "pyproject.toml").read_text() == PROJECT


def test_damaged_evidence_is_refused_before_a_measurement(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / EVIDENCE_FILE).write_text("{}")
    monkeypatch.setattr(tune_module, "tuned_model", lambda *_: pytest.fail("it measures"))
    result = tune("--write")
    assert result.exit_code == 2
    assert "the file of measured times is damaged" in result.stderr


def test_a_read_only_folder_is_refused_before_a_measurement(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    monkeypatch.setattr(tune_module, "tuned_model", lambda *_: pytest.fail("it measures"))
    result = tune("--write")
    assert result.exit_code == 2
    assert "the folder of a file to write is read-only" in result.stderr


def test_a_file_that_changes_meanwhile_keeps_its_new_contents(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tune_module.tuned_model

    def tuned_model(*arguments: Any) -> Any:
        (root / "pyproject.toml").write_text(f"{PROJECT}# edited\n")
        return measured(*arguments)

    monkeypatch.setattr(tune_module, "tuned_model", tuned_model)
    result = tune("--write")
    assert result.exit_code == 2
    assert "a file has changed since the measurement began" in result.stderr
    assert (root / "pyproject.toml").read_text() == f"{PROJECT}# edited\n"
    assert sorted(path.name for path in root.iterdir()) == ["digits", "pyproject.toml"]


# A project that is lowered


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net") / "project"
    (folder / "net").mkdir(parents=True)
    (folder / "net" / "__init__.py").touch()
    (folder / "net" / "model.py").write_text(SOURCE)
    table = "tool.hatch.build.targets.wheel.hooks.lower"
    (folder / "pyproject.toml").write_text(NET_PROJECT.replace(f"[{table}.recipes.portable]", f"[{table}]"))
    return folder


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HATCH_LOWER_CACHE_DIR": str(folder.parent / "cache"), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "hatch_lower", "tune", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.torch
@pytest.mark.slow
def test_a_project_gets_the_recipe_that_was_measured_and_the_check_keeps_the_recipe(net: Path) -> None:
    pytest.importorskip("tomlkit")
    options = ("--backend", "reference", "--budget", "30s")
    output, _ = (process := run(net, *options, "--write")).communicate(timeout=600)
    assert process.returncode == 0, output
    evidence = read_evidence((net / EVIDENCE_FILE).read_bytes(), EVIDENCE_FILE)
    (choice,) = evidence.choices
    assert {each.recipe for each in evidence.measurements} == {"default", "reference"}
    assert choice.recipe in {"default", "reference"}
    for each in evidence.measurements:
        assert {call.method for call in each.calls} == {call.method for call in evidence.measurements[0].calls}
        assert each.eager_ratio is not None
        assert each.accuracy is not None
        assert each.accuracy.kind == "error"
        assert each.installed_bytes > 100_000_000  # torch
        assert "torch" in each.versions
    text = json.dumps(json.loads((net / EVIDENCE_FILE).read_text()))
    assert str(net) not in text
    assert os.uname().nodename not in text
    output, _ = (process := run(net, "--check", "--limit", "100", "--budget", "5s")).communicate(timeout=600)
    assert process.returncode == 0, output
    assert f"no candidate is better than `{choice.recipe}` by more than 100" in output


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_writes_nothing_and_ends_all_processes(net: Path, tmp_path: Path, number: signal.Signals) -> None:
    before = {path.name: path.read_bytes() for path in net.iterdir() if path.is_file()}
    pid_file = tmp_path / "pids"
    waiting = f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (net / "net" / "model.py").write_text(waiting)
    (tmp_path / "temporary").mkdir()
    variables = {"HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "temporary")}
    process = run(net, "--backend", "reference", "--write", **variables)
    wait_for(lambda: pid_file.exists() and bool(pid_file.read_text()), "it lowers", process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    (net / "net" / "model.py").write_text(SOURCE)
    assert process.returncode not in (0, None), output
    wait_for(lambda: not is_running(int(pid_file.read_text())), "its child to end")
    assert {path.name: path.read_bytes() for path in net.iterdir() if path.is_file()} == before
    assert list((tmp_path / "temporary").iterdir()) == []
