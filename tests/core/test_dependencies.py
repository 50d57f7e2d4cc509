"""What comes with hatch-lower: what only builds is an extra, and nothing that runs programs imports it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.without_torch import forbidding

import hatch_lower

PACKAGE = Path(hatch_lower.__file__).parent
Modules = Callable[[str], set[str]]
# of the extra `build`, by the names that are imported, and what drives a build
BUILDING = ("click", "cyclonedx", "elftools", "filelock", "hatchling", "platformdirs", "safetensors")


@pytest.mark.torch
def test_what_runs_programs_does_without_what_builds_them(modules_after: Modules) -> None:
    listed = importlib.metadata.requires("hatch-lower") or []
    assert [Requirement(text).name for text in listed if "extra ==" not in text] == ["packaging"]
    runtime = [f"hatch_lower.runtime.{path.stem}" for path in sorted((PACKAGE / "runtime").glob("*.py"))]
    halves = [f"hatch_lower.backends.{path.parent.name}.run" for path in sorted(PACKAGE.glob("backends/*/run.py"))]
    names = [name for name in [*runtime, *halves] if not name.endswith("__")]
    assert len(names) > 25
    code = f"{forbidding(*BUILDING)}import importlib, hatch_lower\nhatch_lower.load\n"
    modules = modules_after(f"{code}for name in {names!r}: importlib.import_module(name)")
    assert set(names) <= modules


def refusal(hidden: Iterable[str], call: str) -> str:
    code = f"{forbidding(*hidden)}from hatch_lower.cli.entry import main\n{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_the_command_line_without_click_says_what_to_install() -> None:
    assert refusal(BUILDING, "main()") == (
        "error: this command needs the package `click`, which is not installed\n"
        '  to do: install it: pip install "hatch-lower[cli]"\n'
    )


def test_a_command_without_a_package_of_its_own_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HATCH_LOWER_CACHE_DIR", raising=False)
    hidden = [name for name in BUILDING if name not in ("click", "hatchling")]
    assert refusal(hidden, "main(['cache', 'trim'])") == (
        "error: this command needs the package `platformdirs`, which is not installed\n"
        '  to do: install it: pip install "hatch-lower[cli]"\n'
    )
