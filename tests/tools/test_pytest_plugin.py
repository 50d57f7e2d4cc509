"""The plugin of pytest, in runs of pytest in this process: its wheel is of a model that is lowered in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.exports import NET_PROJECT, Workshop, packaged, write_wheel

# a run in this process forgets what it has imported, and torch cannot be imported twice
import hatch_lower.runtime.check
import hatch_lower.runtime.load  # noqa: F401
from hatch_lower.cli.measure import exact, opened, tested, worker  # noqa: F401
from hatch_lower.cli.measure.side import BenchSide, open_wheel_side
from hatch_lower.cli.measure.temporary import shared_folder
from hatch_lower.errors import ProcessError

BenchmarkFixture = pytest.importorskip("pytest_benchmark.fixture").BenchmarkFixture

pytestmark = pytest.mark.torch
pytest_plugins = ["pytester"]

SPEED = """\
def test_speed(benchmark, lowered_model, example_inputs):
    if example_inputs.changes:
        benchmark.pedantic(lowered_model, setup=example_inputs.renew, rounds=5)
    else:
        benchmark(lowered_model, *example_inputs.args, **example_inputs.kwargs)
"""
METHODS = [f"net/{recipe}/{method}" for recipe in ("default", "portable") for method in ("embed", "forward")]
BRIEF = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=1")
Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shop = Workshop(tmp_path_factory.mktemp("shop"))
    metadata = "Metadata-Version: 2.4\nName: net\nVersion: 1.0\n"
    return write_wheel(shop.folder / "net-1.0-py3-none-any.whl", packaged(shop), METADATA=metadata)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: Path) -> Iterator[Run]:
    """Runs pytest on a test file, with the wheel unless something else is named; no temporary folder stays."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makeini("[pytest]\n")

    def run_pytest(source: str, *options: str | Path, table: str | None = None, own: bool = True) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        if table is not None:
            make_project(pytester.path, table)
        taken = [f"--hatch-lower-wheel={wheel}"] if own else []
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *BRIEF, *taken, *options)

    yield run_pytest
    assert list(temporary.glob("hatch-lower-*")) == []


def make_project(root: Path, table: str) -> None:
    (root / "net").mkdir()
    (root / "net" / "__init__.py").write_text("")
    (root / "net" / "model.py").write_text("def export(): ...\n")
    (root / "pyproject.toml").write_text(NET_PROJECT + table)


def test_what_is_timed_is_the_very_function_of_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    timed, loaded = [], []
    make_runner, load = BenchmarkFixture._make_runner, opened.load_opened

    def recording_runner(self: Any, function: Any, *arguments: Any) -> Any:
        timed.append(function)
        return make_runner(self, function, *arguments)

    def recording_load(*arguments: Any) -> Any:
        loaded.append(load(*arguments))
        return loaded[-1]

    monkeypatch.setattr(BenchmarkFixture, "_make_runner", recording_runner)
    monkeypatch.setattr(opened, "load_opened", recording_load)
    run(SPEED, "--hatch-lower-bench").assert_outcomes(passed=8)
    functions = [function for model in loaded for function in model.methods.values()]
    assert len(loaded) == 4  # each recipe once for each test function
    assert {id(each) for each in timed} == {id(each) for each in functions}


def test_tests_have_ids_and_are_entries_of_pytest_benchmark(run: Run, pytester: pytest.Pytester) -> None:
    done = run(SPEED, "--hatch-lower-bench", "-v", "--benchmark-json=b.json", "--benchmark-autosave")
    done.assert_outcomes(passed=8)
    done.stdout.fnmatch_lines(
        ["*test_it.py::test_speed?net-default-embed? PASSED*", "hatch-lower::net/default/embed *"]
    )
    entries = {each["name"]: each for each in json.loads((pytester.path / "b.json").read_text())["benchmarks"]}
    names = [f"test_speed[{name.replace('/', '-')}]" for name in METHODS]
    assert sorted(entries) == sorted([*METHODS, *names])
    assert entries["test_speed[net-default-embed]"]["params"] == {"lowered_model": "net/default/embed"}
    generated = entries["net/default/embed"]
    assert (generated["group"], generated["extra_info"]["operations"]) == ("net/embed", 4)
    again = run(SPEED, "--hatch-lower-bench", "--benchmark-compare", "--benchmark-compare-fail=min:100000%")
    again.assert_outcomes(passed=8)
    for row in ("net/default/embed (NOW)*", "net/default/embed (0001*"):  # in the order of their times
        again.stdout.fnmatch_lines([row])


def test_sizes_and_threads_of_the_table_are_ways_to_call(run: Run) -> None:
    source = """\
import torch

def test_it(lowered_model, example_inputs, request):
    name = request.node.callspec.id
    assert torch.get_num_threads() == (2 if "threads=2" in name else 1)
    rows = 40 if "rows=40" in name else 3
    assert example_inputs.args[0].shape == (rows, 4)
    assert lowered_model(*example_inputs.args, **example_inputs.kwargs) is not None
"""
    before = torch.get_num_threads()
    table = "threads = [1, 2]\nsizes = [{}, {rows = 40}]\n"
    done = run(source, "--collect-only", "-q", "--hatch-lower-bench", table=table)
    for name in (
        "test_it.py::test_it[[]net-portable-forward-rows=40-threads=2[]]",
        "*::net/default/embed[[]threads=2[]]",
    ):
        done.stdout.fnmatch_lines([name])
    run(source).assert_outcomes(passed=12)
    assert torch.get_num_threads() == before


def test_each_test_begins_with_the_packaged_state(run: Run) -> None:
    source = """\
def test_it(lowered_model, example_inputs, request):
    if "forward" not in request.node.name:
        assert not example_inputs.changes
        return
    assert example_inputs.changes
    counts = [lowered_model(*example_inputs.args, **example_inputs.kwargs)["count"].item() for _ in range(2)]
    args, kwargs = example_inputs.renew()
    assert args[0] is not example_inputs.args[0]
    assert [*counts, lowered_model(*args, **kwargs)["count"].item()] == [1, 2, 1]

test_again = test_it
"""
    run(source).assert_outcomes(passed=8)


def test_a_test_may_choose_its_methods(run: Run) -> None:
    source = """\
import pytest

@pytest.mark.parametrize("lowered_model", ["net/default/embed", "net/default/embd"], indirect=True)
def test_it(lowered_model): ...
"""
    done = run(source)
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["there is no such lowered method", "*did you mean `net/default/embed`?*"])


def test_broken_limits_of_the_marker_fail_a_test(run: Run) -> None:
    source = f"""\
import pytest

pytestmark = pytest.mark.lowered_limits(min_delegated=0.9)

@pytest.mark.lowered_limits(max_error=1)
{SPEED}

@pytest.mark.lowered_limits(min_delegated=0)
{SPEED.replace("test_speed", "test_none")}

def test_share(lowered_model): ...
"""
    done = run(source, "-k", "embed")
    done.assert_outcomes(passed=4, failed=2)
    share = "beyond its limit: delegated of net/portable/embed is 0 %, where min-delegated = 0.9 (lowered_limits)"
    assert done.outlines.count(share) == 2


def test_limits_of_the_table_fail_generated_and_marked_tests(run: Run) -> None:
    source = """\
import pytest

def test_free(lowered_model): ...

@pytest.mark.lowered_limits
def test_marked(lowered_model): ...

@pytest.mark.lowered_limits(min_delegated=0)
def test_looser(lowered_model): ...
"""
    done = run(source, "--hatch-lower-bench", "-k", "embed", table="min-delegated = 0.9\nmax-error = 1.0\n")
    done.assert_outcomes(passed=6, failed=2)
    share = "beyond its limit: delegated of net/portable/embed is 0 %, where min-delegated = 0.9 (bench)"
    assert done.outlines.count(share) == 2


@pytest.mark.parametrize(
    ("marker", "arguments", "said"),
    [
        ("max_kernel=1", "lowered_model", "*did you mean `max_kernels`?*"),
        ("max_call_ratio=1.1", "lowered_model", "*only `hatch-lower bench` can judge it*"),
        ("min_delegated=2", "lowered_model", "*`min_delegated` must be a number from 0 to 1*"),
        ("max_error='small'", "lowered_model", "*`max_error` must be a number of at least 0*"),
        ("10", "lowered_model", "*limits have names*"),
        ("max_kernels=1", "", "*does not use the fixture `lowered_model`*"),
    ],
)
def test_a_marker_that_cannot_be_judged_ends_the_run(run: Run, marker: str, arguments: str, said: str) -> None:
    done = run(f"import pytest\n\n@pytest.mark.lowered_limits({marker})\ndef test_it({arguments}): ...\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([said])
    done.stderr.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("table", "own", "said"),
    [
        (None, False, "*there is no project to test*"),
        ("max-call-ration = 1\n", True, "*did you mean `max-call-ratio`?*"),
        ("[tool.hatch.build.targets.wheel.hooks.lower.bench.models.net.methods.embd]\n", True, "*mean `embed`?*"),
    ],
)
@pytest.mark.parametrize("source", [SPEED, ""], ids=["fixture", "generated"])
def test_a_project_that_cannot_be_tested_ends_the_run(
    run: Run, table: str | None, own: bool, said: str, source: str
) -> None:
    done = run(source, *([] if source else ["--hatch-lower-bench"]), table=table, own=own)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([said])
    done.stderr.no_fnmatch_line("*Traceback*")


def test_a_project_is_built_once_in_a_run(run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    @contextmanager
    def build(root: Path, *_: object) -> Iterator[BenchSide]:
        built.append(root)
        with open_wheel_side(wheel, "working tree") as side:
            yield side

    monkeypatch.setattr(tested, "built_project", build)
    run(SPEED + "\ndef test_other(lowered_model): ...\n", "--hatch-lower-bench", table="", own=False).assert_outcomes(
        passed=12
    )
    assert len(built) == 1


def test_a_project_that_cannot_be_built_is_an_error_of_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ProcessError("working tree cannot be built", found="no compiler")

    monkeypatch.setattr(tested, "built_project", fail)
    done = run(SPEED, table="", own=False)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: working tree cannot be built", "*no compiler*"])


def test_a_run_without_lowered_models_builds_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "open_models", lambda *_: pytest.fail("models are opened"))
    run("def test_it(): ...\n", table="").assert_outcomes(passed=1)


def test_a_recipe_for_another_machine_is_skipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = lambda path, model, recipe: "it is for aarch64" if recipe == "default" else None  # noqa: E731
    monkeypatch.setattr(opened, "recipe_refusal", refuse)
    done = run(SPEED, "--hatch-lower-bench", "-rs")
    done.assert_outcomes(passed=4, skipped=4)
    done.stdout.fnmatch_lines(["*net/default cannot run here: it is for aarch64*"])


def test_generated_tests_need_something_that_times(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("")
    done = pytester.runpytest_inprocess("--hatch-lower-bench", "-p", "no:benchmark")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*pip install hatch-lower?bench?*"])


@pytest.mark.slow
def test_processes_of_xdist_share_what_is_built(run: Run, pytester: pytest.Pytester, wheel: Path) -> None:
    # which turns pytest-benchmark off: calls run once
    pytester.makepyfile(
        test_it=f"{SPEED}\nimport pytest\n@pytest.mark.lowered_limits(max_kernel=1)\ndef test_bad(lowered_model): ...\n"
    )
    options = (f"--hatch-lower-wheel={wheel}", "--hatch-lower-bench", "-k", "embed", "-n2")
    done = pytester.runpytest_subprocess(*options, timeout=300)
    done.assert_outcomes(passed=4, failed=2)
    done.stdout.fnmatch_lines(["*did you mean `max_kernels`?*"])


def test_a_shared_folder_is_filled_once_and_removed_by_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    filled: list[Path] = []
    with shared_folder("one", filled.append) as path:
        with shared_folder("one", filled.append) as again, shared_folder("two", filled.append) as other:
            assert filled == [path, other]
            assert again == path
        assert list(tmp_path.iterdir()) == [path]
    assert list(tmp_path.iterdir()) == []


OWN = """\
import pytest

@pytest.fixture
def lowered_model():
    return 42

@pytest.fixture(params=[1, 2])
def example_inputs(request):
    return request.param

def test_own(lowered_model, example_inputs):
    assert lowered_model == 42

class TestInner:
    @pytest.fixture
    def lowered_model(self, lowered_model):
        return lowered_model + 1

    def test_own(self, lowered_model):
        assert lowered_model == 43
"""
WRAPPED = """\
import pytest

@pytest.fixture
def lowered_model(lowered_model):
    return [lowered_model]

def test_wrapped(lowered_model):
    assert callable(*lowered_model)
"""


def test_fixtures_of_a_project_that_has_no_models_are_its_own(run: Run) -> None:
    run(OWN, own=False).assert_outcomes(passed=3)  # there is no pyproject.toml


def test_a_fixture_that_wraps_that_of_the_plugin_runs_for_each_method(run: Run) -> None:
    run(WRAPPED).assert_outcomes(passed=4)


def test_an_old_pytest_goes_on_and_is_told_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_lower.cli.measure.pytest_plugin.IS_OLD", True)
    done = run(OWN, "-W", "error", own=False)
    done.assert_outcomes(passed=3)
    told = [line for line in done.outlines if "hatch-lower:" in line]
    version = pytest.__version__
    assert told == [f"hatch-lower: its fixtures and marker need pytest 7.0 or later, this is {version}"]
    refused = run(OWN, "--hatch-lower-bench", own=False)
    refused.stderr.fnmatch_lines([f"*--hatch-lower-bench needs pytest 7.0 or later, this is {version}"])


def test_the_plugin_imports_next_to_nothing(modules_after: Callable[[str], set[str]]) -> None:
    code = "import pytest, hatch_lower.cli.measure.pytest_plugin, hatch_lower.cli.measure.pytest_models"
    found = modules_after(code) - modules_after("import pytest")
    parts = {"hatch_lower", *(f"hatch_lower.{name}" for name in ("cli", "cli.measure", "errors"))}
    parts |= {"hatch_lower.cli.measure.pytest_plugin", "hatch_lower.cli.measure.pytest_models"}
    assert {name for name in found if name.startswith("hatch_lower")} == parts
    assert found == parts
