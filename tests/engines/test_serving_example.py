"""The server among the examples passes its own tests: a thousand requests of many clients, a reload, failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.scenarios import copy_project, unpack
from support.venv import REPOSITORY, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

APP = REPOSITORY / "examples" / "serving" / "scorer" / "app.py"


def test_the_example_serves_clients_under_load(tmp_path: Path) -> None:
    for library in ("onnxruntime", "onnxscript", "uvicorn", "httpx"):
        pytest.importorskip(library)
    project = copy_project("serving", tmp_path)
    site = unpack(project.wheel(), tmp_path / "site")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", project.root / "tests"]
    done = run(command, cwd=tmp_path, environment={"PYTHONPATH": str(site)}).check()
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_application_is_short() -> None:
    assert len(APP.read_text().splitlines()) <= 60
