"""Variables that are set for whoever builds and not passed on: a model that asks for one is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.cache.stats import StatCache
from hatch_lower.driver.inputs.collect import no_inputs
from hatch_lower.driver.inputs.present import Present, changes
from hatch_lower.driver.inputs.record import hidden_variables
from hatch_lower.driver.inputs.recorder import Recorder
from hatch_lower.driver.inputs.roots import Roots
from hatch_lower.driver.inputs.strict import hidden_refused
from hatch_lower.errors import CaptureError, HiddenVariableError


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder((tmp_path,), None)
    with recorder.variables_watched():
        yield recorder


def run(code: str, file: Path, module: str) -> None:
    namespace: dict[str, Any] = {"__name__": module}
    exec(compile(code, str(file), "exec"), namespace)


ASKING = [
    'os.environ.get("HIDDEN", "4")',
    'os.environ["HIDDEN"]',
    'os.getenv("HIDDEN")',
    '"HIDDEN" in os.environ',
    'os.environ.setdefault("OTHER", os.environ.get("HIDDEN", ""))',
    'os.path.expandvars("$HIDDEN/weights")',
    'os.environb.get(b"HIDDEN")',
    'os.environ.pop("HIDDEN", None)',
]


@pytest.mark.parametrize("asking", ASKING)
def test_the_projects_own_code_decides_by_what_it_asks_for(reads: Recorder, tmp_path: Path, asking: str) -> None:
    code = f"import os\ntry:\n    {asking}\nexcept KeyError:\n    pass"
    run(code, tmp_path / "model.py", "digits.model")
    assert reads.asked_of(["HIDDEN", "OTHERS"]) == ["HIDDEN"]


@pytest.mark.parametrize("asking", ASKING[:6])
def test_libraries_that_are_not_known_to_ask_for_their_own_decide_too(reads: Recorder, asking: str) -> None:
    code = f"import os\ntry:\n    {asking}\nexcept KeyError:\n    pass"
    run(code, Path("/site/torch/hub.py"), "torch.hub")
    assert reads.asked_of(["HIDDEN"]) == []
    run(code, Path("/site/layers/config.py"), "layers.config")
    assert reads.asked_of(["HIDDEN"]) == ["HIDDEN"]


def test_a_variable_that_the_process_sets_itself_decides_nothing(reads: Recorder, tmp_path: Path) -> None:
    run('import os\nos.environ["OWN_ONE"] = "1"\nos.environ["OWN_ONE"]', tmp_path / "model.py", "digits.model")
    os.environ.pop("OWN_ONE")
    assert reads.asked_of(["OWN_ONE"]) == []


def test_the_error_has_the_line_for_the_table(reads: Recorder, tmp_path: Path) -> None:
    with pytest.raises(HiddenVariableError) as caught, hidden_refused("digits", ("HIDDEN",), ("HF_*",), reads):
        run('import os\nos.environ.get("HIDDEN")', tmp_path / "model.py", "digits.model")
    assert str(caught.value) == (
        "the export asked for variables that are set for this build, and that a build does not pass on\n"
        "  where: model `digits`\n"
        "  found: `HIDDEN`\n"
        '  to do: write `pass-env = ["HF_*", "HIDDEN"]` in the hook\'s table,'
        " or unset variables that the model does not need"
    )


def test_an_error_that_follows_from_a_hidden_variable_names_the_variable(reads: Recorder, tmp_path: Path) -> None:
    with pytest.raises(HiddenVariableError) as caught, hidden_refused("digits", ("HIDDEN",), (), reads):
        run('import os\nos.environ["HIDDEN"]', tmp_path / "model.py", "digits.model")
    assert caught.value.found == "`HIDDEN`; then KeyError: 'HIDDEN'"
    with pytest.raises(CaptureError), hidden_refused("digits", ("OTHER",), (), reads):
        raise CaptureError("another fault")


def test_variables_are_hidden_that_are_not_passed_on_or_have_another_value() -> None:
    caller = {"HIDDEN": "64", "TZ": "Europe/Paris", "PATH": "/bin", "TMPDIR": "/tmp", "PYTHONPATH": "x", "PWD": "/"}
    given = {"TZ": "UTC", "PATH": "/bin", "TMPDIR": "/work", "OMP_NUM_THREADS": "1"}
    assert hidden_variables(caller, given) == ("HIDDEN", "TZ")


def test_a_stored_result_does_not_hold_where_a_variable_is_hidden_that_decides(tmp_path: Path) -> None:
    roots = Roots(tmp_path, (), tmp_path, ())
    inputs = replace(no_inputs(), deciding={"HIDDEN": ""})

    def changed(*hidden: str) -> list[str]:
        present = Present(roots, {}, b"s" * 32, StatCache(tmp_path / "stats.json"), hidden=frozenset(hidden))
        return [change.text() for change in changes(inputs, present)]

    assert changed("OTHER") == []
    assert changed("HIDDEN", "OTHER") == ["variable HIDDEN is set, and `pass-env` does not name it"]
