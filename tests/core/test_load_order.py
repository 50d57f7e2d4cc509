"""The order of recipes by measurements: levels, threads, and recipes without measurements."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hatch_lower.errors import ProgramError
from hatch_lower.format.codec import decode
from hatch_lower.format.manifest import FileEntry, MeasuredCalls, ModelEntry, RecipeEntry
from hatch_lower.runtime import load_order
from hatch_lower.runtime.load_order import levels_here, order_here
from hatch_lower.runtime.selection import LEVELS

V2, V3, V4 = "x86-64-v2", "x86-64-v3", "x86-64-v4"
FILE = FileEntry("digits/default.json", 1, "0" * 64)


def measured(level: str, *seconds: float, threads: int = 2) -> dict[str, Any]:
    calls = [{"method": "forward", "sizes": {"batch": i}, "seconds": each} for i, each in enumerate(seconds)]
    return {"level": level, "threads": threads, "calls": calls}


def model(**recipes: list[dict[str, Any]]) -> ModelEntry:
    entries = {
        name: RecipeEntry(FILE, FILE, (), (), (), None, {}, measured=decode(tuple[MeasuredCalls, ...], calls, ""))
        for name, calls in recipes.items()
    }
    return ModelEntry(tuple(recipes), None, None, entries)


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    def processor(level: str, threads: int = 2) -> Path:
        names = [name for name, _ in LEVELS]
        flags = [flag for _, needed in LEVELS[: names.index(level) + 1] for flag in needed]
        (tmp_path / "cpuinfo").write_text(f"flags : {' '.join(flags)}\n")
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(load_order, "thread_count", lambda: threads)
        return tmp_path / "cpuinfo"

    return processor


def test_recipes_without_measurements_keep_the_written_order() -> None:
    assert order_here(model(slow=[], fast=[]), Path("no processor is read")) == ("slow", "fast")


def test_the_highest_level_of_the_processor_decides(processor: Callable[..., Path]) -> None:
    entry = model(a=[measured(V3, 1), measured(V4, 3)], b=[measured(V3, 2), measured(V4, 2)])
    assert order_here(entry, processor(V4)) == ("b", "a")
    assert order_here(entry, processor("x86-64-v4-vnni")) == ("b", "a")
    assert order_here(entry, processor(V3)) == ("a", "b")


def test_a_level_without_measurements_takes_a_lower_levels(processor: Callable[..., Path]) -> None:
    entry = model(a=[measured(V2, 2)], b=[measured(V2, 1)])
    assert order_here(entry, processor(V4)) == ("b", "a")


def test_measurements_of_higher_levels_say_nothing_of_a_processor(processor: Callable[..., Path]) -> None:
    entry = model(a=[measured(V4, 2)], b=[measured(V4, 1)])
    assert order_here(entry, processor(V3)) == ("a", "b")


def test_recipes_of_lower_levels_and_then_unmeasured_recipes_come_last(processor: Callable[..., Path]) -> None:
    entry = model(none=[], low=[measured(V3, 0.1)], slow=[measured(V4, 2)], fast=[measured(V4, 1)])
    assert order_here(entry, processor(V4)) == ("fast", "slow", "low", "none")


def test_equally_fast_recipes_keep_the_written_order(processor: Callable[..., Path]) -> None:
    entry = model(b=[measured(V3, 1)], a=[measured(V3, 1)])
    assert order_here(entry, processor(V3)) == ("b", "a")


def test_each_size_counts_alike(processor: Callable[..., Path]) -> None:
    # twice as fast at the small size, 1.5 times as slow at the large one
    entry = model(a=[measured(V3, 0.002, 2)], b=[measured(V3, 0.001, 3)])
    assert order_here(entry, processor(V3)) == ("b", "a")


@pytest.mark.parametrize(("threads", "first"), [(1, "two"), (2, "two"), (4, "four"), (64, "four")])
def test_measurements_with_the_machines_number_of_threads_decide(
    processor: Callable[..., Path], threads: int, first: str
) -> None:
    two = [measured(V3, 1, threads=2), measured(V3, 1, threads=4)]
    four = [measured(V3, 2, threads=2), measured(V3, 0.5, threads=4)]
    assert order_here(model(two=two, four=four), processor(V3, threads))[0] == first


def test_other_machines_are_measured_under_their_own_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert levels_here(tmp_path) == ("aarch64",)
    entry = model(a=[measured("aarch64", 2)], b=[measured("aarch64", 1)])
    assert order_here(entry, tmp_path) == ("b", "a")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (measured(V3, 0.0), "0.0 instead of a number above 0"),
        (measured(V3, -1), "-1.0 instead of a number above 0"),
        (measured(V3), "no calls"),
    ],
)
def test_measurements_that_no_order_can_use_are_damage(value: dict[str, Any], found: str) -> None:
    with pytest.raises(ProgramError) as caught:
        decode(MeasuredCalls, value, "manifest.json")
    assert caught.value.found == found
