"""The platform tag of a payload with native code."""

from __future__ import annotations

import importlib.resources
import json
import platform
import subprocess
import sysconfig
from pathlib import Path

import pytest

from hatch_lower.cache.store import open_store
from hatch_lower.errors import PackageError
from hatch_lower.hatch.tags import SYMBOL_VERSIONS, NativeFile, platform_tag, read_native_file, remembering, tag_of

FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI", "GCC", "LIBATOMIC")
HOMES = {
    "GLIBC": "libc.so.6",
    "GLIBCXX": "libstdc++.so.6",
    "CXXABI": "libstdc++.so.6",
    "GCC": "libgcc_s.so.1",
    "LIBATOMIC": "libatomic.so.1",
}


def native(machine: str = "x86_64", **versions: str) -> NativeFile:
    needs: dict[str, tuple[str, ...]] = {}
    for family, text in versions.items():
        needs[HOMES[family]] = (*needs.get(HOMES[family], ()), *(f"{family}_{each}" for each in text.split()))
    return NativeFile(machine, ("libtorch_cpu.so", "libc10.so", *needs), needs)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (native(), "manylinux_2_5_x86_64"),
        (native("aarch64"), "manylinux_2_17_aarch64"),
        (native(GLIBC="2.2.5 2.14"), "manylinux_2_14_x86_64"),
        (native(GLIBC="2.2.5", GLIBCXX="3.4 3.4.30"), "manylinux_2_35_x86_64"),
        (native(GLIBC="2.38", GLIBCXX="3.4.30"), "manylinux_2_38_x86_64"),
        (native(GLIBCXX="3.4.21", CXXABI="1.3.9"), "manylinux_2_24_x86_64"),
        (native(CXXABI="FLOAT128"), "manylinux_2_24_x86_64"),
        (native(GLIBC="ABI_DT_RELR"), "manylinux_2_36_x86_64"),
        (native(GCC="12.0.0"), "manylinux_2_35_x86_64"),
        (native("aarch64", GCC="7.0.0"), "manylinux_2_26_aarch64"),
        (native(GLIBCXX="3.4.99"), "linux_x86_64"),
        (native(GLIBC="PRIVATE"), "linux_x86_64"),
        (NativeFile("EM_RISCV", ("libc.so.6",), {"libc.so.6": ("GLIBC_2.27",)}), "linux_EM_RISCV"),
        (NativeFile("x86_64", ("libz.so.1",), {}), "linux_x86_64"),
        (NativeFile("x86_64", (), {"libgomp.so.1": ("GOMP_4.0",), "libomp.so": ("VERSION",)}), "manylinux_2_5_x86_64"),
    ],
)
def test_the_lowest_platform_that_the_symbols_allow(file: NativeFile, expected: str) -> None:
    assert platform_tag([file]) == expected


def test_the_newest_file_decides() -> None:
    files = [native(GLIBCXX="3.4.19"), native(GLIBCXX="3.4.29"), native(GLIBC="2.17")]
    assert platform_tag(files) == "manylinux_2_34_x86_64"


def test_files_for_different_machines_are_refused() -> None:
    with pytest.raises(PackageError) as caught:
        platform_tag([native("x86_64"), native("aarch64")])
    assert str(caught.value) == (
        "the native code in the payload is for different machines, and a wheel can be for one only\n"
        "  found: aarch64, x86_64\n"
        "  to do: build one wheel for each machine"
    )


@pytest.mark.parametrize("machine", sorted(SYMBOL_VERSIONS))
def test_every_policy_of_auditwheel_is_reached_at_the_same_version(machine: str) -> None:
    text = (importlib.resources.files("auditwheel") / "policy" / "manylinux-policy.json").read_text()
    seen: set[str] = set()
    first = {"x86_64": 5, "aarch64": 17}[machine]
    for policy in json.loads(text):
        if policy["name"] == "linux" or machine not in policy["symbol_versions"]:
            continue
        for family in FAMILIES:
            for version in policy["symbol_versions"][machine][family]:
                symbol = f"{family}_{version}"
                if symbol in seen:
                    continue
                seen.add(symbol)
                minor = int(policy["name"].rpartition("_")[2])
                found = platform_tag([native(machine, **{family: version})])
                least = int(found.split("_")[2])
                if family == "GLIBC" and version[0].isdigit():  # says itself which glibc has it
                    minor = max(int(version.split(".")[1]), first)
                assert least == minor, symbol


def test_a_compiled_library_is_read(tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    source.write_text('#include <string>\nextern "C" int f(const char* t) { return std::stoi(std::string(t)); }\n')
    library = tmp_path / "a.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], check=True)

    file = read_native_file(library)

    assert file is not None
    assert file.machine == platform.machine()
    assert "libstdc++.so.6" in file.libraries
    assert any(symbol.startswith("GLIBCXX_3.4") for symbol in file.versions["libstdc++.so.6"])
    tag = tag_of([library])
    assert tag.startswith("py3-none-manylinux_2_")
    assert tag.endswith(f"_{platform.machine()}")


def test_no_native_file_is_a_wheel_for_every_platform() -> None:
    assert tag_of([]) == "py3-none-any"


def test_a_file_of_another_format_gives_the_platform_of_the_interpreter(tmp_path: Path) -> None:
    library = tmp_path / "a.dylib"
    library.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(100))
    assert tag_of([library]) == f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def test_the_contents_of_a_file_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store({"HATCH_LOWER_CACHE_DIR": str(tmp_path / "cache")}, print)
    parsed = []
    needs = {"a.so": native(GLIBC="2.17"), "b.so": None}

    def read(path: Path) -> NativeFile | None:
        parsed.append(path.name)
        return needs[path.name]

    monkeypatch.setattr("hatch_lower.hatch.tags.read_native_file", read)
    for expected in (["a.so", "b.so"], ["a.so", "b.so"]):
        known = remembering(store, {Path("a.so"): "1" * 64, Path("b.so"): "2" * 64})
        assert [known(Path(name)) for name in needs] == list(needs.values())
        assert parsed == expected
    remembering(store, {Path("a.so"): "3" * 64})(Path("a.so"))
    assert parsed[2:] == ["a.so"], "other contents"
