"""Times of candidates of `hatch-lower tune` from scripted answers of measuring processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.tuning import settings_of

from hatch_lower.cli.measure.command import RecipeRefusedError
from hatch_lower.cli.measure.figures import FigureSubject
from hatch_lower.cli.measure.tune import timer as timer_module
from hatch_lower.cli.measure.tune.bench import ProjectBench, TunedProject
from hatch_lower.cli.measure.tune.candidates import TunedCandidate
from hatch_lower.cli.measure.tune.lowered import LeftOutError
from hatch_lower.cli.measure.tune.race import EAGER
from hatch_lower.cli.measure.tune.timer import CandidateTimer, times_of_calls
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import ProcessError

CALLS = tuple((FigureSubject("digits", "", "forward", f"batch={size}", 2), {"batch": size}) for size in (1, 8))
EXPORT = """\
import torch
from hatch_lower import Method, Model


class Net(torch.nn.Module):
    def forward(self, values):
        return values + 1

    def double(self, values):
        return values * 2


def export():
    model = Net()
"""
SECONDS = {"portable": 2.0, "openvino": 1.0}


class ScriptedHost:
    """A measuring process that answers with the seconds of `SECONDS`, or fails once."""

    fails: ClassVar[list[Exception]] = []
    asked: ClassVar[list[Mapping[str, Any]]] = []
    threads: ClassVar[list[int]] = []
    eager: ClassVar[Mapping[str, float]] = {}
    closed = 0

    def __init__(self, threads: int, environment: Mapping[str, str]) -> None:
        type(self).threads.append(threads)

    def ask(self, request: Mapping[str, Any], title: str, limit: float) -> Mapping[str, Any]:
        type(self).asked.append(request)
        if type(self).fails:
            raise type(self).fails.pop()
        if request["kind"] == "eager":
            return {"calls": type(self).eager}
        if request["kind"] == "load":
            return {"load-seconds": 0.5, "memory-bytes": 100, "methods": dict.fromkeys(request["methods"], 1.0)}
        recipes = {side: request["recipes"].get(side, request["recipe"]) for side in request["sides"]}
        call = {side: [SECONDS[recipe]] * 4 for side, recipe in recipes.items()}
        reason = "" if request["eager"] is None else "it needs a network"
        return {"calls": [call, {side: [8 * each[0]] for side, each in call.items()}], "no eager": reason}

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedHost]:
    kind = type("Host", (ScriptedHost,), {"fails": [], "asked": [], "threads": [], "closed": 0})
    monkeypatch.setattr(timer_module, "Host", kind)
    return kind


def timer(eager: Any = None) -> CandidateTimer:
    candidates: Any = {
        name: SimpleNamespace(
            candidate=TunedCandidate(Recipe(name, imports=(name,))), folder=Path(f"/{name}"), process_settings={}
        )
        for name in SECONDS
    }
    return CandidateTimer(candidates, lambda: CALLS, 2, eager, os.environ, 60.0)


def test_a_heat_calls_all_candidates_in_both_orders_with_their_own_recipes(host: type[ScriptedHost]) -> None:
    with timer() as used:
        assert used.heat(["openvino", "portable"], with_eager=False) == {
            "openvino": pytest.approx((1.0, 8.0)),
            "portable": pytest.approx((2.0, 16.0)),
        }
    first, second = host.asked
    assert (first["order"], second["order"]) == (["A", "B"], ["B", "A"])
    assert (first["recipe"], first["recipes"], first["inputs"]) == ("openvino", {"B": "portable"}, ["/openvino"])
    assert first["imports"] == ["openvino", "portable"]
    assert used.samples["openvino"] == [(1.0, 8.0), (1.0, 8.0)]
    assert (host.threads, host.closed) == ([2], 1)


def test_a_heat_lasts_as_long_as_its_loads_within_limits(host: type[ScriptedHost]) -> None:
    with timer() as used:
        used.heat(["openvino"], with_eager=False)
        used.load("openvino", 1)
        used.heat(["openvino"], with_eager=False)
        used.load("portable", 1)
        used.heat(["openvino", "portable"], with_eager=False)
    calls = [request for request in host.asked if request["kind"] == "calls"]
    assert [request["seconds"] for request in calls[::2]] == [0.3, 0.5, 1.0]
    assert all(request["rest"] > 0 for request in calls)


def test_eager_that_fails_is_noted_and_missing(host: type[ScriptedHost]) -> None:
    eager = SimpleNamespace(paths=("/src",), export="digits:export")
    with timer(eager) as used:
        assert EAGER not in used.heat(["portable"], with_eager=True)
        assert list(used.notes) == ["eager is not timed: it needs a network"]


@pytest.mark.parametrize(
    ("sizes", "seconds", "least"),
    [(None, 0.5, 5.6), (({"batch": 1},), 0.5, 0.6 + 0.6), (None, 1e-6, 0.6 + 0.6)],
)
def test_a_heat_has_the_fewest_calls_of_eager_at_least(
    host: type[ScriptedHost], sizes: Any, seconds: float, least: float
) -> None:
    eager = SimpleNamespace(paths=("/src",), export="digits:export")
    settings = settings_of(bench={} if sizes is None else {"sizes": list(sizes)})
    host.eager = {"forward": seconds, "embed": 1e-6}
    bench = ProjectBench(TunedProject(settings, None, None, ()), settings.models[0], 2, 60.0)  # type: ignore[arg-type]
    with timer(eager) as used:
        assert bench.least_heat(used) == pytest.approx(least)
        host.fails = [ProcessError("the measuring process has crashed")]
        assert bench.least_heat(used) == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("result", "methods"),
    [
        ("(model, (torch.ones(2),))", ["forward"]),
        (
            "Model(model, {'double': Method((torch.ones(2),)), 'forward': Method((torch.ones(2),))})",
            ["double", "forward"],
        ),
        ("torch.export.export(model, (torch.ones(2),))", []),
    ],
)
def test_eager_is_called_with_the_example_inputs_of_each_method(
    result: str, methods: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from hatch_lower.cli.measure.worker import measure_eager

    (tmp_path / "called.py").write_text(EXPORT + f"    return {result}\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "called", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = measure_eager({"model": "net", "eager": {"paths": [str(tmp_path)], "export": "called:export"}})
    del sys.modules["called"]
    calls: Any = found["calls"]
    assert sorted(calls) == methods
    assert all(seconds > 0 for seconds in calls.values())


def test_a_process_that_ends_is_started_again(host: type[ScriptedHost]) -> None:
    host.fails = [ProcessError("the measuring process has crashed")]
    with timer() as used:
        with pytest.raises(ProcessError):
            used.heat(["portable"], with_eager=False)
        assert host.closed == 1
        used.heat(["portable"], with_eager=False)
    assert host.threads == [2, 2]


def test_loads_have_one_thread_and_a_refused_recipe_is_left_out(host: type[ScriptedHost]) -> None:
    with timer() as used:
        assert used.load("openvino", 3) == {"load-seconds": 0.5, "memory-bytes": 100}
        assert (len(host.asked), host.threads) == (3, [1])
        host.fails = [RecipeRefusedError("it needs AVX-512")]
        with pytest.raises(LeftOutError, match="cannot run here: it needs AVX-512"):
            used.load("portable", 3)


def test_many_heats_have_the_interval_of_the_pairs() -> None:
    pytest.importorskip("scipy")
    heats = [{"portable": (1.0 + at / 100, 2.0), EAGER: (4.0, 4.0)} for at in range(9)]
    first, second = times_of_calls(CALLS, heats, [(0.1, 0.1)], "portable")
    assert first.median == pytest.approx(1.04)
    assert 1.0 <= first.low < 1.04 < first.high <= 1.08
    assert (second.low, second.high, second.eager) == (2.0, 2.0, 4.0)
    assert (first.sizes, second.sizes) == ({"batch": 1}, {"batch": 8})
