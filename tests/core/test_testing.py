"""The kit for backends: what it says of the shipped ones, and of backends that get one thing wrong each."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from support import sabotage
from support.effort import LONG

import hatch_lower.backends.testing
from hatch_lower.backends.testing import Exports, Facts, Tolerance, backend_tests, trial_names
from hatch_lower.backends.testing.bench import KitBackend
from hatch_lower.backends.testing.comparison import first_difference, subnormals_flushed
from hatch_lower.backends.testing.kit import Kit, judge
from hatch_lower.errors import BackendError, InputError
from hatch_lower.runtime.delegates import Delegate

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
ELSEWHERE = "checks/bytes are the same in other processes"
BRIEF = [
    "operators/perceptron",
    "operators/arithmetic float32",
    "operators/arithmetic float16",
    "outputs/several",
    "constants/every kind",
    "symbolic sizes/batch",
    "state/counted",
    "control flow/cond",
    *(name for name in trial_names("checks/*") if name != ELSEWHERE),
]
"""Something of everything; what starts other processes is left to those tests that are about it."""

FEW = ["operators/perceptron", "operators/arithmetic float16", "constants/every kind", "state/counted"]
"""For a backend that gets something wrong, with the checks that find it."""

QUICK = [
    name
    for name in trial_names()
    if not name.startswith(("operators/", "limits/"))
    or name.endswith(("float32", "bool", "wrapping int32", "counting"))
]
QUICK.remove(ELSEWHERE)
"""What every run tries. Exporting takes longest; a long run adds the operators of other dtypes."""

EXPORTS = Exports()
"""The exported programs, which all tests share."""


def outcomes(backend_id: str, only: str | Sequence[str], **facts: Any) -> dict[str, tuple[str, str]]:
    """Return how the test of each program and check comes out, and what it says."""
    kit = Kit(KitBackend(backend_id, **facts), only, EXPORTS)
    found = {}
    try:
        kit.prepare()
        for name in kit.names:
            said = io.StringIO()
            try:
                with redirect_stdout(said):
                    judge(kit, name)
                found[name] = "passed", said.getvalue().rstrip("\n")
            except (pytest.skip.Exception, pytest.fail.Exception) as error:
                found[name] = type(error).__name__.lower(), str(error)
    finally:
        kit.close()
    return found


def names_of(found: Mapping[str, tuple[str, str]], status: str) -> set[str]:
    return {name for name, (outcome, _) in found.items() if outcome == status}


test_reference = backend_tests(
    "reference", checks_inputs=True, packed_copies=1, only="*" if LONG else QUICK, exports=EXPORTS
)


def test_null_is_lowered_and_packaged_and_not_run() -> None:
    found = outcomes("null", BRIEF, computes=False)
    assert not names_of(found, "failed")
    details = {said for name, (_, said) in found.items() if name.startswith("operators/")}
    assert details == {"all operations in 1 partition; lowered, packaged and loaded, but not run"}
    assert ("skipped", "not claimed: the backend computes nothing") in found.values()


AOTI = [
    *("operators/fused", "state/counted"),
    *(f"checks/{each}*" for each in ("the partitioner", "every debug", "every option", "unknown", "wrong")),
    *("checks/weights are*", "checks/later*", "checks/clones*", "checks/calls*"),
]
"""Two programs, compiled side by side, and the checks that compile nothing more: each library takes seconds."""
AOTI_VARIATIONS = {"isa": ["x86-64-v2"], "exclude": [["aten.mul.Tensor"]], "prepack-weights": [False], "timers": [True]}
"""Other values of all its options; each changes every partition of the two programs, so that nothing is compiled."""


@pytest.mark.slow
@pytest.mark.rest
def test_aoti_passes() -> None:
    only = "*" if LONG else AOTI
    found = outcomes("aoti", only, variations=AOTI_VARIATIONS, keeps_files=True)
    assert not names_of(found, "failed"), found
    assert LONG or not {name for name in names_of(found, "skipped") if not name.startswith("checks/")}


LATER = "checks/later calls are as the first"
MEMORY = "checks/calls give their memory back"
AROUND = "checks/nothing around it is used"
BOUND = "checks/weights are bound and not copied"
MAPPED = "checks/weights stay mapped"
BACKENDS: Mapping[str, tuple[str, dict[str, Any], set[str]]] = {
    "nothing is wrong": ("ReferenceLike", {"delegate": sabotage.ReferenceDelegate}, set()),
    "nothing is wrong, and weights are bound": (
        "Bound",
        {"delegate": sabotage.BoundDelegate, "packed_copies": 0},
        set(),
    ),
    "a wrong number": (
        "ReferenceLike",
        {"delegate": sabotage.WrongNumberDelegate},
        {"operators/arithmetic float16"},
    ),
    "results are the engine's memory": (
        "ReferenceLike",
        {"delegate": sabotage.EngineMemoryDelegate},
        {"checks/later calls are as the first"},
    ),
    "no debug map for some": (
        "SometimesMapped",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/every debug handle is accounted for"},
    ),
    "other bytes each time": (
        "Counting",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/bytes are the same twice", "checks/every constant is in result or key"},
    ),
    "state that instances share": (
        "Freezing",
        {"delegate": sabotage.LastLoadedDelegate},
        {"checks/clones and others beside it"},
    ),
    "a dropped handle": (
        "DroppedHandle",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/every debug handle is accounted for"},
    ),
    "a constant that is not in the key": (
        "Peeking",
        {"delegate": sabotage.BoundDelegate},
        {"checks/every constant is in result or key"},
    ),
    "an option that is not in the key": (
        "Levelled",
        {"delegate": sabotage.ReferenceDelegate, "variations": {"level": [3]}},
        {"checks/every option is in result or key"},
    ),
    "an option without effect": (
        "Idle",
        {"delegate": sabotage.ReferenceDelegate, "variations": {"level": [3]}},
        {"checks/every option is in result or key", "checks/unknown options are refused"},
    ),
    "frozen state": ("Freezing", {"delegate": sabotage.FreezingDelegate}, {"state/counted"}),
    "a partitioner that is quadratic": (
        "Quadratic",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/the partitioner is linear"},
    ),
    "a partitioner that writes": (
        "Writing",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/the partitioner leaves the program as it was"},
    ),
    "copied weights": (
        "Bound",
        {"delegate": sabotage.CopyingDelegate, "packed_copies": 0},
        {"checks/weights are bound and not copied", "checks/weights stay mapped"},
    ),
    "wrong inputs are taken": (
        "ReferenceLike",
        {"delegate": sabotage.AnyInputDelegate, "checks_inputs": True},
        {"checks/the delegate refuses wrong inputs"},
    ),
    "instances that share state": (
        "Freezing",
        {"delegate": sabotage.SharedStateDelegate},
        {"checks/clones and others beside it"},
    ),
    "a wrong number from the 40th call on": (
        "ReferenceLike",
        {"delegate": sabotage.TiredDelegate},
        {"checks/later calls are as the first"},
    ),
    "results that are kept": (
        "ReferenceLike",
        {"delegate": sabotage.LeakingDelegate},
        {"checks/calls give their memory back"},
    ),
    "files that stay open": (
        "ReferenceLike",
        {"delegate": sabotage.OpeningDelegate},
        {"checks/calls give their memory back"},
    ),
    "a variable that shapes the bytes": (
        "Listening",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/nothing around it is used"},
    ),
    "a variable that shapes the numbers": (
        "ReferenceLike",
        {"delegate": sabotage.ListeningDelegate},
        {"checks/nothing around it is used"},
    ),
    "a connection": ("ReferenceLike", {"delegate": sabotage.ConnectingDelegate}, {"checks/nothing around it is used"}),
    "a file of the home folder": (
        "ReferenceLike",
        {"delegate": sabotage.HomelyDelegate},
        {"checks/nothing around it is used"},
    ),
    "the home folder in the result": (
        "Placed",
        {"delegate": sabotage.ReferenceDelegate},
        {"checks/nothing around it is used"},
    ),
    "weights copied once": (
        "Bound",
        {"delegate": sabotage.CopiedOnceDelegate, "packed_copies": 0},
        {"checks/weights are bound and not copied", "checks/weights stay mapped"},
    ),
    "weights copied in each call": (
        "Bound",
        {"delegate": sabotage.CopiedEachTimeDelegate, "packed_copies": 0},
        {"checks/weights stay mapped"},
    ),
    "one call at a time": ("ReferenceLike", {"delegate": sabotage.OneCallDelegate}, {"checks/calls from threads"}),
}


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_wrong_is_found_and_nothing_else(name: str) -> None:
    backend_id, arguments, expected = BACKENDS[name]
    only = BRIEF if LONG or not expected else [*FEW, *sorted(expected)]
    found = outcomes(backend_id, only, **{"packed_copies": 1, **arguments})
    assert names_of(found, "failed") == expected, found
    assert names_of(found, "passed")
    assert not any(said.startswith("refused") for _, said in found.values())


@pytest.mark.parametrize(
    ("delegate", "found"),
    [
        (sabotage.OneMoreDelegate, "2 outputs instead of 1"),
        (sabotage.TurnedDelegate, "the strides [1, 3] instead of [2, 1] for the shape [3, 2]"),
    ],
)
def test_outputs_that_were_not_planned_are_found_in_each_program(delegate: type[Delegate], found: str) -> None:
    assert outcomes("ReferenceLike", "operators/perceptron", delegate=delegate) == {
        "operators/perceptron": (
            "failed",
            f"the outputs of a delegate differ from the outputs that the delegate was lowered for ({found})",
        )
    }


def test_bytes_that_depend_on_the_hash_seed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hatch_lower.backends.testing.determinism.SEEDS", ("1",)
    )  # each is a process that imports torch
    found = outcomes(
        "HashedBytes", ["operators/arithmetic float32", "checks/bytes*"], delegate=sabotage.ReferenceDelegate
    )
    assert names_of(found, "failed") == {ELSEWHERE}
    assert found[ELSEWHERE][1].startswith(
        "equal partitions give other bytes or facts in a process with PYTHONHASHSEED="
    )


def refusing(program: object, specs: object) -> Any:
    raise BackendError("this engine has no perceptrons", found="a product")


def test_what_a_backend_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sabotage.ReferenceLike, "preprocess", staticmethod(refusing))
    found = outcomes("ReferenceLike", "operators/perceptron", delegate=sabotage.ReferenceDelegate)
    assert found == {"operators/perceptron": ("skipped", "refused: this engine has no perceptrons (a product)")}


def test_other_exceptions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sabotage.ReferenceLike, "preprocess", staticmethod(lambda program, specs: 1 / 0))
    found = outcomes("ReferenceLike", "operators/perceptron", delegate=sabotage.ReferenceDelegate)
    assert found == {"operators/perceptron": ("failed", "ZeroDivisionError: division by zero")}


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        trial_names("operator/*")
    assert str(caught.value) == (
        "no program or check of the kit matches the name\n  found: operator/*\n  to do: `*` stands for any text"
    )


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(BackendError, match="there is no backend `referenz`"):
        outcomes("referenz", "*")


def test_the_page_names_all_that_is_public() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    assert hatch_lower.backends.testing.__all__ == sorted(hatch_lower.backends.testing.__all__)
    for name in hatch_lower.backends.testing.__all__:
        assert getattr(hatch_lower.backends.testing, name) is not None
        assert f"\n| `{name}" in page
    with pytest.raises(AttributeError, match=r"^module 'hatch_lower.backends.testing' has no attribute 'Kit'$"):
        hatch_lower.backends.testing.Kit  # noqa: B018


def test_the_page_has_all_groups_and_checks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    for name in trial_names():
        group, _, rest = name.partition("/")
        assert (f"| {rest} |" if group == "checks" else f"`{group}`") in page


def test_there_are_some_hundred_programs_with_names_of_their_own() -> None:
    names = trial_names()
    assert len(names) == len(set(names)) > 110
    groups = {name.partition("/")[0] for name in names}
    assert groups == {
        *("operators", "limits", "shapes", "symbolic sizes", "resizing", "values", "outputs", "aliases"),
        *("constants", "state", "control flow", "checks"),
    }


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
    [
        (torch.ones(2), torch.ones(2), ""),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), ""),
        (torch.ones(2), torch.ones(3), "output 0: float32[2] instead of float32[3]"),
        (torch.ones(2), torch.ones(2).double(), "output 0: float32[2] instead of float64[2]"),
        (
            torch.tensor([1, 2]),
            torch.tensor([1, 3]),
            "output 0: 2 instead of 3 at [1] (1 of 2 numbers differ)",
        ),
        ([torch.ones(1), 3], [torch.ones(1), 4], "output 1: 3 instead of 4"),
        ([3], [True], "output 0: 3 instead of True"),
    ],
)
def test_differences_are_said(found: Any, expected: Any, difference: str) -> None:
    assert first_difference(found, expected, Tolerance()) == difference


def test_each_tensor_may_agree_with_another_result() -> None:
    found, expected, other = [torch.zeros(1), torch.ones(1)], [torch.ones(1), torch.ones(1)], [torch.zeros(1)] * 2
    assert first_difference(found, expected, Tolerance()).startswith("output 0: 0.0 instead of 1.0")
    assert first_difference(found, expected, Tolerance(), other) == ""
    assert first_difference(found, [torch.ones(1)] * 2, Tolerance(), [torch.ones(1)] * 2).startswith("output 0: ")


def test_subnormal_numbers_are_flushed_for_a_while_only() -> None:
    small = torch.tensor([1e-40])
    with subnormals_flushed():
        assert (small * 1).item() == 0
    assert (small * 1).item() > 0


def test_a_kit_leaves_no_files() -> None:
    kit = Kit(KitBackend("reference"), "operators/perceptron", EXPORTS)
    assert kit.run("operators/perceptron") == "all operations in 1 partition"
    assert list(kit.bench.folder.iterdir())
    kit.close()
    assert not kit.bench.folder.exists()


def test_there_is_a_fact_for_each_field_of_a_subject() -> None:
    fields = {field.name for field in dataclasses.fields(KitBackend)}
    assert fields - {"backend_id", "options"} == set(Facts.__annotations__)


def test_a_fact_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="packed_copy"):
        backend_tests("reference", packed_copy=1)  # type: ignore[call-arg]


OWN_TESTS = """
from support import sabotage
from hatch_lower.backends.testing import backend_tests
test_mine = backend_tests(
    "ReferenceLike",
    delegate=sabotage.WrongNumberDelegate,
    only=["operators/perceptron", "operators/arithmetic float16", "checks/every option*"],
)
"""


def test_one_line_in_a_test_module_makes_tests(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN_TESTS)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "all operations in 1 partition\n" in said
    assert "FAILED test_own.py::test_mine[operators/arithmetic float16] - Failed: call" in said
    assert "\ncall 1, output 0: " in said
    assert "not claimed: no `variations` were given" in said


def test_the_package_imports_nothing_heavy(modules_after: Callable[[str], set[str]]) -> None:
    modules = modules_after("import hatch_lower.backends.testing")
    ours = {name for name in modules if name.startswith("hatch_lower")}
    assert ours == {"hatch_lower", "hatch_lower.backends", "hatch_lower.backends.testing"}
    assert "torch" not in modules
