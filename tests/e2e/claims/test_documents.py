"""The tutorial and the guides do what they say: each page's files are written and its commands run, in order.

A short run tries the tutorial.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import effort
from support.console import make_environment, missing_lines, run_page
from support.venv import REPOSITORY

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

DOCS = REPOSITORY / "docs"
NAV = (REPOSITORY / "mkdocs.yml").read_text()
PAGES = ["tutorial.md", "testing.md", *sorted(f"guides/{path.name}" for path in (DOCS / "guides").glob("*.md"))]


@pytest.mark.parametrize("name", PAGES if effort.ALL else PAGES[:1])
def test_a_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    commands, project = make_environment(tmp_path / "venv"), tmp_path / "project"
    project.mkdir()
    environment = {
        "HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache"),
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads `--no-` from a variable upside down
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
    }
    outputs = run_page((DOCS / name).read_text(), commands, project, environment)
    assert outputs
    for step, output in outputs:
        assert missing_lines(step.shown, output) == [], f"$ {step.command}\n{output}"


def test_no_other_page_shows_a_shell_session_that_should_run_here() -> None:
    guides = re.findall(r"^ +- .*: (\S+\.md)$", NAV.split("Guides:")[1].split("Concepts:")[0], re.MULTILINE)
    unrun = [name for name in ["tutorial.md", *guides] if name not in PAGES]
    assert unrun
    for name in unrun:
        assert "```console" not in (DOCS / name).read_text(), name
