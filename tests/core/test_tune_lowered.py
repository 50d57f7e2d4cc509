"""Exact figures of candidates of `hatch-lower tune`, and candidates that are left out."""

from __future__ import annotations

import importlib.metadata
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hatch_lower.cli.measure.figures import ChildFigures, FigureSubject
from hatch_lower.cli.measure.tune import lowered as lowered_module
from hatch_lower.cli.measure.tune.candidates import TunedCandidate
from hatch_lower.cli.measure.tune.lowered import (
    LeftOutError,
    SharedFiles,
    Sizes,
    accuracy_of,
    examined,
    left_out_reason,
    packed_size,
)
from hatch_lower.config.settings import Recipe
from hatch_lower.errors import BackendError, VerificationError
from hatch_lower.format.evidence import MeasuredAccuracy
from hatch_lower.format.manifest import MetricEntry

CANDIDATE = TunedCandidate(Recipe("portable"))


def test_documents_are_packed_and_other_files_are_stored(tmp_path: Path) -> None:
    document, weights = tmp_path / "plan.json", tmp_path / "constants.safetensors"
    document.write_bytes(b"a" * 10_000)
    weights.write_bytes(b"a" * 10_000)
    assert packed_size(document) < 100
    assert packed_size(weights) == 10_000


class Distribution:
    def __init__(self, size: int, requires: list[str]) -> None:
        self.files = [SimpleNamespace(size=size), SimpleNamespace(size=None)]
        self.requires = requires


def test_installed_bytes_count_each_required_distribution_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "torch": Distribution(1000, ["NumPy>=1", "sympy; extra == 'more'", "missing"]),
        "numpy": Distribution(100, ["torch"]),
        "sympy": Distribution(10, []),
    }

    def find(name: str) -> Distribution:
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "distribution", find)
    sizes = Sizes()
    assert sizes.of_all(["torch>=2", "numpy"]) == 1100
    assert sizes.of_all(["numpy", "sympy; python_version < '3'"]) == 1100
    assert sizes.of_all(["sympy"]) == 10


def figures(error: float | None) -> ChildFigures:
    found = {} if error is None else {FigureSubject("digits", "portable", "forward"): {"error": error}}
    return ChildFigures(found, {})


def accuracy(monkeypatch: pytest.MonkeyPatch, error: float | None, metric: Any = None) -> MeasuredAccuracy | None:
    monkeypatch.setattr(lowered_module, "measure_errors", lambda *_: figures(error))
    side: Any = SimpleNamespace(folders={})
    entry: Any = SimpleNamespace(metric=metric)
    return accuracy_of(side, "digits", CANDIDATE, entry, 10.0)


def test_the_accuracy_is_the_largest_error_if_there_are_check_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accuracy(monkeypatch, 0.5) == MeasuredAccuracy("error", 0.5)
    assert accuracy(monkeypatch, None) is None


def test_the_metric_of_a_model_is_its_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = MetricEntry("digits:accuracy", 0.96, 0.97, 0.01)
    assert accuracy(monkeypatch, 0.5, metric) == MeasuredAccuracy("metric", 0.96, 0.97)


def test_a_candidate_with_an_infinite_error_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeftOutError, match="not verified: outputs without a finite difference"):
        accuracy(monkeypatch, math.inf)


def test_a_recipe_that_the_build_did_not_compare_is_left_out() -> None:
    entry = SimpleNamespace(not_compared="there is no GPU")
    model = SimpleNamespace(recipes={"portable": entry}, constants=None)
    side: Any = SimpleNamespace(folders={"digits": SimpleNamespace(manifest=SimpleNamespace(models={"digits": model}))})
    with pytest.raises(LeftOutError, match="not verified: there is no GPU"):
        examined(CANDIDATE, "digits", side, 10.0, Sizes(), SharedFiles())


def test_equal_weights_are_on_the_disk_once(tmp_path: Path) -> None:
    shared, paths = SharedFiles(), [tmp_path / name / "constants.safetensors" for name in "abc"]
    for path, text in zip(paths, ("same", "same", "other"), strict=True):
        path.parent.mkdir()
        path.write_text(text)
        shared.share(path, text)
    assert paths[0].samefile(paths[1])
    assert not paths[0].samefile(paths[2])
    assert [path.read_text() for path in paths] == ["same", "same", "other"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["constants.safetensors"]
    paths[0].unlink()
    fourth = tmp_path / "fourth"
    fourth.write_text("same")
    shared.share(fourth, "same")
    assert fourth.stat().st_nlink == 1


def test_a_reason_is_a_line_with_the_first_words_of_the_error() -> None:
    wrong = VerificationError("other values", found="a\nb\n\nc\nd")
    assert left_out_reason(wrong) == "not verified: other values: a; b"
    assert left_out_reason(BackendError("no operator")) == "refused: no operator"
