from __future__ import annotations

import platform
import sys
from pathlib import Path

from hatch_lower.driver.inputs.machine import cpu_capability, find_accelerators, machine_facts


def test_the_facts_name_system_machine_libc_processor_and_interpreter() -> None:
    facts = machine_facts()
    assert list(facts) == ["system", "machine", "libc", "cpu", "python"]
    assert facts["system"] == platform.system()
    assert facts["machine"] == platform.machine()
    assert facts["libc"] == " ".join(platform.libc_ver()).strip()
    assert facts["python"].startswith(f"{sys.implementation.name} {platform.python_version()} (")
    assert "\n" not in facts["python"]


def test_the_instruction_sets_of_an_x86_processor_are_sorted_and_others_left_out(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    rows = (
        "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu avx2 avx fma sse4_2 f16c avx512_vnni amx_int8 hypervisor\n\n"
    )
    path.write_text(rows + rows.replace("avx2", "avx10"))
    assert cpu_capability(path) == "amx_int8 avx avx2 avx512_vnni f16c fma sse4_2"


def test_the_instruction_sets_of_an_arm_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: sve asimd evtstrm bf16 i8mm fphp cpuid\n\n" * 300)
    assert cpu_capability(path) == "asimd bf16 fphp i8mm sve"


def test_nothing_is_known_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert cpu_capability(tmp_path / "missing") == ""
    (tmp_path / "cpuinfo").write_text("processor: 0\n")
    assert cpu_capability(tmp_path / "cpuinfo") == ""


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_accelerators_are_nodes_of_devices_with_their_kinds(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", "NVRM version: 580.65.06\n")
    write(tmp_path, "dev/nvidiactl", "")
    assert find_accelerators(tmp_path) == "", "a driver without a device"
    write(tmp_path, "dev/nvidia0", "")
    write(tmp_path, "dev/dri/renderD128", "")
    write(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: A100\nGPU UUID: GPU-1\n")
    before = find_accelerators(tmp_path)
    assert before.startswith("dri/renderD128 nvidia0 (")
    write(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: A100\nGPU UUID: GPU-2\n")
    assert find_accelerators(tmp_path) == before, "another GPU of the same kind"
    write(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: H100\nGPU UUID: GPU-2\n")
    assert find_accelerators(tmp_path) != before
    write(tmp_path, "sys/class/drm/renderD128/device/vendor", "0x8086\n")
    assert len({before, find_accelerators(tmp_path)}) == 2
