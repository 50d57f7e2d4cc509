"""`lowering-times.json`: measurements are read back, and a machine keeps the measurements of other levels."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.config.settings import ModelSettings, Recipe
from hatch_lower.config.tables import BackendChoice
from hatch_lower.config.timed import recipe_digest, timed_settings
from hatch_lower.errors import ConfigError
from hatch_lower.format.evidence import (
    Evidence,
    MeasuredAccuracy,
    MeasuredCall,
    Measurement,
    TunedChoice,
    read_evidence,
    write_evidence,
)
from hatch_lower.runtime.selection import machine_level

RECIPE = Recipe("openvino", (BackendChoice("openvino"),))
MEASUREMENT = Measurement(
    model="digits",
    recipe="openvino",
    digest=recipe_digest(RECIPE),
    settings=timed_settings(RECIPE),
    level="x86-64-v3",
    threads=2,
    calls=(
        MeasuredCall("forward", {"batch": 1}, 0.002, 0.0019, 0.0021, 0.004),
        MeasuredCall("forward", {}, 0.008, 0.008, 0.009),
    ),
    load_seconds=0.12,
    memory_bytes=1_000_000,
    wheel_bytes=2_000,
    installed_bytes=90_000_000,
    accuracy=MeasuredAccuracy("error", 1.2e-6),
    versions={"openvino": "2026.4.0", "torch": "2.13.0"},
)
CHOICE = TunedChoice("digits", "x86-64-v3", "latency", "openvino")
EVIDENCE = Evidence((MEASUREMENT,), (CHOICE,))


def changed(**fields: Any) -> bytes:
    value = json.loads(write_evidence(EVIDENCE))
    value["measurements"][0] |= fields
    return json.dumps(value).encode()


def test_reading_written_evidence_gives_equal_evidence() -> None:
    data = write_evidence(EVIDENCE)
    assert read_evidence(data, "f") == EVIDENCE
    assert write_evidence(read_evidence(data, "f")) == data


def test_written_numbers_have_four_digits() -> None:
    measured = replace(MEASUREMENT, load_seconds=0.123456789)
    assert read_evidence(write_evidence(Evidence((measured,))), "f").measurements[0].load_seconds == 0.1235


def test_the_greatest_number_stays_a_number() -> None:
    measured = replace(MEASUREMENT, load_seconds=sys.float_info.max)
    assert read_evidence(write_evidence(Evidence((measured,))), "f").measurements[0].load_seconds == sys.float_info.max


def test_calls_join_to_their_geometric_mean() -> None:
    assert MEASUREMENT.call_seconds == pytest.approx(0.004)


def test_measurements_of_other_levels_and_models_stay() -> None:
    other = replace(MEASUREMENT, level="x86-64-v4")
    another = replace(MEASUREMENT, model="faces")
    old = Evidence((MEASUREMENT, other, another), (CHOICE, replace(CHOICE, level="x86-64-v4")))
    new = replace(MEASUREMENT, recipe="aoti")
    found = old.with_model(replace(CHOICE, recipe="aoti"), [new])
    assert found.measurements == (new, other, another)
    assert [each.recipe for each in found.choices] == ["aoti", "openvino"]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object with the key `schema`"),
        (b'{"schema": true}', "no JSON object with the key `schema`"),
        (b"[" * 100_000, "JSON that nests too deeply"),
        (changed(calls=[]), "no calls"),
        (changed(threads=0), "0 instead of a number above 0"),
        (changed(load_seconds=0), "0 instead of a number above 0"),
        (changed(load_seconds=float("nan")), "no JSON: the constant NaN"),
        (changed(host="build7"), "unknown key `host`"),
        (changed(digest="x"), "'x' instead of a sha256"),
    ],
)
def test_damaged_evidence_is_refused(data: bytes, found: str) -> None:
    with pytest.raises(ConfigError, match="the file of measured times is damaged") as error:
        read_evidence(data, "lowering-times.json")
    assert found in error.value.found
    assert error.value.where.startswith("lowering-times.json")


def test_a_measurement_stands_once() -> None:
    value = json.loads(write_evidence(EVIDENCE))
    value["measurements"] *= 2
    with pytest.raises(ConfigError) as error:
        read_evidence(json.dumps(value).encode(), "f")
    assert error.value.found == "two measurements of a recipe, level and number of threads"


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a newer hatch-lower"):
        read_evidence(b'{"schema": 2}', "f")


def test_the_digest_of_a_recipe_follows_its_options_and_not_its_name() -> None:
    assert recipe_digest(replace(RECIPE, name="fast")) == recipe_digest(RECIPE)
    threads = replace(RECIPE, backends=(BackendChoice("openvino", {"threads": 1}),))
    assert recipe_digest(threads) != recipe_digest(RECIPE)
    int8 = replace(RECIPE, precision="int8")
    model = ModelSettings("net", "net:export", "net", (int8.name,))
    kept = replace(model, kept={int8.name: ("head",)})
    digests = [recipe_digest(*each) for each in ((RECIPE, kept), (int8, model), (int8, kept))]
    digests.append(recipe_digest(int8, replace(model, calibrate="net:calls")))
    assert len(set(digests)) == 4
    assert recipe_digest(RECIPE, replace(model, calibrate="net:calls")) == recipe_digest(RECIPE)


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("fpu", "x86-64"),
        ("cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3", "x86-64-v2"),
        ("cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx512_vnni", "x86-64-v2"),
        ("cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave", "x86-64-v3"),
    ],
)
def test_the_level_of_a_machine_is_the_highest_whose_flags_are_there(
    flags: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags : {flags}\n")
    assert machine_level(cpuinfo) == level


def test_the_level_elsewhere_is_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert machine_level() == "aarch64"
