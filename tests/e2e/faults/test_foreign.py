"""A wheel for another torch, processor or platform runs its portable recipe or fails with one sentence: never SIGILL.

Each case is one interpreter that begins afresh. What cannot be had here (another processor) is said by an edited
manifest, as the wheel of another builder would say it. Torch itself can be another one, on demand:
`HATCH_LOWER_TEST_OTHER_TORCH` names an interpreter that has another torch and what hatch-lower requires beside it
(`pip install torch==2.12.1 numpy click filelock packaging platformdirs pyelftools safetensors`).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from packaging.requirements import Requirement
from support.installed import Installed
from support.scenarios import unpack
from support.venv import REPOSITORY, Finished, run

from hatch_lower.backends.aoti.versions import read_shim

pytestmark = [pytest.mark.isolated, pytest.mark.slow, pytest.mark.torch]

HERE = f"{platform.system()} on {platform.machine()}"
OLD_PROCESSOR = "processor\t: 0\nflags\t\t: fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3\n"
WHEELS_ISA = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}[platform.machine()]

LOAD = """
import json, sys
import hatch_lower, torch
import hatch_lower.runtime.selection as selection

recipe, cpuinfo = json.loads(sys.argv[1])
if cpuinfo:
    from functools import partial
    from pathlib import Path
    selection.unsupported_reason = partial(selection.unsupported_reason, cpuinfo=Path(cpuinfo))
model = hatch_lower.load("mixed", recipe=recipe)
"""
# The state that both modules keep is what the first call left, so each is called once.
COMPARE = """
import mixed.model
torch.manual_seed(1)
x, flip = torch.randn(7, 8), torch.tensor(True)
got, want = model(x, flip=flip), mixed.model.make()(x, flip=flip)
torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
native = [line for line in open("/proc/self/maps") if "/_lowered/" in line and line.rstrip().endswith(".so")]
try:
    hatch_lower.load("mixed", recipe="default")
    refusal = ""
except hatch_lower.ProgramError as error:
    refusal = str(error)
print(json.dumps({"torch": torch.__version__, "recipe": model.recipe, "native": native, "refusal": refusal}))
"""


@dataclass(frozen=True)
class Foreign:
    """How a wheel's recipe `default` is for another machine than this, and what is said of it."""

    changes: Mapping[str, Any]
    reason: str
    cpuinfo: str = ""


def target(system: str, machine: str, isa: str) -> dict[str, Any]:
    return {"target": {"system": system, "machine": machine, "isa": isa}}


FOREIGN = {
    "another torch": Foreign(
        {"requirements": ["hatch-lower>=0.1", "torch==2.12.*"]},
        f"it needs torch==2.12.*, and {torch.__version__} is installed",
    ),
    "an instruction set that nobody knows": Foreign(
        target(platform.system(), platform.machine(), "x86-64-v4-amx"),
        "its instruction set `x86-64-v4-amx` is unknown here",
    ),
    "another processor family": Foreign(
        target("Linux", "riscv64", "rva23"), f"it was compiled for Linux on riscv64, and this is {HERE}"
    ),
    "another system": Foreign(
        target("Darwin", "arm64", "armv8-a"), f"it was compiled for Darwin on arm64, and this is {HERE}"
    ),
    "an older processor": Foreign(
        {},
        "it needs the instruction set x86-64-v3, and this processor has no abm, avx, avx2, bmi1, bmi2, f16c, fma, "
        "movbe, xsave",
        OLD_PROCESSOR,
    ),
}
CASES = sorted(set(FOREIGN) - ({"an older processor"} if platform.machine() != "x86_64" else set()))


SHORT = ("another torch", "an older processor")
"""One of the interpreter's environment and one of the machine; unit tests hold the other reasons."""


@pytest.fixture
def installed(built: Callable[[str], Path], tmp_path: Path) -> Installed:
    """The wheel with the recipes `default`, of native code, and `portable`, unpacked."""
    return Installed(unpack(built("mixed"), tmp_path / "site"))


def make_foreign(installed: Installed, foreign: Foreign, *, portable: bool) -> None:
    """Rewrite the manifest to be for another machine; without `portable`, it has no recipe but the native one."""
    value = installed.read(installed.manifest())
    model = value["models"]["mixed"]
    model["recipes"]["default"].update(foreign.changes)
    if not portable:
        del model["recipes"]["portable"]
        model["order"].remove("portable")
    installed.rewrite(installed.manifest(), json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")


def start(
    installed: Installed, script: str, recipe: str | None, cpuinfo: str = "", interpreter: str = sys.executable
) -> Finished:
    """Run a script in a fresh interpreter where the wheel is installed."""
    described = installed.site.parent / "cpuinfo"
    described.write_text(cpuinfo)
    file = installed.site.parent / "script.py"
    file.write_text(script)
    arguments = json.dumps([recipe, str(described) if cpuinfo else ""])
    environment = {"PYTHONPATH": f"{installed.site}{os.pathsep}{REPOSITORY}"}
    return run([interpreter, file, arguments], cwd=installed.site.parent, environment=environment)


def warnings_in(finished: Finished) -> list[str]:
    """Return the warnings of hatch-lower's that Python printed, each with where it points."""
    return [line for line in finished.stderr.splitlines() if "RuntimeWarning: model `mixed`" in line]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SHORT else pytest.mark.long) for case in CASES]
)
def test_the_portable_recipe_runs_instead_and_that_is_said_once(installed: Installed, case: str) -> None:
    foreign = FOREIGN[case]
    make_foreign(installed, foreign, portable=True)
    done = start(installed, LOAD + COMPARE, None, foreign.cpuinfo).check()
    report = json.loads(done.stdout)
    assert report["recipe"] == "portable"
    assert report["native"] == [], "none of the native code was even mapped"
    (warning,) = warnings_in(done)
    assert warning.startswith(f"{installed.site.parent / 'script.py'}:"), "it points at the caller's line"
    text = f"model `mixed` runs recipe `portable` because `default` cannot run here: {foreign.reason}"
    assert warning.endswith(f"RuntimeWarning: {text}")
    assert report["refusal"] == (
        "recipe `default` of model `mixed` cannot run here\n"
        f"  found: `default`: {foreign.reason}\n"
        "  to do: install the named packages, or another wheel of the distribution"
    ), "asked for by name, it is never another one"


@pytest.mark.parametrize(
    "case",
    [
        "another torch",
        pytest.param("another system", marks=pytest.mark.long),  # its reason is that of the test above
        pytest.param("an instruction set that nobody knows", marks=pytest.mark.long),
    ],
)
def test_without_a_portable_recipe_it_fails_with_the_reason(installed: Installed, case: str) -> None:
    foreign = FOREIGN[case]
    make_foreign(installed, foreign, portable=False)
    done = start(installed, LOAD + COMPARE, None, foreign.cpuinfo)
    assert done.status == 1, "neither a signal nor a success"
    assert done.stdout == ""
    assert done.stderr.count("Traceback") == 1, "one error, and none that led to it"
    assert done.stderr.endswith(
        "hatch_lower.errors.ProgramError: model `mixed` cannot run here\n"
        f"  found: `default`: {foreign.reason}\n"
        "  to do: install the named packages, or another wheel of the distribution\n"
    )


def test_the_wheel_runs_where_it_was_built_for(installed: Installed) -> None:
    done = start(installed, LOAD + COMPARE, None).check()
    report = json.loads(done.stdout)
    assert (report["recipe"], report["refusal"]) == ("default", "")
    assert report["native"]
    assert warnings_in(done) == []


def test_a_recipe_needs_what_its_delegates_need(installed: Installed) -> None:
    """Native code is bound to a range of torch and to the instruction set; a portable recipe to torch alone."""
    recipes = installed.read(installed.manifest())["models"]["mixed"]["recipes"]
    shim = read_shim()
    expected = f"torch>={shim.versions[0]},<2.{int(shim.versions[-1].partition('.')[2]) + 1}"
    assert recipes["default"]["requirements"] == ["hatch-lower>=0.1", expected]
    assert recipes["default"]["target"] == target(platform.system(), platform.machine(), WHEELS_ISA)["target"]
    assert recipes["portable"]["requirements"] == ["hatch-lower>=0.1", "torch>=2.11"]
    assert recipes["portable"]["target"] is None


def test_the_tag_is_the_one_that_auditwheel_gives_the_symbols(built: Callable[[str], Path]) -> None:
    wheel = built("mixed")
    tag = wheel.stem.rpartition("-")[2]
    with ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/WHEEL"))
        assert HeaderParser().parsestr(archive.read(name).decode()).get_all("Tag") == [f"py3-none-{tag}"]
    # with what auditwheel finds here in libgomp's and torch's place, and without: those are not in the wheel
    for places in ([], ["--ldpaths", ""], ["--ldpaths", str(Path(torch.__file__).parent / "lib")]):
        command = [sys.executable, "-m", "auditwheel", "show", "--json", *places, str(wheel)]
        shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert shown["sym_tag"] == tag
        assert sorted(shown["external_libs"])[-2:] == ["libgomp.so.1", "libtorch_cpu.so"]
        assert shown["overall_tag"] == f"linux_{platform.machine()}", "for it does not know that torch brings those"


@pytest.mark.skipif("HATCH_LOWER_TEST_OTHER_TORCH" not in os.environ, reason="on demand: needs another torch")
def test_with_another_torch_for_real(installed: Installed) -> None:
    done = start(installed, LOAD + COMPARE, None, interpreter=os.environ["HATCH_LOWER_TEST_OTHER_TORCH"]).check()
    report = json.loads(done.stdout)
    requirement = installed.read(installed.manifest())["models"]["mixed"]["recipes"]["default"]["requirements"][-1]
    assert not report["torch"].startswith(".".join(torch.__version__.split(".")[:2]) + ".")
    if Requirement(requirement).specifier.contains(report["torch"]):
        assert (report["recipe"], report["refusal"]) == ("default", "")
        assert report["native"]
        assert done.stderr == "", "libtorch writes warnings past Python"
        return
    reason = f"it needs {requirement}, and {report['torch']} is installed"
    assert (report["recipe"], report["native"]) == ("portable", [])
    assert [line.rpartition("cannot run here: ")[2] for line in warnings_in(done)] == [reason]
    assert f"\n  found: `default`: {reason}\n" in report["refusal"]
