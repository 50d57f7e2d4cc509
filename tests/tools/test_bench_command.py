"""`hatch-lower bench`: what it prints, writes and ends with, from models that are lowered in this process."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.exports import NET_PROJECT, SOURCE, Workshop, packaged, settings_of, write_wheel
from support.shared import Shared

from hatch_lower.cli.entry import main
from hatch_lower.cli.measure import errors, gate, timed
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import error_from_json

pytest.importorskip("scipy")

pytestmark = pytest.mark.torch

LONGER = SOURCE.replace("self.block(image).sum(1)", "self.block(image).sum(1).exp().neg()")
EXAMPLES = SOURCE.replace("torch.linspace(0, 1, 12).reshape(3, 4)", "torch.linspace(0, 1, 40).reshape(10, 4)")
SLOW = SOURCE.replace("self.block(image).sum(1)", f"self.block(image).sum(1){'.sin()' * 40}")
BENCH = "[tool.hatch.build.targets.wheel.hooks.lower.bench]"


@pytest.fixture(scope="module")
def wheels(shared: Shared) -> Mapping[str, Path]:
    """Wheels of a model: `one`; `more` and `slow`, whose `embed` has 2 and 40 operations more; `other` has another."""
    made = shared.once("bench-wheels", write_wheels)
    return {path.name: path / "net-1.0-py3-none-any.whl" for path in made.iterdir() if path.is_dir()}


def write_wheels(folder: Path) -> None:
    shop = Workshop(folder)
    sources = {"one": SOURCE, "more": LONGER, "slow": SLOW, "examples": EXAMPLES}
    made = {name: packaged(shop, source) for name, source in sources.items()}
    made["other"] = packaged(shop, name="other")
    made["importing"] = packaged(shop, settings=settings_of(Recipe("portable", imports=("colorsys",))))
    # a description of 20 KB, so that two operations are less than the 5 % by which a wheel may grow
    metadata = f"Metadata-Version: 2.4\nName: net\nVersion: 1.0\n\n{'text ' * 4000}\n"
    for name, files in made.items():
        write_wheel(folder / name / "net-1.0-py3-none-any.whl", files, METADATA=metadata)


def project(folder: Path, table: str) -> Path:
    package = folder / "net"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(SOURCE)
    (folder / "pyproject.toml").write_text(NET_PROJECT + table)
    return folder


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def compared_here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Compare with eager in this process; `test_bench_errors` has the process that does otherwise."""

    def compare(models: Mapping[str, Any], seconds: float) -> tuple[list[dict[str, Any]], str, str]:
        rows = list(errors.error_rows(models))
        if rows and "error" in rows[-1]:
            raise error_from_json(rows[-1]["error"])
        return rows, "", ""

    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr(errors, "run_child", compare)


def test_one_side_gives_its_figures(wheels: Mapping[str, Path]) -> None:
    done = bench(wheels["one"], "--budget", "0")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "A  net-1.0-py3-none-any.whl"
    assert [line.split() for line in lines if "operations" in line and "default/embed" in line] == [
        ["net/default/embed", "operations", "4"]
    ]
    assert "0 figures beyond a limit" in lines


def test_equal_sides_are_told_from_digests_alone(wheels: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "measure", lambda works, *_: {} if not works else pytest.fail("something is timed"))
    done = bench(wheels["one"], "--against", wheels["one"])
    assert done.exit_code == 0, done.output
    assert "net/default is equal byte by byte, and not timed" in done.stdout
    assert "exact figures are equal" in done.stdout


def test_a_log_names_the_timed_work_and_its_limit_once_at_the_start(
    wheels: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    monkeypatch.setattr(gate, "measure", lambda works, *_: measured.extend(works) or {})
    done = bench(wheels["more"], "--against", wheels["one"], "--budget", "90")
    assert done.exit_code == 0, done.output
    assert measured
    assert (
        done.stderr
        == "timing net/default, net/portable: 90 s at most, unless the first measurements alone take longer\n"
    )
    assert "timing" not in done.stdout
    assert bench(wheels["more"], "--budget", "0").stderr == ""


def test_what_got_worse_is_at_the_top_and_a_limit_fails(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    root = project(tmp_path / "project", "max-wheel-growth = '1 B'\n")
    options = ("--against", wheels["one"], "--budget", "0", "--root", root)
    done = bench(wheels["more"], *options)
    assert done.exit_code == 1, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[4][:3] == ["broken", "wheel", "wheel"]
    assert ["worse", "net/default/embed", "operations", "6", "4", "1.500"] in rows
    path = "bench"
    assert f"where max-wheel-growth = 1 B ({path})" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 figure beyond a limit"


def test_reports_hold_the_figures_and_say_why(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    (tmp_path / "summary.md").write_text("before\n")
    options = ("--budget", "0", "--json", "bench.json", "--markdown", "summary.md")
    done = bench(wheels["more"], "--against", wheels["one"], *options)
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "bench.json").read_text())["hatch_lower"]
    (row,) = (row for row in report["figures"] if (row["recipe"], row["method"]) == ("default", "embed"))
    assert [row["figures"][side]["operations"] for side in "AB"] == [6, 4]
    assert "error" in row["figures"]["A"]
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("before\n### Lowered models: 0 figures beyond a limit")
    assert "| **worse** | net/default/embed | operations | 6 | 4 | 1.500 |" in text
    assert "operation aten.exp.default: added: 1" in text.partition("```diff")[2]


@pytest.mark.processes
def test_the_exact_tier_is_the_same_document_anywhere(
    wheels: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = []
    for name, threads in (("first", "1"), ("second-with-a-longer-name", "7")):
        (tmp_path / name / "dist").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        target = shutil.copy(wheels["more"], f"dist/net-1.0-{len(documents)}-py3-none-any.whl")
        if documents:  # as a folder, whose newest wheel it is
            target = "./dist"
            os.utime(shutil.copy(wheels["one"], "dist"), (100, 100))
        assert bench(target, "--against", wheels["one"], "--budget", "0", "--json", "b.json").exit_code == 0
        documents.append(Path("b.json").read_bytes())
    assert documents[0] == documents[1]


def test_times_are_measured_for_each_size_and_number_of_threads(
    wheels: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed, "LOADS", 2)
    root = project(tmp_path / "project", "threads = [1, 2]\nsizes = [{rows = 2}, {rows = 40}]\n")
    done = bench(wheels["one"], "--root", root, "--budget", "1", "--json", "b.json")
    assert done.exit_code == 0, done.output
    names = {row["name"] for row in json.loads(Path("b.json").read_text())["benchmarks"]}
    assert {f"net/portable/forward[rows={rows}, threads={n}]" for rows in (2, 40) for n in (1, 2)} <= names
    assert {"net/portable/forward[rows=40, threads=2] (eager)", "net/portable load"} <= names


def test_a_slower_call_is_found_and_an_equal_one_is_not(
    wheels: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed, "load_works", lambda works: [])
    monkeypatch.setattr(timed, "SECONDS", 0.05)
    done = bench(wheels["slow"], "--against", wheels["one"])
    assert done.exit_code == 1, done.output
    words = {tuple(line.split()[:3]) for line in done.stdout.splitlines()}
    assert ("broken", "net/portable/embed[threads=1]", "call") in words
    assert not {(word, "net/portable/forward[threads=1]", "call") for word in ("broken", "worse")} & words


def test_a_model_is_no_slower_than_itself(wheels: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "load_works", lambda works: [])
    monkeypatch.setattr(timed, "SECONDS", 0.05)
    monkeypatch.setattr(gate, "is_timed", lambda *_: True)
    done = bench(wheels["one"], "--against", wheels["one"])
    assert done.exit_code == 0, done.output
    words = [line.split()[:3] for line in done.stdout.splitlines() if "[threads=1]" in line]
    assert len(words) >= 4
    assert {word for word, *_ in words} <= {"same", "better", "not"}


def test_what_is_not_decided_fails_only_a_strict_run(
    wheels: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = timed.MetricRounds()
    found.add([{"A": [1.0], "B": [1.0]}])
    key = (FigureSubject("net", "default", "forward", "", 1), "call-seconds")
    monkeypatch.setattr(gate, "measure", lambda *_: {key: found})
    lenient, strict = (bench(wheels["one"], "--against", wheels["more"], *more) for more in ((), ("--strict",)))
    assert (lenient.exit_code, strict.exit_code) == (0, 1), lenient.output
    assert (
        "not decided: call of net/default/forward[threads=1] is 1.000 times B's, from 1 of 8 pairs: raise `--budget`,"
        in lenient.stdout
    )
    assert lenient.stdout.splitlines()[-1] == "0 figures beyond a limit, 1 figure not decided"


@pytest.mark.parametrize("budget", ["inf", "-inf", "nan", "-1", "86401"])
def test_a_budget_is_at_most_a_day(budget: str) -> None:
    done = bench("nowhere.whl", "--budget", budget)
    assert done.exit_code == 2
    assert "Invalid value for '--budget'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a package that benchmarks need is not installed"),
        (["--budget", "0", "--builds"], "a package that benchmarks need is not installed"),
        (["--budget", "0"], "the wheel cannot be read"),
    ],
)
def test_what_times_need_is_asked_for_before_anything_is_opened(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = bench("nowhere.whl", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_sides_of_one_name_are_told_apart(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    for name in ("one", "more"):
        (tmp_path / name).mkdir()
        shutil.copy(wheels[name], tmp_path / name)
    options = ("--budget", "0", "--markdown", "summary.md")
    done = bench("more/net-1.0-py3-none-any.whl", "--against", "./one", *options)
    assert done.stdout.splitlines()[:2] == [
        "A  more/net-1.0-py3-none-any.whl",
        "B  net-1.0-py3-none-any.whl (./one)",
    ]
    text = (tmp_path / "summary.md").read_text()
    assert "- A: more/net-1.0-py3-none-any.whl\n- B: net-1.0-py3-none-any.whl (./one)\n" in text
    assert "- net-1.0-py3-none-any.whl (./one)\n+ more/net-1.0-py3-none-any.whl\n" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.whl"], "the wheel cannot be read"),
        (["one", "--against", "other"], "A and B have no method in common"),
        (["one", "--against-rev", "main"], "`--against-rev` needs a project that uses hatch-lower"),
        (["one", "--against", "one", "--root", "."], "there is no project"),
        (["one", "--against", "one", "--against-rev", "main"], "exclude each other"),
        (["one", "--budget", "0", "--json", "no/such/folder.json"], "the report cannot be written"),
    ],
)
def test_what_cannot_be_measured_ends_with_2(wheels: Mapping[str, Path], arguments: list[str], said: str) -> None:
    done = bench(*(str(wheels.get(argument, argument)) for argument in arguments))
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_a_limit_that_nothing_can_be_compared_with_is_told(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    root = project(tmp_path / "project", "max-kernels = 5\nmax-call-ratio = 2.0\n")
    options = ("--budget", "0", "--root", root)
    lenient, strict = (bench(wheels["one"], *options, *more) for more in ((), ("--strict",)))
    assert (lenient.exit_code, strict.exit_code) == (0, 1), lenient.output
    assert "not judged: bench.max-kernels = 5: no figure to compare" in lenient.stdout
    assert lenient.stdout.splitlines()[-1] == "0 figures beyond a limit, 1 not judged"


def test_other_check_inputs_are_told_and_errors_of_them_not_compared(wheels: Mapping[str, Path]) -> None:
    done = bench(wheels["examples"], "--against", wheels["one"], "--budget", "0", "--json", "b.json")
    assert done.exit_code == 0, done.output
    assert "the check inputs of net differ: both sides are timed with those of A" in done.stdout
    verdicts = json.loads(Path("b.json").read_text())["hatch_lower"]["verdicts"]
    assert {row["outcome"] for row in verdicts if row["metric"] == "error"} == {""}


@pytest.mark.processes
def test_modules_that_the_project_names_are_imported(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    root = project(tmp_path / "project", "")
    hook = "[tool.hatch.build.targets.wheel.hooks.lower"
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(text.replace(f"{hook}.rec", f'{hook}]\nimports = ["colorsys"]\n{hook}.rec', 1))
    options = ("--budget", "0", "--json", "b.json")
    refused = bench(wheels["importing"], *options)
    assert refused.exit_code == 2
    assert "run `import colorsys` before loading" in refused.stderr
    done = bench(wheels["importing"], *options, "--root", root)
    assert done.exit_code == 0, done.output
    rows = json.loads(Path("b.json").read_text())["hatch_lower"]["figures"]
    assert [row["figures"]["A"]["error"] for row in rows if row["method"]] == [0.0, 0.0]


def test_limits_of_what_does_not_exist_are_refused(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    table = f"[{BENCH[1:-1]}.models.net.methods.forward_]\nmax-call-ratio = 1.1\n"
    done = bench(wheels["one"], "--budget", "0", "--root", project(tmp_path / "project", table))
    assert done.exit_code == 2
    assert "did you mean `forward`?" in done.stderr
