"""A build says why it did something again: in its summary, and in full through `hatch-lower explain`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.scenarios import Project
from support.venv import Finished, run

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

CALL = "import sys; from hatch_lower.cli.entry import main; main(sys.argv[1:])"
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; " + CALL


def hatch_lower(scenario: Project, *args: str, code: str = CALL) -> Finished:
    command = [sys.executable, "-c", code, *args]
    return run(command, cwd=scenario.root, environment=scenario.environment())


def report(scenario: Project, model: str) -> Any:
    done = hatch_lower(scenario, "explain", "--json", model, code=WITHOUT_TORCH)
    done.check()
    return json.loads(done.stdout)


def rows_of(done: Finished, model: str) -> list[str]:
    """Return the last cells of a model's rows in a build's summary."""
    done.check()
    lines = (line.strip() for line in (done.stdout + done.stderr).splitlines())
    return [line.split("  ")[-1].strip() for line in lines if line.startswith(f"{model} ") and "lower  " not in line]


def why(done: Finished, model: str) -> str:
    """Return the reason that a build's summary gives for a model."""
    (line,) = (line for line in done.output.splitlines() if line.startswith(f"why {model}: "))
    return line.removeprefix(f"why {model}: ")


def test_a_build_and_explain_agree_on_why(project: Callable[[str], Project]) -> None:
    scenario = project("tiny")
    before = report(scenario, "tiny")
    assert before["last"] is None
    assert before["next"] == {"tiny": {"unchanged": False, "changes": [], "settings": [], "unknown": []}}

    done = scenario.build()
    assert (rows_of(done, "tiny"), why(done, "tiny")) == (["built, not compared"], "first build")
    first = report(scenario, "tiny")
    assert first["last"]["models"]["tiny"]["reasons"] == {"forward": ["first build"]}
    assert first["next"] == {"tiny": {"unchanged": True, "changes": [], "settings": [], "unknown": []}}

    scenario.edit("tiny/model.py", "torch.relu(x)", "torch.sigmoid(x)")
    assert report(scenario, "tiny")["next"]["tiny"]["changes"] == ["tiny/model.py"]
    done = scenario.build()
    assert rows_of(done, "tiny") == ["built, not compared"]
    assert why(done, "tiny") == "aten.relu → aten.sigmoid (tiny/model.py:12)"
    assert report(scenario, "tiny")["last"]["models"]["tiny"]["reasons"] == {"forward": [why(done, "tiny")]}

    with (scenario.root / "tiny" / "model.py").open("a") as file:
        file.write("# a comment\n")
    done = scenario.build()
    assert (rows_of(done, "tiny"), why(done, "tiny")) == (["same graph, not compared"], "tiny/model.py")
    assert report(scenario, "tiny")["last"]["models"]["tiny"]["level"] == 2

    copied = replace(scenario, root=scenario.root.with_name("copied"), dist=scenario.dist.with_name("other"))
    shutil.copytree(scenario.root, copied.root)
    assert rows_of(copied.build(), "tiny") == ["unchanged, not compared"]
    assert report(copied, "tiny")["last"]["models"]["tiny"]["level"] == 1

    scenario.edit("pyproject.toml", "verify = false", "verify = false\nstrict = true\n#")
    assert report(scenario, "tiny")["next"]["tiny"]["settings"] == ["strict false → true"]

    text = hatch_lower(scenario, "explain", code=WITHOUT_TORCH)
    text.check()
    assert text.stdout.endswith("next build\n  tiny: will be exported again, for 1 reason\n    strict false → true\n")


def test_an_audit_of_a_sound_project_passes(project: Callable[[str], Project]) -> None:
    scenario = project("tiny")
    nothing = hatch_lower(scenario, "cache", "audit")
    nothing.check()
    assert nothing.stdout == "nothing to audit: no valid stored result for 1 model\n"
    scenario.wheel()
    done = hatch_lower(scenario, "cache", "audit", "--rate", "1")
    done.check()
    assert done.stdout == "of 1 stored result, 1 model exported to the same result\n"


def test_a_project_without_the_hook_is_an_error(project: Callable[[str], Project]) -> None:
    scenario = project("tiny")
    text = (scenario.root / "pyproject.toml").read_text()
    (scenario.root / "pyproject.toml").write_text(text.partition("[tool.hatch.build.targets.wheel.hooks.lower]")[0])
    done = hatch_lower(scenario, "explain")
    assert done.status == 1
    assert done.stderr == (
        "error: the project does not use hatch-lower\n"
        f"  where: {scenario.root / 'pyproject.toml'}\n"
        "  found: no table `[tool.hatch.build.hooks.lower]`\n"
    )


def test_a_model_that_is_not_there_is_an_error(project: Callable[[str], Project]) -> None:
    done = hatch_lower(project("tiny"), "explain", "tin")
    assert done.status == 1
    assert done.stderr == (
        "error: the project has no such model\n  where: `tin`\n  found: did you mean `tiny`? known: `tiny`\n"
    )
