"""Measured times of recipes on the report page: points, fronts, and files that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.page_wheels import page_wheel

from hatch_lower.cli.main import main
from hatch_lower.cli.page.times import front, read_times
from hatch_lower.errors import ProgramError
from hatch_lower.format.debug_map import Origin
from hatch_lower.format.evidence import (
    EVIDENCE_FILE,
    Evidence,
    MeasuredAccuracy,
    MeasuredCall,
    Measurement,
    TunedChoice,
    write_evidence,
)

FAST = Measurement(
    model="digits",
    recipe="openvino-int8",
    digest="0" * 64,
    settings={"backends": [{"name": "openvino"}], "precision": "int8"},
    level="x86-64-v3",
    threads=2,
    calls=(MeasuredCall("forward", {"batch": 8}, 0.002, 0.0019, 0.0021, 0.004),),
    load_seconds=0.1,
    memory_bytes=1000,
    wheel_bytes=2000,
    installed_bytes=3000,
    accuracy=MeasuredAccuracy("error", 0.01),
    versions={"torch": "2.13.0"},
)
EXACT = replace(FAST, recipe="portable", settings={"backends": []}, accuracy=MeasuredAccuracy("error", 0.0))
EXACT = replace(EXACT, calls=(MeasuredCall("forward", {}, 0.004, 0.004, 0.004),), installed_bytes=2000)
WORSE = replace(EXACT, recipe="aoti", calls=(MeasuredCall("forward", {}, 0.005, 0.005, 0.005),), accuracy=None)
EVIDENCE = Evidence((WORSE, FAST, EXACT), (TunedChoice("digits", "x86-64-v3", "latency", "openvino-int8"),))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / EVIDENCE_FILE
    path.write_bytes(write_evidence(EVIDENCE))
    return path


def test_the_front_has_the_points_that_no_other_point_betters() -> None:
    points = [("a", 1.0, 5.0), ("b", 2.0, 2.0), ("c", 2.0, 3.0), ("d", 3.0, 1.0), ("e", 4.0, 4.0), ("f", 2.0, 2.0)]
    assert front(points) == ["a", "b", "f", "d"]


def test_measured_recipes_are_sorted_by_time_and_have_their_fronts(file: Path) -> None:
    (group,) = read_times(file, ["digits"])
    assert (group["model"], group["level"], group["threads"], group["chosen"]) == (
        *("digits", "x86-64-v3", 2, "openvino-int8"),
    )
    assert [row["recipe"] for row in group["rows"]] == ["openvino-int8", "portable", "aoti"]
    assert group["fronts"] == {"size": ["openvino-int8", "portable"], "accuracy": ["openvino-int8", "portable"]}
    assert group["rows"][0]["engines"] == ["openvino"]
    assert group["rows"][0]["eager"] == pytest.approx(0.5)


def test_the_loss_of_a_metric_is_its_drop_from_eager(file: Path) -> None:
    metric = replace(FAST, accuracy=MeasuredAccuracy("metric", 0.96, 0.97))
    file.write_bytes(write_evidence(Evidence((metric,))))
    (group,) = read_times(file, ["digits"])
    assert group["rows"][0]["loss"] == pytest.approx(0.01)
    assert group["chosen"] == ""


def test_times_of_other_models_are_refused(file: Path) -> None:
    with pytest.raises(ProgramError, match="the measured times are not of a model that is here") as error:
        read_times(file, ["faces"])
    assert error.value.found == "digits"


def test_the_page_has_the_measured_times(file: Path, tmp_path: Path) -> None:
    wheel = page_wheel(tmp_path / "digits-1.0.whl", [Origin("aten.relu.default", "", "digits/model.py:1")])
    page = tmp_path / "report.html"
    result = CliRunner().invoke(main, ["report", str(wheel), "--times", str(file), "-o", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "hatch.showTimes = " in text
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["times"][0]["rows"][0]["recipe"] == "openvino-int8"


def test_damaged_times_are_one_error_and_no_page(file: Path, tmp_path: Path) -> None:
    wheel = page_wheel(tmp_path / "digits-1.0.whl", [Origin("aten.relu.default", "", "digits/model.py:1")])
    file.write_text("{}")
    result = CliRunner().invoke(main, ["report", str(wheel), "--times", str(file), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 1
    assert "the file of measured times is damaged" in result.stderr
    assert not (tmp_path / "r.html").exists()
