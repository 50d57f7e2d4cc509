"""The platform tag of a payload with native code."""

from __future__ import annotations

import importlib.resources
import json
import platform
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatch_lower.cache.store import open_store
from hatch_lower.errors import PackageError
from hatch_lower.hatch.tags import POLICIES, NativeFile, choose_wheel_tag, platform_tag, read_native_file, remembering

HOMES = {
    "GLIBC": "libc.so.6",
    "GLIBCXX": "libstdc++.so.6",
    "CXXABI": "libstdc++.so.6",
    "GCC": "libgcc_s.so.1",
    "LIBATOMIC": "libatomic.so.1",
    "ZLIB": "libz.so.1",
    "GOMP": "libgomp.so.1",
    "OMP": "libgomp.so.1",
}
MACHINES = ("aarch64", "x86_64")


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
        (native(GLIBC="2.2.5 2.14"), "manylinux_2_17_x86_64"),
        (native(GLIBC="2.2.5", GLIBCXX="3.4 3.4.30"), "manylinux_2_35_x86_64"),
        (native(GLIBC="2.38", GLIBCXX="3.4.30"), "manylinux_2_38_x86_64"),
        (native(GLIBCXX="3.4.21", CXXABI="1.3.9"), "manylinux_2_24_x86_64"),
        (native(CXXABI="FLOAT128"), "manylinux_2_24_x86_64"),
        (native(GLIBC="ABI_DT_RELR"), "manylinux_2_36_x86_64"),
        (native(GCC="12.0.0"), "manylinux_2_35_x86_64"),
        (native("aarch64", GCC="7.0.0"), "manylinux_2_26_aarch64"),
        (native("aarch64", GLIBC="2.18"), "manylinux_2_17_aarch64"),
        (native(GLIBC="2.17", GOMP="4.0", OMP="1.0"), "manylinux_2_17_x86_64"),
        (native(GLIBCXX="3.4.99"), "linux_x86_64"),
        (native(GLIBC="PRIVATE"), "linux_x86_64"),
        (NativeFile("riscv64", ("libc.so.6",), {"libc.so.6": ("GLIBC_2.27",)}), "linux_riscv64"),
        (NativeFile("x86_64", ("libmvec.so.1",), {}), "manylinux_2_24_x86_64"),
        (NativeFile("x86_64", ("libopencv_core.so.4",), {}), "linux_x86_64"),
        (NativeFile("x86_64", ("libc.musl-x86_64.so.1",), {}), "linux_x86_64"),
        (
            NativeFile("x86_64", (), {"libc.so.6": ("GLIBC_2.4",), "ld-linux-x86-64.so.2": ("GLIBC_2.35",)}),
            "manylinux_2_35_x86_64",
        ),
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
        "the native code in the payload is for different machines, but a wheel has a single machine\n"
        "  found: aarch64, x86_64\n"
        "  to do: build one wheel for each machine"
    )


def auditwheels(machine: str) -> Any:
    """Return auditwheel's own policies."""
    policy = pytest.importorskip("auditwheel.policy")
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc

    return policy.WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))


def derived_policies() -> dict[str, Any]:
    """Return what `POLICIES` must hold, from the policy data of the auditwheel that is installed."""
    pytest.importorskip("auditwheel")
    text = (importlib.resources.files("auditwheel") / "policy" / "manylinux-policy.json").read_text()
    policies = sorted(
        (each for each in json.loads(text) if each["name"] != "linux"), key=lambda each: -each["priority"]
    )
    policies.sort(key=lambda each: -int(each["priority"]))
    found: dict[str, Any] = {}
    for machine in MACHINES:
        libraries: set[str] = set()
        symbols: dict[str, set[str]] = {}
        for policy in policies:
            if machine not in policy["symbol_versions"]:
                continue
            added: dict[str, list[str]] = {}
            for family, versions in sorted(policy["symbol_versions"][machine].items()):
                new = sorted(set(versions) - symbols.get(family, set()))
                if new or family not in symbols:  # a family without versions, of which none is allowed
                    added[family] = new
                symbols.setdefault(family, set()).update(versions)
            assert symbols.keys() == policy["symbol_versions"][machine].keys(), "a family that a newer policy lacks"
            glibc = int(policy["name"].removeprefix("manylinux_2_"))
            more = sorted(set(policy["lib_whitelist"]) - libraries)
            found.setdefault(machine, []).append({"glibc": glibc, "libraries": more, "symbols": added})
            libraries |= set(policy["lib_whitelist"])
    return found


def test_the_policies_are_those_of_auditwheel() -> None:
    """Fails when auditwheel's data is another; then write `derived_policies()` to the file, with an indent of 1."""
    assert json.loads(POLICIES.read_text()) == derived_policies()


def symbols_to_draw(machine: str) -> list[str]:
    """Return every symbol version that a policy has, and some that none has."""
    known = {
        f"{family}_{version}"
        for policy in derived_policies()[machine]
        for family, versions in policy["symbols"].items()
        for version in versions
    }
    return sorted(known | {"GLIBC_PRIVATE", "GLIBC_2.99", "GLIBCXX_3.4.99", "ZLIB_9", "GOMP_4.0", "OMP_1.0"})


@pytest.mark.parametrize("machine", MACHINES)
@given(data=st.data())
def test_any_symbols_give_the_tag_that_auditwheel_gives(machine: str, data: st.DataObject) -> None:
    policies = auditwheels(machine)
    pool = symbols_to_draw(machine)
    highest = data.draw(st.integers(1, len(pool)), label="of the oldest, most often")
    symbols = data.draw(st.sets(st.sampled_from(data.draw(st.sampled_from([pool, pool[:highest]]))), max_size=8))
    needs: dict[str, tuple[str, ...]] = {}
    for symbol in sorted(symbols):
        home = HOMES[symbol.partition("_")[0]]
        needs[home] = (*needs.get(home, ()), symbol)
    expected = policies.versioned_symbols_policy({home: set(each) for home, each in needs.items()}).name

    assert platform_tag([NativeFile(machine, tuple(needs), needs)]) == expected
    # the same needs in two files
    halves = [NativeFile(machine, (home,), {home: each}) for home, each in needs.items()]
    assert not halves or platform_tag(halves) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_each_symbol_alone_gives_the_tag_that_auditwheel_gives(machine: str) -> None:
    policies = auditwheels(machine)
    for symbol in symbols_to_draw(machine):
        home = HOMES[symbol.partition("_")[0]]
        expected = policies.versioned_symbols_policy({home: {symbol}}).name
        assert platform_tag([NativeFile(machine, (home,), {home: (symbol,)})]) == expected, symbol


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
    tag = choose_wheel_tag([library])
    assert tag.startswith("py3-none-manylinux_2_")
    assert tag.endswith(f"_{platform.machine()}")


def test_code_for_a_machine_without_wheels_gives_the_platform_of_the_interpreter(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int f(void) { return 1; }\n")
    library = tmp_path / "a.o"
    subprocess.run(["gcc", "-c", str(source), "-o", str(library)], check=True)
    code = bytearray(library.read_bytes())
    code[18:20] = (224).to_bytes(2, "little")  # `e_machine`: a graphics processor's
    library.write_bytes(code)
    assert read_native_file(library) is None
    assert choose_wheel_tag([library]) == f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def test_no_native_file_is_a_wheel_for_every_platform() -> None:
    assert choose_wheel_tag([]) == "py3-none-any"


def test_a_file_of_another_format_gives_the_platform_of_the_interpreter(tmp_path: Path) -> None:
    library = tmp_path / "a.dylib"
    library.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(100))
    assert choose_wheel_tag([library]) == f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


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
