"""Which results are kept in the cache, and that a kept one is the same as a made one."""

from __future__ import annotations

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from support.backends import TagBy, everything
from torch.export import ExportedProgram

from hatch_lower.cache.store import Store
from hatch_lower.errors import BackendError, CacheError
from hatch_lower.exir._serialize._named_data_store import NamedDataStore
from hatch_lower.exir.backend.backend_api import lower_methods
from hatch_lower.exir.backend.backend_details import BackendDetails, PreprocessResult, Target
from hatch_lower.exir.lowered_backend_module import LoweredBackendModule, get_lowered_backend_modules
from hatch_lower.exir.lowering.convert import to_edge
from hatch_lower.exir.lowering.preprocess import identity_of
from hatch_lower.pipeline.emit.emit import MethodToEmit, emit_program

pytestmark = pytest.mark.torch


class Whatever(BackendDetails):
    """Returns what it is told to."""

    result: ClassVar[PreprocessResult] = PreprocessResult()

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        return Whatever.result


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    return to_edge(torch.export.export(Sine(), (torch.ones(3),), strict=False))


class Trained(BackendDetails):
    """Changes a weight that is not its own."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        for tensor in edge_program.state_dict.values():
            tensor.detach().mul_(2)
        return PreprocessResult(b"blob")


def lower(program: ExportedProgram, folder: Path, mode: str) -> tuple[LoweredBackendModule, int]:
    store = Store(folder, mode, pytest.fail)
    lowered = lower_methods({"m": program}, {"m": TagBy(everything, "Whatever")}, store=store)["m"]
    (module,) = get_lowered_backend_modules(lowered.program.graph_module)
    return module, lowered.reused


def test_a_backend_that_changes_the_models_weights_is_refused(tmp_path: Path) -> None:
    linear = torch.nn.Linear(2, 2).eval()
    edge = to_edge(torch.export.export(linear, (torch.ones(1, 2),), strict=False))
    with pytest.raises(BackendError, match="the backend `Trained` changed the model's weights") as caught:
        lower_methods({"m": edge}, {"m": TagBy(everything, "Trained")}, store=Store(tmp_path, "on", pytest.fail))
    assert caught.value.found == "other contents after `preprocess` than before"


def named_data() -> Any:
    store = NamedDataStore()
    store.add_named_data("a", b"first", 8)
    store.add_named_data("b", torch.arange(6.0).reshape(2, 3))
    store.add_named_data("c", b"first", external_tag="file")
    return store.get_named_data_store_output()


def test_a_kept_result_is_the_same_as_a_made_one(
    program: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = PreprocessResult(
        b"blob",
        {0: (1,), "fused": (1,)},
        named_data(),
        {"name": ["x", 1, None, True]},
        "txt",
        ("library==1.*",),
        Target("Linux", "x86_64", "x86-64-v3"),
        {"scale": 0.5},
    )
    monkeypatch.setattr(Whatever, "result", result)
    made, reused = lower(program, tmp_path, "on")
    assert (made.result, reused) == (result, 0)
    found, reused = lower(program, tmp_path, "frozen")
    assert (found.result, reused) == (result, 1)
    assert found.named_data_store_output == named_data()
    assert found.meta == made.meta


@pytest.mark.parametrize(
    "result",
    [
        PreprocessResult(b"", _delegate_info_meta=object),
        PreprocessResult(b"", _delegate_info_meta={"handles": {1: (2, 3)}}),
        PreprocessResult(b"", _delegate_info_meta=(1, 2)),
        PreprocessResult(b"", data_store_output={"weights": b""}),
        PreprocessResult(b"", info={"scale": float("nan")}),
    ],
    ids=["a class", "integers as keys", "a tuple", "data of another kind", "facts that are no JSON"],
)
def test_a_result_that_json_does_not_hold_is_made_anew_each_time(
    result: PreprocessResult, program: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Whatever, "result", result)
    for _ in range(2):
        module, reused = lower(program, tmp_path, "on")
        assert module.result is result
        assert reused == 0
    with pytest.raises(CacheError, match="the cache is frozen and lacks a result that this build needs"):
        lower(program, tmp_path, "frozen")


def test_facts_that_are_no_json_are_refused_with_a_cache_too(
    program: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Whatever, "result", PreprocessResult(b"", info={"scale": float("inf")}))
    store = Store(tmp_path, "on", pytest.fail)
    lowered = lower_methods({"m": program}, {"m": TagBy(everything, "Whatever")}, store=store)["m"].program
    with pytest.raises(BackendError, match="a backend returned facts for its run half that are not JSON"):
        emit_program("model", {"m": MethodToEmit("m", lowered, ("x",))})


class Slow(BackendDetails):
    """Waits a second for another build to call it too."""

    calls: ClassVar[list[str]] = []
    second: ClassVar[threading.Event] = threading.Event()

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: Any) -> PreprocessResult:
        Slow.calls.append("call")
        if len(Slow.calls) > 1:
            Slow.second.set()
        Slow.second.wait(1.0)
        return PreprocessResult(b"blob")


def test_of_two_builds_that_want_the_same_partition_one_lowers_it(program: ExportedProgram, tmp_path: Path) -> None:
    told: list[str] = []

    def build() -> int:
        store = Store(tmp_path, "on", told.append)
        return lower_methods({"m": program}, {"m": TagBy(everything, "Slow")}, store=store)["m"].reused

    with ThreadPoolExecutor(2) as pool:
        reused = list(pool.map(lambda _: build(), range(2)))
    assert Slow.calls == ["call"]
    assert sorted(reused) == [0, 1]
    # said only if the wait was a long one
    assert set(told) <= {"waiting for another build that is making the same result"}


def test_a_backend_s_code_identifies_it_whatever_its_fingerprint_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "class Plain:\n    pass\n"
    (tmp_path / "plain_backend.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    plain = importlib.import_module("plain_backend").Plain
    before = identity_of("plain", plain)
    assert identity_of("plain", plain) == before
    (tmp_path / "plain_backend.py").write_text(code.replace("pass", "answer = 42"))
    assert identity_of("plain", plain) != before
    nowhere = type("Nowhere", (), {"__module__": "nowhere"})
    assert identity_of("nowhere", nowhere) != identity_of("nowhere", nowhere), "nothing says what its code is"
