"""The JSON document of benchmarks: pytest-benchmark's format, and what others read of it."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from hatch_lower.cli.measure.figures import Figures, FigureSubject
from hatch_lower.cli.measure.json_report import FORMAT, NO_TIME, report_text, stats_of
from hatch_lower.cli.measure.limits import Limit, VerdictRow, exact_row
from hatch_lower.cli.measure.side import BenchSide
from hatch_lower.cli.measure.timed import Measured, MetricRounds

main = pytest.importorskip("pytest_benchmark.cli").main

FORWARD = FigureSubject("digits", "default", "forward")
BATCH = FigureSubject("digits", "default", "forward", "batch=32", 2)
ROUNDS = (3.0e-5, 2.5e-5, 2.6e-5, 2.4e-5, 9.0e-5)
FIGURES: Mapping[FigureSubject, Mapping[str, float]] = {
    FigureSubject(): {"wheel-bytes": 1234, "warm-build-seconds": 0.5},
    FigureSubject("digits"): {"constants-bytes": 100},
    FigureSubject("digits", "default"): {"program-bytes": 20},
    FORWARD: {"operations": 20, "delegated": 0.9},
    FigureSubject("digits", "portable", "forward"): {"operations": 20, "delegated": 0.0},
}
OTHERS = {subject: dict(reversed(figures.items())) for subject, figures in reversed(FIGURES.items())}


class Report(NamedTuple):
    """What `report_text` is given."""

    sides: Mapping[str, BenchSide]
    figures: Mapping[str, Figures]
    measured: Measured = {}  # noqa: RUF012
    rows: Sequence[VerdictRow] = ()

    def text(self, project: Path) -> str:
        return report_text(*self, project)


def side_of(title: str, version: str) -> BenchSide:
    manifest = SimpleNamespace(distribution="digits", version=version)
    return BenchSide(title, (SimpleNamespace(manifest=manifest),), {})  # type: ignore[arg-type]


def exact_report(figures: Mapping[FigureSubject, Mapping[str, float]] = FIGURES, title: str = "digits-2.whl") -> Report:
    growth = Limit("max-wheel-growth", "wheel-bytes", "growth against B", "1 B", "bench")
    rows = [
        exact_row(FORWARD, "operations", 20, 20, []),
        exact_row(FigureSubject(), "wheel-bytes", 1234, 1000, [growth]),
    ]
    sides = {"A": side_of(title, "2.0"), "B": side_of("digits-1.whl", "1.0")}
    return Report(sides, {"A": figures, "B": FIGURES}, {}, rows)


def timed_report() -> Report:
    rounds = list(ROUNDS)
    measured = {
        (FORWARD, "call-seconds"): {"eager": [2 * each for each in ROUNDS], "B": rounds, "A": rounds},
        (BATCH, "call-seconds"): {"A": rounds},
        (FigureSubject("digits", "default"), "load-seconds"): {"A": rounds},
        (FigureSubject("digits", "default"), "memory-bytes"): {"A": rounds},
        (FigureSubject(), "warm-build-seconds"): {"A": [1.5]},
        (FigureSubject(), "cold-build-seconds"): {"A": []},
    }
    return exact_report()._replace(measured={key: MetricRounds(each) for key, each in measured.items()}, rows=())


def timed(tmp_path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(timed_report().text(tmp_path))
    return document


# Timed series.


def test_an_entry_for_each_series_says_what_it_is_of(tmp_path: Path) -> None:
    entries = {each["fullname"]: each for each in timed(tmp_path)["benchmarks"]}
    assert list(entries) == [
        "digits/default load",
        "digits/default/forward",
        "digits/default/forward (B)",
        "digits/default/forward (eager)",
        "digits/default/forward[batch=32, threads=2]",
        "wheel warm build",
    ]
    assert all(each["name"] == name for name, each in entries.items())
    assert {entries[name]["group"] for name in entries if "forward" in name} == {
        "digits/default/forward",
        "digits/default/forward[batch=32, threads=2]",
    }
    assert entries["digits/default/forward[batch=32, threads=2]"]["param"] == "batch=32, threads=2"
    assert entries["digits/default/forward (B)"]["params"] == {
        "model": "digits",
        "recipe": "default",
        "method": "forward",
        "size": "",
        "threads": 0,
        "metric": "call-seconds",
        "side": "B",
    }


def test_an_entry_has_the_exact_figures_of_its_side(tmp_path: Path) -> None:
    entries = {each["fullname"]: each["extra_info"] for each in timed(tmp_path)["benchmarks"]}
    whole = {"wheel-bytes": 1234, "constants-bytes": 100, "program-bytes": 20, "operations": 20, "delegated": 0.9}
    assert entries["digits/default/forward"] == entries["digits/default/forward[batch=32, threads=2]"] == whole
    assert entries["digits/default load"] == {"wheel-bytes": 1234, "constants-bytes": 100, "program-bytes": 20}
    assert entries["digits/default/forward (eager)"] == {}


def test_the_machine_is_described_without_its_name(tmp_path: Path) -> None:
    document = timed(tmp_path)
    machine = document["machine_info"]
    assert "node" not in machine
    assert platform.node() not in json.dumps(machine).split('"')
    assert machine["python_version"] == platform.python_version()
    assert machine["cpu"]["count"] > 0
    assert document["version"] == FORMAT
    assert document["datetime"] > "2020"


def test_the_commit_is_that_of_the_project(tmp_path: Path) -> None:
    assert timed(tmp_path)["commit_info"] == {
        "id": "unversioned",
        "time": None,
        "author_time": None,
        "dirty": False,
        "project": tmp_path.name,
        "branch": "(unknown)",
    }
    options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk", "-c", "commit.gpgsign=no"]
    (tmp_path / "file").write_text("1")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *options, *arguments], cwd=tmp_path, check=True)
    commit = timed(tmp_path)["commit_info"]
    assert len(commit["id"]) == 40
    assert (commit["branch"], commit["dirty"], commit["time"]) == ("trunk", False, commit["author_time"])
    (tmp_path / "file").write_text("2")
    assert timed(tmp_path)["commit_info"]["dirty"]


# Figures and verdicts.


def test_figures_of_both_sides_stand_together(tmp_path: Path) -> None:
    ours = json.loads(exact_report().text(tmp_path))["hatch_lower"]
    assert ours["schema"] == 1
    assert ours["sides"] == {"A": {"distributions": ["digits 2.0"]}, "B": {"distributions": ["digits 1.0"]}}
    assert [(row["model"], row["recipe"], row["method"]) for row in ours["figures"]] == [
        ("", "", ""),
        ("digits", "", ""),
        ("digits", "default", ""),
        ("digits", "default", "forward"),
        ("digits", "portable", "forward"),
    ]
    assert ours["figures"][3]["figures"] == {side: {"operations": 20, "delegated": 0.9} for side in "AB"}
    assert [(row["metric"], row["outcome"]) for row in ours["verdicts"]] == [
        ("wheel-bytes", "worse"),
        ("operations", "same"),
    ]
    (limit,) = ours["verdicts"][0]["limits"]
    assert limit == {"limit": "max-wheel-growth", "setting": "bench", "bound": 1001, "broken": True}


def test_a_figure_that_one_side_lacks_is_not_there(tmp_path: Path) -> None:
    report = Report({}, {"A": {FORWARD: {"kernels": 5}}, "B": {}})
    (row,) = json.loads(report.text(tmp_path))["hatch_lower"]["figures"]
    assert row["figures"] == {"A": {"kernels": 5}}


def test_an_infinite_error_is_text(tmp_path: Path) -> None:
    report = Report({}, {"A": {FORWARD: {"error": math.inf}}})
    (row,) = json.loads(report.text(tmp_path))["hatch_lower"]["figures"]
    assert row["figures"]["A"] == {"error": "inf"}


def test_documents_without_timed_rounds_have_equal_bytes(tmp_path: Path) -> None:
    other = tmp_path / "another folder"
    other.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=other, check=True)
    text = exact_report().text(tmp_path)
    assert exact_report(OTHERS, "digits-2.whl (the newest of 2 wheels)").text(other) == text
    document = json.loads(text)
    assert (document["machine_info"], document["commit_info"], document["datetime"]) == ({}, {}, NO_TIME)


def with_build(report: Report, level: int) -> Report:
    """Return a report of which A was built here, through a cache that was filled or not."""
    digits, figures = FigureSubject("digits"), report.figures["A"]
    built = {**figures, digits: {**figures[digits], "level": level, "compilations": 3 * level}}
    rows = [*report.rows, exact_row(digits, "level", level, None, [])]
    return report._replace(figures={**report.figures, "A": built}, rows=rows)


def test_what_the_cache_saved_a_build_is_no_exact_figure(tmp_path: Path) -> None:
    plain = exact_report().text(tmp_path)
    assert {with_build(exact_report(), level).text(tmp_path) for level in (0, 2)} == {plain}


def test_what_was_timed_is_told_with_its_title_and_its_build(tmp_path: Path) -> None:
    document = json.loads(with_build(timed_report(), 2).text(tmp_path))
    ours = document["hatch_lower"]
    assert ours["sides"]["A"] == {"distributions": ["digits 2.0"], "title": "digits-2.whl"}
    assert ours["figures"][1]["figures"]["A"] == {"constants-bytes": 100, "level": 2, "compilations": 6}
    assert [verdict["metric"] for verdict in ours["verdicts"]] == ["level"]
    assert "level" not in document["benchmarks"][0]["extra_info"]


# Other readers.


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`pytest-benchmark compare` with arguments."""

    def run(*arguments: object) -> None:
        words = ["pytest-benchmark", "--storage", tmp_path / "storage", "compare", *arguments]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        main()

    return run


def test_pytest_benchmark_compares_documents(
    compare: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        file.write_text(timed_report().text(tmp_path))
    compare(*files)
    out, err = capfd.readouterr()
    assert "Failed to load" not in out + err
    group = next(part for part in out.split("\n\n") if "benchmark 'digits/default/forward': 6 tests" in part)
    assert [group.count(f"digits/default/forward{side} (") for side in (" (B)", " (eager)")] == [2, 2]
    options = ["--sort", "mean", "--group-by", "param:method", "--csv", tmp_path / "table"]
    compare(*options, files[0])
    assert "digits/default/forward[batch=32, threads=2]" in (tmp_path / "table.csv").read_text()


def test_pytest_benchmark_reads_a_document_without_timed_rounds(
    compare: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").write_text(exact_report().text(tmp_path))
    compare(tmp_path / "one.json")
    assert "Failed to load" not in "".join(capfd.readouterr())


def test_github_action_benchmark_reads_a_document(tmp_path: Path) -> None:
    document = timed_report().text(tmp_path)
    results = [action_result(each) for each in json.loads(document)["benchmarks"]]
    assert results[1] == {
        "name": "digits/default/forward",
        "value": pytest.approx(5 / sum(ROUNDS)),
        "unit": "iter/sec",
        "range": f"stddev: {stats_of(ROUNDS)['stddev']}",
        "extra": f"mean: {stats_of(ROUNDS)['mean'] * 1e6} usec\nrounds: 5",
    }
    assert len({each["name"] for each in results}) == len(results) == 6


def action_result(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the action's parser `pytest` makes of an entry; it fails where a field is missing."""
    stats = bench["stats"]
    scale, unit = next(
        (scale, unit)
        for limit, scale, unit in ((1e-6, 1e9, "nsec"), (1e-3, 1e6, "usec"), (1, 1e3, "msec"), (math.inf, 1, "sec"))
        if stats["mean"] < limit
    )
    extra = f"mean: {stats['mean'] * scale} {unit}\nrounds: {stats['rounds']}"
    spread = f"stddev: {stats['stddev']}"
    return {"name": bench["fullname"], "value": stats["ops"], "unit": "iter/sec", "range": spread, "extra": extra}
