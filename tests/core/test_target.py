"""Whether native code can run on a machine, from its target and what Linux says of the processor."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from hatch_lower.format.constants import TargetEntry
from hatch_lower.runtime.selection import unsupported_reason

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = V2 + " abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def write_cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: any\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\nflags\t\t: none\n")
    return path


def target(isa: str, machine: str = "x86_64") -> TargetEntry:
    return TargetEntry("Linux", machine, isa)


def test_a_processor_runs_its_own_level_and_those_below(tmp_path: Path) -> None:
    cpuinfo = write_cpuinfo(tmp_path, V3)
    for isa in ("x86-64", "x86-64-v2", "x86-64-v3"):
        assert unsupported_reason(target(isa), cpuinfo) is None
    assert unsupported_reason(target("x86-64-v4"), cpuinfo) == (
        "it needs the instruction set x86-64-v4, and this processor has no "
        "avx512bw, avx512cd, avx512dq, avx512f, avx512vl"
    )


def test_the_highest_level_has_products_of_bytes(tmp_path: Path) -> None:
    v4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"
    cpuinfo = write_cpuinfo(tmp_path, v4)
    assert unsupported_reason(target("x86-64-v4"), cpuinfo) is None
    assert unsupported_reason(target("x86-64-v4-vnni"), cpuinfo) == (
        "it needs the instruction set x86-64-v4-vnni, and this processor has no avx512_vnni"
    )
    assert unsupported_reason(target("x86-64-v4-vnni"), write_cpuinfo(tmp_path, f"{v4} avx512_vnni")) is None


def test_a_lower_processor_is_told_what_it_lacks(tmp_path: Path) -> None:
    cpuinfo = write_cpuinfo(tmp_path, V3.replace("fma ", ""))
    reason = unsupported_reason(target("x86-64-v3"), cpuinfo)
    assert reason == "it needs the instruction set x86-64-v3, and this processor has no fma"


def test_flags_that_cannot_be_read_are_missing(tmp_path: Path) -> None:
    assert unsupported_reason(target("x86-64"), tmp_path / "none") is None
    assert "and this processor has no" in str(unsupported_reason(target("x86-64-v2"), tmp_path / "none"))


def test_another_machine_is_refused() -> None:
    reason = unsupported_reason(target("armv8-a", "aarch64"))
    assert reason == "it was compiled for Linux on aarch64, and this is Linux on x86_64"


def test_an_unknown_level_is_refused() -> None:
    assert unsupported_reason(target("x86-64-v9")) == "its instruction set `x86-64-v9` is unknown here"


def test_aarch64_has_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert unsupported_reason(target("armv8-a", "aarch64")) is None
    assert unsupported_reason(target("armv9-a", "aarch64")) == "its instruction set `armv9-a` is unknown here"
