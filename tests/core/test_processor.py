"""What an engine is told of the processor, with torch and without."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hatch_lower.runtime import selection
from hatch_lower.runtime.selection import multiplies_bytes, physical_cores, thread_count


@pytest.mark.torch
def test_torch_is_asked_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert thread_count() == torch.get_num_threads()
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: "asked")
    assert multiplies_bytes() is True


@pytest.mark.torch
def test_both_ways_say_the_same_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert isinstance(torch.get_num_threads(), int)
    with_torch = multiplies_bytes()
    monkeypatch.delitem(sys.modules, "torch")
    assert multiplies_bytes() == with_torch


@pytest.mark.parametrize(("asked", "count"), [("3", 3), (" 2,4", 2), ("0", 5), ("", 5), ("many", 5), ("-1", 5)])
def test_without_torch_openmps_variable_or_the_cores_count(
    monkeypatch: pytest.MonkeyPatch, asked: str, count: int
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(selection, "physical_cores", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert thread_count() == count
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert thread_count() == 5


def test_processors_of_one_core_count_once_and_those_of_others_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, siblings in enumerate(["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 7}, raising=False)
    assert physical_cores(tmp_path) == 3
    assert physical_cores(tmp_path / "nowhere") == 4
    assert physical_cores() >= 1


@pytest.mark.parametrize(("flags", "has"), [("fpu avx512_vnni", True), ("fpu avx2", False)])
def test_without_torch_the_processors_flags_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, has: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(selection, "CPUINFO", tmp_path / "cpuinfo")
    assert multiplies_bytes() is has
