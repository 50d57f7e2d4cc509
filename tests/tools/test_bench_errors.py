"""Errors against eager: what the child process finds, and how it may end."""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.lowered import file_entry, floats, install, lowered_model, safetensors_bytes, write_lowered
from support.plans import call, delegate_entry, method, op, plan_value, python, tensor_input, v
from support.processes import is_running, wait_for

from hatch_lower.cli.measure import command, errors
from hatch_lower.cli.measure.errors import measure_errors
from hatch_lower.cli.measure.figures import ChildFigures, FigureSubject
from hatch_lower.cli.measure.temporary import work_folder
from hatch_lower.errors import ProcessError, ProgramError
from hatch_lower.runtime.files import open_folder

pytestmark = [pytest.mark.torch, pytest.mark.processes]

BLOB = "net/delegates/blob.bin"
ELSEWHERE = {"system": "Plan 9", "machine": "mips", "isa": "mips"}
# A delegate that is what a test makes of its method `run`.
DELEGATE = """
import os, subprocess, sys, time
from hatch_lower.runtime.delegates import Delegate

class Own(Delegate):
    @classmethod
    def load(cls, blob, constants):
        return cls()

    def run(self, inputs):
        {code}
"""


def integers(*values: int) -> tuple[str, int, bytes]:
    return "I64", len(values), struct.pack(f"<{len(values)}q", *values)


def twice(dtype: str = "float32") -> dict[str, Any]:
    """Return a method that gives its input, and the sum of that and itself."""
    given = tensor_input(2, dtype=dtype)
    tree = {"tuple": ["*", "*"]}
    return method([given], [op("aten.add.Tensor", v(0), v(0), out=1)], v(0), v(1), tree=tree)


def model_of(folder: Path, name: str, tensors: Mapping[str, Any] | None, **methods: Any) -> dict[str, Any]:
    """Write a model with one recipe, and with packaged tensors if there are any."""
    model = lowered_model(folder, name, {"default": {"plan": plan_value(methods or {"forward": twice()})}})
    return with_check(folder, name, model, tensors)


def with_check(folder: Path, name: str, model: dict[str, Any], tensors: Mapping[str, Any] | None) -> dict[str, Any]:
    path = f"{name}/check.safetensors"
    return {**model, "check": None if tensors is None else file_entry(folder, path, safetensors_bytes(tensors))}


def packaged(*outputs: tuple[str, int, bytes], name: str = "forward", given: Any = None) -> dict[str, Any]:
    rows = {f"{name}/output/{index}": output for index, output in enumerate(outputs)}
    return {f"{name}/input/0": given or floats(1, 3), **rows}


def measured(folder: Path, *names: str, seconds: float = 300) -> ChildFigures:
    opened = open_folder(folder)
    return measure_errors(dict.fromkeys(names or opened.manifest.models, opened), "net.whl", seconds)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ChildFigures:
    """What comes of several models in one process."""
    folder = tmp_path_factory.mktemp("found") / "_lowered"
    entry = delegate_entry("null", file="other/delegates/blob.bin", target=ELSEWHERE)
    recipes = {
        "default": {"plan": plan_value(forward=twice(), delegates=[entry]), "blobs": {entry["file"]: b"blob"}},
        "portable": {"plan": plan_value(forward=twice())},
    }
    two = {
        **packaged(floats(1, 3), floats(2.00001234, 6)),
        **packaged(floats(1, 3), floats(2, 6.25), name="second"),
    }
    models = {
        "other": with_check(
            folder, "other", lowered_model(folder, "other", recipes), packaged(floats(1, 3), floats(2, 6))
        ),
        "beyond": model_of(folder, "beyond", packaged(floats(1.5, 3), floats(2, 4))),
        "infinite": model_of(folder, "infinite", packaged(floats(1, 3), floats(2, math.nan))),
        "integers": model_of(
            folder,
            "integers",
            packaged(integers(1, 3), integers(2, 7), given=integers(1, 3)),
            forward=twice("int64"),
        ),
        "plain": model_of(folder, "plain", None),
        "shape": model_of(folder, "shape", packaged(floats(1, 3), floats(2))),
        "without": model_of(folder, "without", {"second/input/0": floats(1, 2)}),
        "two": model_of(folder, "two", two, forward=twice(), second=twice()),
    }
    return measured(write_lowered(folder, models))


def error_of(found: ChildFigures, model: str, recipe: str = "default", name: str = "forward") -> float:
    return found.figures[FigureSubject(model, recipe, name)]["error"]


def test_the_error_of_each_method_has_two_digits(found: ChildFigures) -> None:
    assert error_of(found, "two") == 1.2e-5
    assert error_of(found, "two", name="second") == 0.25


def test_an_error_beyond_the_tolerance_is_that_of_all_outputs(found: ChildFigures) -> None:
    assert error_of(found, "beyond") == 2  # of the second output; the first differs by 0.5


@pytest.mark.parametrize("model", ["shape", "integers", "infinite"])
def test_outputs_of_another_kind_have_an_infinite_error(found: ChildFigures, model: str) -> None:
    assert error_of(found, model) == math.inf


def test_what_is_not_compared_has_a_reason(found: ChildFigures) -> None:
    reasons = dict(found.reasons)
    reason = reasons.pop(FigureSubject("other", "default"))
    assert reason.startswith("it cannot run here: ")
    assert "Plan 9" in reason
    missing = "no packaged check inputs"
    assert reasons == {FigureSubject("plain"): missing, FigureSubject("without", "default", "forward"): missing}
    assert error_of(found, "other", "portable") == 0


def test_models_without_check_inputs_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "run_limited", pytest.fail)
    folder = write_lowered(tmp_path / "_lowered", {"net": model_of(tmp_path / "_lowered", "net", None)})
    assert measured(folder).figures == {}


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    model = model_of(tmp_path / "_lowered", "net", packaged(floats(1, 3), floats(2, 6)))
    folder = write_lowered(tmp_path / "_lowered", {"net": model})
    plan = folder / "net/default.json"
    plan.write_bytes(plan.read_bytes().replace(b"float32", b"float64"))
    with pytest.raises(ProgramError, match="another sha256 than the manifest says") as caught:
        measured(folder)
    assert caught.value.where == "net.whl/net"
    assert str(tmp_path) not in str(caught.value)


# What a delegate may do to the process.


def with_delegate(site: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Path:
    """Install a delegate for the child, and return a folder with a model whose method `second` calls it."""
    (site / "own_delegate").mkdir(parents=True)
    (site / "own_delegate/__init__.py").write_text(DELEGATE.format(code=code.replace("\n", "\n        ")))
    install(site, "own-delegate", {"hatch_lower.delegates": {"own": "own_delegate:Own"}})
    monkeypatch.setenv("PYTHONPATH", str(site))
    folder = site / "_lowered"
    given = tensor_input(2)
    second = method([given], [call(0, [v(0)], [given], 1), python("getitem", v(1), 0, out=2)], v(2))
    plan = plan_value({"forward": twice(), "second": second}, delegates=[delegate_entry("own", file=BLOB)])
    recipe = {"plan": plan, "blobs": {BLOB: b"blob"}}
    tensors = {**packaged(floats(1, 3), floats(2, 6)), **packaged(floats(1, 3), name="second")}
    return write_lowered(
        folder, {"net": with_check(folder, "net", lowered_model(folder, "net", {"default": recipe}), tensors)}
    )


def test_a_method_that_hangs_is_named_and_nothing_of_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    code = (
        "other = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        "time.sleep(1000)"
    )
    folder = with_delegate(tmp_path / "site", monkeypatch, code)

    def wait(process: Any, seconds: float) -> bool:
        # as if the time were over as soon as the method hangs
        while not (pids.exists() and pids.read_text().count(" ")):
            assert process.poll() is None
        return False

    monkeypatch.setattr(command, "ended_within", wait)
    with pytest.raises(ProcessError) as caught:
        measured(folder, seconds=60)
    assert caught.value.where == "net.whl, `net/default/second`, at load or call"
    assert caught.value.found == "the process took more than 60 seconds"
    assert [is_running(int(pid)) for pid in pids.read_text().split()] == [False, False]


def test_nothing_stays_of_a_comparison_that_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    code = f"other = subprocess.Popen(['sleep', '1000'])\nopen({str(pid)!r}, 'w').write(str(other.pid))\nreturn inputs"
    found = measured(with_delegate(tmp_path / "site", monkeypatch, code))
    assert error_of(found, "net", name="second") == 0
    wait_for(lambda: not is_running(int(pid.read_text())), "what it started ends")


def test_the_folder_of_a_comparison_that_was_killed_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, signal; from hatch_lower.cli.measure import errors\n"
        "errors.run_limited = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "errors.run_child({}, 60)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with work_folder() as work:  # as the next benchmark does
        assert list(tmp_path.iterdir()) == [work]


def test_a_method_that_ends_the_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "os.write(2, b'the last words'); os.abort()"
    with pytest.raises(ProcessError) as caught:
        measured(with_delegate(tmp_path / "site", monkeypatch, code))
    assert caught.value.where == "net.whl, `net/default/second`, at load or call"
    assert caught.value.found.startswith("the process was ended by SIGABRT; output: the last words")


def test_a_method_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "raise ValueError('no such thing')"
    with pytest.raises(ProgramError) as caught:
        measured(with_delegate(tmp_path / "site", monkeypatch, code))
    assert caught.value.where == "net.whl/net/default/second"
    assert "no such thing" in caught.value.found


def test_methods_run_on_one_core_and_what_they_print_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import torch\nprint(1, flush=True)\nos.write(1, b'[2]')\n"
    code += "return [inputs[0] + torch.get_num_threads() + len(os.sched_getaffinity(0))]"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = os.sched_getaffinity(0)
    found = measured(with_delegate(tmp_path / "site", monkeypatch, code))
    assert error_of(found, "net", name="second") == 2
    assert os.sched_getaffinity(0) == before
