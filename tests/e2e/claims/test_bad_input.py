"""It fails well: one paragraph that names the TOML key or the model's line, and nothing is left behind."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenarios import Project, tree

pytestmark = [pytest.mark.isolated, pytest.mark.slow]

TABLE = "tool.hatch.build.targets.wheel.hooks.lower"
PYPROJECT = "pyproject.toml"
CORRECT_IT = "correct pyproject.toml (or hatch.toml); `hatch-lower schema` describes every setting"


def message_of(project: Project, environment: dict[str, str] | None = None) -> str:
    """Build, see that it fails and leaves nothing, and return the paragraph that it fails with."""
    before = tree(project.root)
    done = project.build(environment=environment)
    assert done.status == 1, done.output
    assert "Traceback" not in done.stderr
    assert project.left_behind() == []
    assert tree(project.root) == before
    _, found, paragraph = done.stderr.partition("hatch-lower: ")
    assert found, done.stderr
    return "\n".join(line.rstrip() for line in paragraph.strip().splitlines())


LONG_ONLY = pytest.mark.long
"""The same message is the subject of a unit test; that a build passes messages on, other tests here show."""

ACCEPTED = (
    "return a `hatch_lower.Model`, a tuple `(module, example_args)`, a `torch.export.ExportedProgram`, "
    "a dict of method name to `ExportedProgram`, or an `ExportedModel` of transformers' `DynamoExporter`"
)
ENTRY_POINTS = {
    "gone": """`bad_entry.model` has no attribute `gone`
  where: entry point `bad_entry = bad_entry.model:gone`
  to do: known: `Branching`, `Counting`, `FixedRows`, `Square`, `Taken`, `branching`, `constraint`, \
`counting`, `crashing`, `killed`, `misfit`, `missing_method`, `printing`, `raising`, `taken`, `wrong_type`""",
    "not_callable": f"""an entry point must be a function without arguments
  where: entry point `bad_entry = bad_entry.model:not_callable`
  found: `bad_entry.model:not_callable` is 42
  to do: define a function that builds the model; {ACCEPTED}""",
    "raising": """the entry point failed
  where: entry point `bad_entry = bad_entry.model:raising`, bad_entry/model.py:43
  found: RuntimeError: the weights are not here""",
    "wrong_type": f"""the entry point returned a value that cannot be exported
  where: entry point `bad_entry = bad_entry.model:wrong_type`
  found: 42
  to do: {ACCEPTED}""",
    "misfit": """method `forward` does not run with its example inputs
  where: model `bad_entry`, method `forward`
  found: TypeError: Square.forward() takes 2 positional arguments but 3 were given
  to do: correct `args` and `kwargs` of the `hatch_lower.Method`; the parameters are `x`""",
    "branching": """torch.export cannot capture method `forward`
  where: model `bad_entry`, method `forward`, bad_entry/model.py:19
  found: GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1)).  \
(Size-like symbols: none)
  to do: the line depends on the values in a tensor; use `torch.cond`, `torch.where` or `torch._check` there""",
    "constraint": """the dynamic shapes of method `forward` do not hold
  where: model `bad_entry`, method `forward`
  found: Constraints violated (rows)!
      - You marked rows as dynamic but your code specialized it to be a constant (3). If you're using mark_dynamic, \
either remove it or use maybe_mark_dynamic. If you're using Dim.DYNAMIC, replace it with either Dim.STATIC or Dim.AUTO.
    Suggested fixes:
      rows = 3
  to do: declare `dynamic_shapes` as torch suggests, or omit the dimension to keep the size fixed; \
the parameters are `x`""",
    "missing_method": """`Square` has no method `embed`
  where: model `bad_entry`, method `embed`
  to do: known: `forward`""",
    "taken": """`recipe` is already an attribute of every loaded model
  where: model `bad_entry`, method `recipe`
  to do: rename it: `"run_recipe": Method(attribute="recipe", …)`""",
    "killed": """the model's code or a backend tried to end the build process
  where: model `bad_entry`
  found: os.kill(PID, SIGKILL)
  to do: let it raise an exception that says what is wrong""",
}


SHORT = ("raising", "branching")
"""One that fails in the model's own code, and one that cannot be exported."""


@pytest.mark.parametrize(
    "entry", [pytest.param(each, marks=() if each in SHORT else LONG_ONLY) for each in ENTRY_POINTS]
)
def test_an_entry_point_that_cannot_be_lowered(project: Callable[[str], Project], entry: str) -> None:
    bad = project("bad_entry")
    bad.edit(PYPROJECT, ":ENTRY", f":{entry}")
    assert re.sub(r"os\.kill\(\d+,", "os.kill(PID,", message_of(bad)) == ENTRY_POINTS[entry]


def test_an_entry_point_that_crashes(project: Callable[[str], Project]) -> None:
    bad = project("bad_entry")
    bad.edit(PYPROJECT, ":ENTRY", ":crashing")
    message = message_of(bad)
    assert message.startswith(
        """the build process crashed (SIGSEGV)
  where: model `bad_entry`, stage `import` of `bad_entry`
  found: Fatal Python error: Segmentation fault
"""
    )
    assert "in crashing" in message, "the model's own line"
    assert message.endswith(
        "to do: the last stage says which backend or operation was at work; lower the model without it to be sure"
    )


@LONG_ONLY
def test_a_module_that_is_missing(project: Callable[[str], Project]) -> None:
    bad = project("bad_entry")
    bad.edit(PYPROJECT, "bad_entry.model:ENTRY", "bad_entry.modle:raising")
    assert message_of(bad) == (
        """there is no module `bad_entry.modle`
  where: entry point `bad_entry = bad_entry.modle:raising`
  found: looked in `.`
  to do: did you mean `bad_entry.model`? known: `bad_entry.model`"""
    )


@LONG_ONLY
def test_a_module_whose_import_fails(project: Callable[[str], Project]) -> None:
    assert message_of(project("raises_on_import")) == (
        """importing `raises_on_import.model` failed: there is no module `a_package_that_nobody_installed`
  where: entry point `raises_on_import = raises_on_import.model:export`, raises_on_import/model.py:3
  to do: if `a_package_that_nobody_installed` is a library, add the library to `[build-system] requires`"""
    )


def test_an_entry_point_that_prints_does_not_reach_stdout(project: Callable[[str], Project]) -> None:
    printing = project("bad_entry")
    printing.edit(PYPROJECT, ":ENTRY", ":printing")
    done = printing.build(environment={"HATCH_VERBOSE": "1"}).check()
    assert "loading the weights" not in done.stdout
    assert "loading the weights" in done.stderr


def test_every_wrong_key_is_reported_at_once(project: Callable[[str], Project]) -> None:
    assert message_of(project("typo_key")) == (
        f"""3 settings of the build hook `lower` are wrong
  found: `{TABLE}.backend` is not a setting, found an array; did you mean `backends`? known: `atol`, `backends`, \
`bench`, `cache`, `check-megabytes`, `editable`, `executor`, `imports`, `inputs`, `jobs`, `keep-weights`, \
`models`, `on-mismatch`, `order`, `package`, `pass-env`, \
`recipes`, `rtol`, `runtime-requirements`, `strict`, `timeout`, \
`torch-free`, `variants`, `verify`, `weights`
    `{TABLE}.jobs` must be an integer of at least 1, found the string "many"
    `{TABLE}.recipes.portable.rtoll` is not a setting, found the number 0.1; did you mean `rtol`? known: `atol`, \
`backends`, `extra`, `max-drop`, `on-mismatch`, `precision`, `rtol`, `torch-free`, `verify`
  to do: {CORRECT_IT}"""
    )


def test_an_unknown_backend(project: Callable[[str], Project]) -> None:
    assert message_of(project("unknown_backend")) == (
        f"""a setting of the build hook `lower` is wrong
  found: `{TABLE}.backends[0]` names no installed backend, found `aotl`; did you mean `aoti`? known: `aoti`, `cuda`, \
`executorch`, `null`, `onnxruntime`, `openvino`, `reference`
  to do: {CORRECT_IT}"""
    )


def test_an_unknown_recipe(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    bad.edit(PYPROJECT, 'backends = ["null"]', 'backends = ["null"]\nmodels.tiny.recipes = ["defualt"]')
    assert message_of(bad) == (
        f"""a setting of the build hook `lower` is wrong
  found: `{TABLE}.models.tiny.recipes[0]` names no recipe, found `defualt`; did you mean `default`? known: `default`
  to do: {CORRECT_IT}"""
    )


def test_a_model_that_is_declared_twice(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    with (bad.root / PYPROJECT).open("a") as file:
        file.write(f'\n[{TABLE}.models.tiny]\nexport = "tiny.model:export"\n')
    assert message_of(bad) == (
        f"""a setting of the build hook `lower` is wrong
  found: `{TABLE}.models.tiny.export` repeats the model that `project.entry-points."hatch_lower.models".tiny` \
declares; keep either
  to do: {CORRECT_IT}"""
    )


@LONG_ONLY
def test_dependencies_that_do_not_imply_what_the_programs_need(known: Callable[[str], Project]) -> None:
    bad = known("tiny")
    bad.edit(PYPROJECT, 'dependencies = ["hatch-lower>=0.1", "torch==2.13.*"]', 'dependencies = ["torch>=2.13"]')
    assert message_of(bad) == (
        """the project's dependencies do not imply the requirements of its lowered programs
  where: project.dependencies
  found: `hatch-lower>=0.1`: not among the dependencies
  to do: let `[project] dependencies` contain
    dependencies = [
        "hatch-lower>=0.1",
    ]
    or set `runtime-requirements` of the build hook `lower` to "add" or "off\""""
    )


@LONG_ONLY
def test_no_compiler(project: Callable[[str], Project]) -> None:
    assert message_of(project("mixed"), {"CXX": "/nowhere/g++", "PATH": "/nowhere"}) == (
        """no C++ compiler was found, and the backend `aoti` needs one to build
  found: CXX is '/nowhere/g++', which is not a program
  to do: install a compiler (`apt-get install g++`, `dnf install gcc-c++`), or set CXX to its path"""
    )


@LONG_ONLY
def test_a_time_limit(project: Callable[[str], Project], tmp_path_factory: pytest.TempPathFactory) -> None:
    slow = project("slow")
    slow.edit(PYPROJECT, "backends = []", "backends = []\ntimeout = 8")
    marker = tmp_path_factory.mktemp("marker") / "marker"
    assert message_of(slow, {"SLOW_MARKER": str(marker)}) == (
        """the build process took longer than its time limit of 8 s
  where: model `slow`, stage `import` of `slow`
  to do: raise `timeout` in the hook's table (seconds), or look at why this stage takes so long"""
    )


@LONG_ONLY
def test_a_payload_path_that_the_wheel_has_already(project: Callable[[str], Project]) -> None:
    bad = project("tiny")
    (bad.root / "tiny" / "_lowered").mkdir()
    (bad.root / "tiny" / "_lowered" / "manifest.json").write_text("{}")
    assert message_of(bad) == (
        """the project has files where the lowered programs go
  where: tool.hatch.build.targets.wheel
  found: `tiny/_lowered/manifest.json`
  to do: remove the folder `_lowered` of an earlier build, or take the folder out of `force-include`"""
    )


# Runs between our two halves, and changes what the first has left for the second.
MEDDLING_HOOK = """
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Meddling(BuildHookInterface):
    def initialize(self, version, build_data):
        for path in Path(tempfile.gettempdir()).glob("hatch-lower-*/payload/**/manifest.json"):
            path.write_text("{}")
"""


def test_a_failure_inside_finalize(project: Callable[[str], Project], tmp_path: Path) -> None:
    bad = project("tiny")
    (bad.root / "hatch_build.py").write_text(MEDDLING_HOOK)
    with (bad.root / PYPROJECT).open("a") as file:
        file.write("\n[tool.hatch.build.targets.wheel.hooks.custom]\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    message = message_of(bad, {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"})
    assert message.startswith(
        "the file for `tiny/_lowered/manifest.json` is no longer the lowered file: the cache is damaged\n"
    )
    assert message.endswith("to do: delete this file and build again")
    assert list(temporary.glob("hatch-lower-*")) == []


@LONG_ONLY
def test_a_mismatch_with_eager(project: Callable[[str], Project]) -> None:
    bad = project("bad_entry")
    bad.edit(PYPROJECT, ":ENTRY", ":counting")  # its state is a Python number, which an export cannot see
    assert message_of(bad) == (
        """the lowered method computes other numbers than the eager module
  where: model `bad_entry`, recipe `default`, method `forward`, example inputs, its only output
  found: largest absolute error 1, largest relative error 0.5 (allowed: atol 1e-05, rtol 0.0001); 6 of 6 values \
are wrong
  to do: if the difference is acceptable, raise `rtol` and `atol` in the hook's table; if not, leave out backends to \
find the backend that causes the difference, and report it there"""
    )


def test_a_failed_model_keeps_what_another_had_finished(project: Callable[[str], Project]) -> None:
    both = project("tiny")
    both.edit(PYPROJECT, 'tiny = "tiny.model:export"', 'tiny = "tiny.model:export"\nzz_gone = "tiny.model:gone"')
    message_of(both)
    both.edit(PYPROJECT, '\nzz_gone = "tiny.model:gone"', "")
    both.build(environment={"HATCH_LOWER_CACHE": "frozen"}).check()


def test_a_cache_that_cannot_be_written_does_not_fail_the_build(project: Callable[[str], Project]) -> None:
    tiny = project("tiny")
    tiny.cache.write_text("a file where the folder should be")
    tiny.build().check()
    shutil.rmtree(tiny.dist)


def test_a_variable_that_a_build_does_not_pass_on(project: Callable[[str], Project]) -> None:
    tiny = project("tiny")
    tiny.edit("tiny/model.py", "torch.zeros(2, 3)", 'torch.zeros(2, int(__import__("os").environ.get("HIDDEN", "3")))')
    expected = """the export asked for variables that are set for this build, and that a build does not pass on
  where: model `tiny`
  found: `HIDDEN`
  to do: write `pass-env = ["HIDDEN"]` in the hook's table, or unset variables that the model does not need"""
    tiny.wheel()
    shutil.rmtree(tiny.dist)
    for cache in ("on", "off"):  # in the cache is the result of a build without the variable
        assert message_of(tiny, {"HIDDEN": "64", "HATCH_LOWER_CACHE": cache}) == expected
    tiny.edit(PYPROJECT, 'backends = ["null"]', 'backends = ["null"]\npass-env = ["HIDDEN"]')
    tiny.wheel({"HIDDEN": "64", "HF_HOME": "/nowhere/models", "CI": "1", "TERM": "xterm", "CUDA_VISIBLE_DEVICES": "0"})
