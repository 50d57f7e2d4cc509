"""The timed tier: what a pair of processes says, how certain it is, and the processes that measure."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from click.testing import CliRunner
from support.exports import Workshop, packaged, write_folder
from support.processes import is_running, wait_for

from hatch_lower.cli.entry import main
from hatch_lower.cli.measure import opened, worker
from hatch_lower.cli.measure.command import Host
from hatch_lower.cli.measure.figures import FEWEST, FigureSubject, Interval, interval_of
from hatch_lower.cli.measure.opened import input_values
from hatch_lower.cli.measure.timed import MetricRounds, TimedWork, has_enough, measure
from hatch_lower.errors import LowerError, ProcessError, ProgramError
from hatch_lower.format.plan import read_plan

pytest.importorskip("scipy")

LIMIT = 500  # seconds of an answer, also where the process that measures gets a small share of a busy machine
FORWARD = FigureSubject("net", "default", "forward", "", 1)
SOURCE = """\
import os
import signal
import time

import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def forward(self, x, at):
        return x[at] * 2

    def grow(self, x):
        x.add_(1)
        return x.sum()


def export():
    rows = torch.export.Dim("rows", min=2, max=64)
    forward = Method(
        (torch.linspace(0, 1, 12).reshape(4, 3), torch.tensor([1, 3])), dynamic_shapes={"x": {0: rows}, "at": None}
    )
    return Model(Net().eval(), {"forward": forward, "grow": Method((torch.ones(3),))})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `_lowered` folder with the recipes `default` (of the reference backend) and `portable`, and its source."""
    shop = Workshop(tmp_path_factory.mktemp("shop"))
    return write_folder(shop.folder / "_lowered", packaged(shop, SOURCE))


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host(1, os.environ) as started:
        yield started


def calls_of(folder: Path, *methods: str, eager: Mapping[str, Any] | None = None, **sizes: int) -> dict[str, Any]:
    request: dict[str, Any] = {"kind": "calls", "model": "net", "recipe": "default", "threads": 1, "imports": []}
    request |= {"sides": {"A": str(folder), "B": str(folder)}, "order": ["A", "B"], "eager": eager, "seconds": 0.01}
    request |= {"inputs": [str(folder)], "rest": 0.0}
    return {**request, "calls": [{"method": method, "sizes": sizes} for method in methods]}


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# How certain a ratio is


def test_an_interval_of_equal_ratios_is_a_point() -> None:
    found = interval_of([1.25] * FEWEST)
    assert (found.low, found.high) == pytest.approx((1.25, 1.25))


@pytest.mark.parametrize("count", [1, 3, FEWEST - 1])
def test_an_interval_of_few_ratios_excludes_nothing(count: int) -> None:
    found = interval_of([1.3] * count)
    assert found == Interval(pytest.approx(1.3), 0.0, math.inf, count)  # type: ignore[arg-type]


def test_an_interval_says_the_same_of_a_to_b_and_of_b_to_a() -> None:
    ratios = [1.01, 1.04, 0.99, 1.02, 1.03, 1.0]
    there, back = interval_of(ratios), interval_of([1 / ratio for ratio in ratios])
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high, rel=0.01)


@pytest.mark.parametrize(("count", "least"), [(FEWEST, 0.98), (20, 0.98)])
def test_an_interval_holds_the_truth_nearly_as_often_as_it_says(count: int, least: float) -> None:
    generator = numpy.random.default_rng(1)
    runs = 400
    held = 0
    for _ in range(runs):
        found = interval_of(numpy.exp(generator.normal(0.02, 0.01, count)).tolist())
        held += found.low <= math.exp(0.02) <= found.high
    assert held >= least * runs


def test_one_pair_that_went_astray_moves_no_interval_far() -> None:
    found = interval_of([*[1.0, 1.01, 0.99, 1.0, 1.005] * 6, 0.6])
    assert found.value == pytest.approx(1.0, abs=0.01)
    assert found.low > 0.95


# What a pair of processes says


def test_a_pair_cancels_what_the_order_of_the_sides_does() -> None:
    observations = MetricRounds()
    observations.add([{"A": [1.1] * 8, "B": [1.0] * 8}, {"A": [1.0] * 8, "B": [1.1] * 8}])
    assert observations.ratios == pytest.approx([1.0])


def test_a_pair_leaves_out_rounds_in_which_the_machine_did_something_else() -> None:
    observations = MetricRounds()
    disturbed = [1.0, 1.0, 1.0, 9.0, 1.5, 7.0, 1.2, 3.0]
    observations.add([{"A": [1.05] * 8, "B": disturbed}] * 2)
    assert observations.ratios == pytest.approx([1.05])


class FakeHosts:
    """Answers with numbers that a test chooses, and keeps what it was asked."""

    def __init__(self, ratios: Sequence[float]) -> None:
        self.ratios = list(ratios)
        self.asked: list[Mapping[str, Any]] = []

    def __call__(self, threads: int) -> FakeHosts:
        return self

    def ask(self, request: Mapping[str, Any], what: str, limit: float) -> Mapping[str, Any]:
        self.asked.append(request)
        if request["kind"] == "load":
            return {"load-seconds": 1.0, "memory-bytes": 10, "methods": dict.fromkeys(request["methods"], 1.0)}
        turn = sum(row["kind"] == "calls" for row in self.asked) - 1
        ratio = self.ratios[min(turn // 2, len(self.ratios) - 1)]
        return {"calls": [{"A": [ratio] * 4, "B": [1.0] * 4} for _ in request["calls"]], "no eager": ""}


def work_of(*subjects: FigureSubject) -> TimedWork:
    calls: tuple[tuple[FigureSubject, Mapping[str, int]], ...] = tuple((subject, {}) for subject in subjects)
    return TimedWork("net", "default", 1, calls, {"A": Path("a"), "B": Path("b")}, None)


def test_what_is_decided_gets_no_more_pairs() -> None:
    slow, fast = FORWARD, FigureSubject("net", "default", "grow", "", 1)
    hosts = FakeHosts([1.0])

    def is_decided(subject: FigureSubject, metric: str, found: MetricRounds) -> bool:
        return len(found.ratios) >= (5 if subject == slow else 2)

    measured = measure([work_of(slow, fast)], hosts, 60, is_decided, lambda line: None, [].append, [].append)  # type: ignore[arg-type]
    assert len(measured[slow, "call-seconds"].ratios) == 5
    assert len(measured[fast, "call-seconds"].ratios) == 2
    assert len(measured[FigureSubject("net", "default"), "load-seconds"].ratios) == 2


def test_each_subject_gets_a_pair_however_small_the_budget() -> None:
    measured = measure(
        [work_of(FORWARD)], FakeHosts([1.0]), 0, lambda *_: False, lambda line: None, [].append, [].append
    )  # type: ignore[arg-type]
    assert {(str(subject), metric): len(found.ratios) for (subject, metric), found in measured.items()} == {
        ("net/default/forward[threads=1]", "call-seconds"): 1,
        ("net/default", "load-seconds"): 1,
        ("net/default", "memory-bytes"): 1,
        ("net/default/forward", "first-call-seconds"): 1,
    }


def test_enough_pairs_are_as_many_as_an_interval_needs() -> None:
    observations = MetricRounds()
    for pair in range(FEWEST):
        assert not pair or not has_enough(observations)
        observations.add([{"A": [1.0], "B": [1.0]}] * 2)
    assert has_enough(observations)


# The processes that measure


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr("subprocess.Popen", refuse)
    with pytest.raises(ProcessError, match="the process that measures could not be started") as caught:
        Host(1, {})
    assert caught.value.found == "BlockingIOError: no more processes"
    assert "limits of memory and processes" in caught.value.hint


@pytest.mark.torch
def test_a_process_measures_all_sides_and_methods(host: Host, folder: Path) -> None:
    (folder.parent / "net_source.py").write_text(SOURCE)
    eager = {"paths": [str(folder.parent)], "export": "net_source:export"}
    calls = host.ask(calls_of(folder, "forward", "grow", eager=eager), "net", LIMIT)["calls"]
    assert [sorted(times) for times in calls] == [["A", "B", "eager"]] * 2
    for times in calls:
        assert all(0 < seconds < 1 for side in times.values() for seconds in side)
        assert len({len(side) for side in times.values()}) == 1


@pytest.mark.torch
def test_an_eager_module_that_fails_is_left_out(host: Host, folder: Path) -> None:
    (folder.parent / "failing.py").write_text("def export():\n    raise ValueError('no weights')\n")
    eager = {"paths": [str(folder.parent)], "export": "failing:export"}
    answer = host.ask(calls_of(folder, "grow", eager=eager), "net", LIMIT)
    assert "no weights" in answer["no eager"]
    assert [sorted(times) for times in answer["calls"]] == [["A", "B"]]


@pytest.mark.torch
def test_all_sides_are_called_with_the_check_inputs_of_the_first_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, dict[str, int]] = {"a": {}, "b": {"x": 1}, "c": {"x": 2}}
    monkeypatch.setattr(opened, "open_model", lambda path, model, recipe: SimpleNamespace(tensors=kept[path]))
    assert opened.check_tensors({"inputs": ["a", "b", "c"], "model": "net", "recipe": "default"}) == {"x": 1}


def test_a_block_is_as_long_as_a_call_of_the_slower_side() -> None:
    seconds = {"A": 2e-5, "B": 0.5, "eager": 2.0}
    ways = {side: lambda count, each=each: each for side, each in seconds.items()}
    assert worker.block_sizes(ways) == {"A": worker.MOST_CALLS, "B": 1, "eager": 1}
    assert worker.block_sizes({"A": lambda count: 1e-4}) == {"A": 10}


@pytest.mark.torch
def test_a_load_is_measured_in_a_process_that_has_loaded_nothing(host: Host, folder: Path) -> None:
    request = {**calls_of(folder), "kind": "load", "sides": {"A": str(folder)}, "methods": ["forward"]}
    first, second = (host.ask(request, "net", LIMIT) for _ in range(2))
    assert 0 < first["load-seconds"] < 10
    assert first["memory-bytes"] > 0
    # were it the same process, the second load would import nothing and add next to nothing
    assert second["memory-bytes"] > first["memory-bytes"] / 2


@pytest.mark.torch
def test_what_a_measuring_process_meets_is_raised_in_its_parent(host: Host, folder: Path) -> None:
    with pytest.raises(ProgramError, match="a packaged program file is missing") as caught:
        host.ask(calls_of(folder / "nowhere", "forward"), "net/default", LIMIT)
    assert isinstance(caught.value, LowerError)
    assert host.ask(calls_of(folder, "grow"), "net", LIMIT)["calls"], "the process still answers"


@pytest.mark.torch
def test_a_model_that_crashes_is_an_error_and_ends_nothing_else(host: Host, folder: Path) -> None:
    (folder.parent / "crashing.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    eager = {"paths": [str(folder.parent)], "export": "crashing:export"}
    with pytest.raises(ProcessError, match="the measuring process has crashed") as caught:
        host.ask(calls_of(folder, "grow", eager=eager), "calls of net/default", LIMIT)
    assert caught.value.where == "calls of net/default"
    assert "signal 11" in caught.value.found
    assert host.ask(calls_of(folder, "grow"), "net", LIMIT)["calls"]


@pytest.mark.torch
def test_a_model_that_hangs_is_ended(folder: Path) -> None:
    (folder.parent / "hanging.py").write_text("import time\ntime.sleep(3600)\n")
    eager = {"paths": [str(folder.parent)], "export": "hanging:export"}
    with Host(1, os.environ) as started:
        started.ask(calls_of(folder, "grow"), "net", LIMIT)
        with pytest.raises(ProcessError, match="took too long and was ended") as caught:
            started.ask(calls_of(folder, "grow", eager=eager), "net", 0.5)
        assert "raise `budget`" in caught.value.hint
    wait_for(lambda: not is_alive(started.process_group), "the end of the processes")


@pytest.mark.torch
@pytest.mark.parametrize("is_idle", [False, True])
def test_what_measures_ends_with_who_asked(folder: Path, tmp_path: Path, is_idle: bool) -> None:
    pids, answered = tmp_path / "pids", tmp_path / "answered"
    (folder.parent / "net_source.py").write_text(SOURCE)
    (tmp_path / "leaving.py").write_text(
        "import os, subprocess, time\n"
        "from net_source import export\n"
        "other = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getppid()}} {{other.pid}} {{os.getpid()}}.')\n"
        f"{'' if is_idle else 'time.sleep(1000)'}\n"
    )
    request = calls_of(folder, "grow", eager={"paths": [str(tmp_path), str(folder.parent)], "export": "leaving:export"})
    code = (
        "import os, time; from hatch_lower.cli.measure.command import Host\n"
        f"host = Host(1, os.environ); host.ask({request!r}, 'net', 600)\n"
        f"open({str(answered)!r}, 'w').close(); time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        wait_for(lambda: pids.exists() and pids.read_text().endswith("."), "it measures")
        wait_for(lambda: answered.exists() == is_idle, "its answer")
        running = [int(pid) for pid in pids.read_text()[:-1].split()]
        assert all(map(is_running, running[:2]))
        parent.kill()
    wait_for(lambda: not any(map(is_running, running)), "the end of the processes")


@pytest.mark.torch
def test_sigterm_ends_a_benchmark_as_an_exception_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the signal would end the tests"
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hatch_lower.cli.measure.gate.measure_sides", run)
    done = CliRunner().invoke(main, ["bench", str(folder)])  # a folder: nothing is unpacked, no work folder is open
    assert done.exit_code == 128 + signal.SIGTERM, done.output
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# What methods are called with


@pytest.mark.torch
def test_inputs_are_the_packaged_ones_unless_another_size_is_asked_for(folder: Path) -> None:
    import torch

    from hatch_lower.runtime.leaves import stored_arrays
    from hatch_lower.runtime.mapped import ConstantsFile
    from hatch_lower.runtime.torch_arrays import ARRAYS

    plan = read_plan((folder / "net" / "default.json").read_bytes(), "net/default.json")
    tensors = stored_arrays(ConstantsFile(folder / "net" / "check.safetensors", "check"), "check", ARRAYS)
    method = plan.methods["forward"]
    x, at = input_values("forward", method, tensors, {})
    assert isinstance(x, torch.Tensor)
    assert torch.equal(x, torch.linspace(0, 1, 12).reshape(4, 3))
    x, at = input_values("forward", method, tensors, {"rows": 9})
    assert isinstance(x, torch.Tensor)
    assert isinstance(at, torch.Tensor)
    assert x.shape == (9, 3)
    assert at.tolist() == [1, 3], "a tensor without that dimension stays"
    x, at = input_values("forward", method, {}, {})
    assert isinstance(x, torch.Tensor)
    assert x.shape == (2, 3), "the least size that is no special case, where none is packaged"


def test_before_a_block_of_short_calls_an_untimed_block_fills_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(worker.time, "sleep", rests.append)
    counts: list[int] = []

    def way(count: int) -> float:
        counts.append(count)
        return 0.001

    worker.settle(way, 5, 0.002)
    worker.settle(way, 1, 0.002)
    assert (rests, counts) == ([0.002, 0.002], [5])


@pytest.mark.parametrize(("rest", "sides", "settled"), [(0.002, "AB", True), (0.0, "AB", False), (0.002, "A", False)])
def test_several_sides_are_timed_after_a_rest(
    rest: float, sides: str, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    monkeypatch.setattr(worker, "settle", lambda way, count, seconds: calls.append(seconds))
    ways = {side: lambda count: 0.01 for side in sides}
    found = worker.timed_rounds(ways, list(sides), 0.01, rest)
    assert len(calls) == (sum(map(len, found.values())) if settled else 0)
