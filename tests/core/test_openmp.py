"""One OpenMP library in a process: the one that torch brought, whatever else lies about on the system."""

from __future__ import annotations

import ctypes.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from elftools.elf.elffile import ELFFile

from hatch_lower.backends.aoti.compile import check_openmp
from hatch_lower.backends.aoti.openmp import foreign_openmp, is_openmp, missing_openmp
from hatch_lower.backends.aoti.run import AotiDelegate
from hatch_lower.backends.aoti.versions import read_symbols
from hatch_lower.errors import BackendError, ProgramError
from hatch_lower.runtime.delegates import DelegateBlob

pytestmark = pytest.mark.torch

PARALLEL = """
#include <omp.h>
extern "C" int team(void) {
    int found = 0;
    #pragma omp parallel num_threads(2)
    #pragma omp single
    found = omp_get_num_threads();
    return found;
}
"""
OWN_OPENMP = 'extern "C" int omp_get_max_threads(void) { return 99; }\n'
FACTS = {"constants": 0, "bound": [], "inputs": 1, "passed": [0], "outputs": [0]}


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    """Return a shared library that bears its file's name."""
    code, library = folder / f"{name}.cpp", folder / name
    code.write_text(source)
    command = ["g++", "-shared", "-fPIC", str(code), *flags, f"-Wl,-soname,{name}", "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def in_a_fresh_process(script: str, *arguments: str | Path) -> Any:
    """Return the JSON that a script prints with `mapped()`, the OpenMP libraries in its memory, at hand."""
    head = """
import ctypes, json, sys
from hatch_lower.backends.aoti.openmp import OPENMP_NAME, foreign_openmp
def mapped():
    paths = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    return sorted(path for path in paths if OPENMP_NAME.match(path.rpartition("/")[2]))
"""
    command = [sys.executable, "-c", head + script, *map(str, arguments)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def torchs_openmp() -> str:
    """Return the path of the OpenMP library that torch brings."""
    return str(Path(torch.__file__).parent / "lib" / "libgomp.so.1")


OPENED = """
import torch
before = mapped()
foreign = foreign_openmp(["libgomp.so.1"])
team = ctypes.CDLL(sys.argv[1]).team()
print(json.dumps([before, foreign, team, mapped()]))
"""


def test_a_compiled_library_runs_on_torchs_openmp_and_not_on_the_systems(tmp_path: Path) -> None:
    library = compiled(tmp_path, "partition.so", PARALLEL, "-fopenmp")
    assert check_openmp(read_symbols(library.read_bytes())) == ["libgomp.so.1"]
    assert ctypes.util.find_library("gomp") == "libgomp.so.1", "the system has one of its own"
    own = [torchs_openmp()]
    assert in_a_fresh_process(OPENED, library) == [own, "", 2, own]


def test_a_compiled_library_and_torch_share_what_was_loaded_before_them(tmp_path: Path) -> None:
    library = compiled(tmp_path, "partition.so", PARALLEL, "-fopenmp")
    before, foreign, team, after = in_a_fresh_process('ctypes.CDLL("libgomp.so.1")\n' + OPENED, library)
    assert (foreign, team) == ("", 2)
    assert len(before) == 1
    assert before != [torchs_openmp()]
    assert after == before


SECOND = """
import torch
from pathlib import Path
from hatch_lower.backends.aoti.run import AotiDelegate
from hatch_lower.backends.aoti.versions import read_symbols
from hatch_lower.errors import ProgramError
from hatch_lower.runtime.delegates import DelegateBlob
library, other, facts = sys.argv[1:]
if other:
    ctypes.CDLL(other)
try:
    AotiDelegate.load(DelegateBlob(Path(library), json.loads(facts)), [])
except ProgramError as error:
    said = str(error)
print(json.dumps([said, mapped(), library in open("/proc/self/maps").read()]))
"""


@pytest.mark.parametrize("loaded", [False, True])
def test_a_second_openmp_library_is_refused_before_it_is_in_the_process(tmp_path: Path, loaded: bool) -> None:
    other = compiled(tmp_path, "libomp.so.5", OWN_OPENMP)
    library = compiled(tmp_path, "partition.so", PARALLEL.replace("#pragma", "//"), "-Wl,--no-as-needed", str(other))
    facts = {**FACTS, "openmp": ["libomp.so.5"]}
    said, mapped, opened = in_a_fresh_process(SECOND, library, other if loaded else "", json.dumps(facts))
    there = f"`libomp.so.5` ({other})" if loaded else "`libomp.so.5`"
    assert said == (
        "a compiled partition would load a second OpenMP library into the process\n"
        f"  where: {library}\n"
        f"  found: it needs {there}, and torch runs on {torchs_openmp()}\n"
        "  to do: install torch from the source of the wheel's builder, or load a recipe without `aoti`"
    )
    assert mapped == sorted([torchs_openmp(), *([str(other)] if loaded else [])])
    assert not opened


def test_another_torch_than_this_one(tmp_path: Path) -> None:
    """Of a torch that stands on another OpenMP library, and of one that has none, with libraries in torch's place."""
    openmp = compiled(tmp_path, "libiomp5.so", OWN_OPENMP)
    linked = compiled(tmp_path, "libwith.so", "extern int omp_get_max_threads();", "-Wl,--no-as-needed", str(openmp))
    plain = compiled(tmp_path, "libwithout.so", "int nothing;", "-Wl,--as-needed")
    script = """
for library in sys.argv[1:4]:
    ctypes.CDLL(library)
print(json.dumps([
    foreign_openmp(["libgomp.so.1"], "libwith.so"),
    foreign_openmp(["libiomp5.so"], "libwith.so"),
    foreign_openmp(["libgomp.so.1"], "libwithout.so"),
    foreign_openmp([], "libwith.so"),
]))
"""
    needs = f"it needs `libgomp.so.1`, and torch runs on {openmp}"
    assert in_a_fresh_process(script, openmp, linked, plain) == [needs, "", "", ""]


def test_this_process_has_torchs() -> None:
    assert missing_openmp(["GOMP_parallel", "omp_get_max_threads"]) == ""
    assert foreign_openmp(["libgomp.so.1"]) == ""
    assert foreign_openmp(["libgomp.so.1", "libomp.so.5"]).startswith("it needs `libomp.so.5`, and torch runs on /")


@pytest.mark.parametrize(
    ("source", "linked", "found"),
    [
        ("", "libomp.so.5", "it needs `libomp.so.5`, and torch runs on {torchs}"),
        ("LLVM", "libgomp.so.1", "it calls __kmpc_fork_call, which {torchs} lacks"),
        ("LLVM", "libc.so.6", "it calls __kmpc_fork_call, which {torchs} lacks"),
    ],
)
def test_a_compiler_with_another_openmp_library_fails_the_build(
    tmp_path: Path, source: str, linked: str, found: str
) -> None:
    calls = 'extern "C" int __kmpc_fork_call(); int f() { return __kmpc_fork_call(); }' if source else "int nothing;"
    other = compiled(tmp_path, linked, "int other;") if linked != "libc.so.6" else "-lc"
    library = compiled(tmp_path, "partition.so", calls, "-Wl,--no-as-needed", str(other))
    with pytest.raises(BackendError) as caught:
        check_openmp(read_symbols(library.read_bytes()))
    assert str(caught.value) == (
        "the C++ compiler makes code for another OpenMP library than torch's, and a process must not have two\n"
        f"  found: {found.format(torchs=torchs_openmp())}\n"
        "  to do: set CXX to a compiler whose OpenMP library is torch's: for libgomp, `g++`"
    )


@pytest.mark.parametrize("name", ["libgomp.so.1", "libgomp-e985bcbb.so.1.0.0", "libiomp5.so", "libomp.so.5"])
def test_names_of_openmp_libraries(name: str) -> None:
    assert is_openmp(name)


@pytest.mark.parametrize("name", ["libc.so.6", "libgomp/../a.so", "/tmp/libgomp.so.1", "libgomp.so\0", "", 1, None])
def test_other_names(name: object) -> None:
    assert not is_openmp(name)


def test_torchs_own_libraries_agree_about_the_name() -> None:
    """What g++ links is what torch loads: else every library that is compiled here would be refused."""
    with (Path(torch.__file__).parent / "lib" / "libtorch_cpu.so").open("rb") as file:
        dynamic: Any = ELFFile(file).get_section_by_name(".dynamic")
        assert "libgomp.so.1" in {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}


def test_a_library_for_a_newer_system_says_so(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.write_text("GLIBC_9.9 { global: newer; };\n")
    newer = compiled(
        tmp_path, "libm.so.6", 'extern "C" int newer(void) { return 1; }', f"-Wl,--version-script={versions}"
    )
    source = 'extern "C" int newer(void); extern "C" int f(void) { return newer(); }'
    library = compiled(tmp_path, "partition.so", source, str(newer))
    with pytest.raises(ProgramError) as caught:
        AotiDelegate.load(DelegateBlob(library, {**FACTS, "openmp": []}), [])
    assert caught.value.what == "a compiled partition cannot be loaded"
    assert caught.value.where == str(library)
    assert "version `GLIBC_9.9' not found" in caught.value.found
    assert caught.value.hint == (
        "this system is older than the wheel's tag allows: build the wheel on a system as old as this, or load a "
        "recipe without `aoti`"
    )
