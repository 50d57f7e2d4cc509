"""Two native libraries are compared: functions, texts, linked libraries, compiler, identifiers."""

from __future__ import annotations

import io
import json
import shutil
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from support.venv import run
from support.wheels import make_wheel

from hatch_lower.build.diff.difference import Difference
from hatch_lower.build.diff.wheels import compare_wheels

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

MEMBER = "tiny/native.so"
SOURCE = """
extern "C" int first(int x) { return x + 1; }
extern "C" int second(int x) { return x * 3; }
extern "C" const char *place() { return PLACE; }
"""
FLAGS = ("-shared", "-fPIC", "-O1", "-Wl,--build-id=none", '-DPLACE="nowhere"')


def library(folder: Path, source: str = SOURCE, *flags: str) -> bytes:
    """Compile C++ text into a shared library and return its bytes."""
    folder.mkdir(parents=True)
    (folder / "code.cpp").write_text(source)
    run([str(COMPILER), "code.cpp", "-o", "code.so", *FLAGS, *flags], cwd=folder).check()
    return (folder / "code.so").read_bytes()


def compare(tmp_path: Path, first: bytes, second: bytes) -> dict[str, Difference]:
    """Return the differences of two wheels with these libraries by their place."""
    one = make_wheel(tmp_path / "one" / "tiny-1.0-py3-none-any.whl", {MEMBER: first})
    other = make_wheel(tmp_path / "other" / "tiny-1.0-py3-none-any.whl", {MEMBER: second})
    found = compare_wheels(one, other)
    assert {each.member for each in found} <= {MEMBER}
    return {each.place: each for each in found}


def test_the_same_source_compiles_to_the_same_bytes(tmp_path: Path) -> None:
    """Without which the other tests here would show nothing."""
    assert compare(tmp_path, library(tmp_path / "a"), library(tmp_path / "b")) == {}


def test_one_function_that_computes_something_else_is_named(tmp_path: Path) -> None:
    other = library(tmp_path / "b", SOURCE.replace("x + 1", "x + 2"))
    found = compare(tmp_path, library(tmp_path / "a"), other)
    assert set(found) == {"function first", "sections"}
    assert found["function first"].first.startswith("at +")
    assert "the compiler made other code" in found["function first"].reason
    assert found["sections"].lines == (f".text: 1 of {text_size(found['sections'])} bytes differ",)


def text_size(sections: Difference) -> int:
    return int(sections.lines[0].split(" of ")[1].split()[0])


def test_functions_that_only_moved_are_not_named(tmp_path: Path) -> None:
    """`second` and `place` lie behind `first`, which is longer now, and refer to what moved."""
    other = library(tmp_path / "b", SOURCE.replace("x + 1", "x / 7 + x / 11 + x / 13 + x % 17"))
    found = compare(tmp_path, library(tmp_path / "a"), other)
    assert [place for place in found if place.startswith("function")] == ["function first"]
    assert found["function first"].first.endswith(" bytes")


def test_a_function_that_only_one_library_has(tmp_path: Path) -> None:
    other = library(tmp_path / "b", SOURCE + 'extern "C" int third(int x) { return x; }')
    found = compare(tmp_path, library(tmp_path / "a"), other)
    assert found["function third"].first == "(not there)"


def test_stripped_code_is_compared_by_its_sections(tmp_path: Path) -> None:
    hidden = ("-s", "-fvisibility=hidden")
    other = library(tmp_path / "b", SOURCE.replace("x + 1", "x + 2"), *hidden)
    found = compare(tmp_path, library(tmp_path / "a", SOURCE, *hidden), other)
    assert set(found) == {"sections"}
    assert "the compiler made other code" in found["sections"].reason


def test_the_path_of_a_build_folder_is_shown(tmp_path: Path) -> None:
    one = library(tmp_path / "a", SOURCE, "-UPLACE", '-DPLACE="/nowhere/ada/tiny/code.cpp"')
    other = library(tmp_path / "b", SOURCE, "-UPLACE", '-DPLACE="/srv/build/x/code.cpp"')
    found = compare(tmp_path, one, other)
    text = found["text in .rodata"]
    assert (text.first, text.second) == ("/nowhere/ada/tiny/code.cpp", "/srv/build/x/code.cpp")
    assert "the path of a folder" in text.reason


def test_a_time_stamp_in_code_is_shown(tmp_path: Path) -> None:
    one = library(tmp_path / "a", SOURCE, "-UPLACE", '-DPLACE="Jan  2 2026 10:11:12"')
    other = library(tmp_path / "b", SOURCE, "-UPLACE", '-DPLACE="Jan  2 2026 10:11:13"')
    assert "a time stamp" in compare(tmp_path, one, other)["text in .rodata"].reason


@pytest.mark.parametrize(
    ("flag", "place", "second", "reason"),
    [
        ("-fno-ident", "compiler (.comment)", "(not there)", "another compiler"),
        ("-Wl,-rpath,/opt/libraries", "dynamic section, runpath", "/opt/libraries", "other code or flags"),
        ("-Wl,-soname,libtiny.so", "dynamic section, soname", "libtiny.so", "other code or flags"),
        ("-Wl,--no-as-needed,-lm", "dynamic section, needed", "libm", "other libraries"),
        ("-Wl,--build-id=0x12345678", "sections", "bytes", ""),
    ],
)
def test_what_compiler_and_linker_write(flag: str, place: str, second: str, reason: str, tmp_path: Path) -> None:
    flags = ("-Wl,--enable-new-dtags", "-nostartfiles")
    found = compare(tmp_path, library(tmp_path / "a", SOURCE, *flags), library(tmp_path / "b", SOURCE, *flags, flag))
    assert second in found[place].second
    assert reason in found[place].reason


def test_an_identifier_of_the_linker_alone(tmp_path: Path) -> None:
    sides = [library(tmp_path / name, SOURCE, f"-Wl,--build-id=0x{name * 8}") for name in ("1", "2")]
    found = compare(tmp_path, sides[0], sides[1])
    assert set(found) == {"sections"}
    assert "the linker's identifier alone" in found["sections"].reason


def test_a_damaged_library_is_compared_as_bytes(tmp_path: Path) -> None:
    whole = library(tmp_path / "a")
    damaged = bytearray(whole)
    damaged[0x28:0x30] = b"\xff" * 8  # where its sections are
    assert set(compare(tmp_path, whole, bytes(damaged))) == {"byte 40"}


@pytest.mark.parametrize("what", ["sections", "functions"])
def test_a_library_of_overlapping_parts_is_compared_as_bytes(tmp_path: Path, what: str) -> None:
    """Each part of it would be copied: a file of 1 MB could take all memory."""
    whole = library(tmp_path / "a")
    hostile = bytearray(whole)
    file = ELFFile(io.BytesIO(whole))
    if what == "sections":
        for index in range(1, file.num_sections()):  # offset and size
            place = file["e_shoff"] + index * file["e_shentsize"] + 0x18
            hostile[place : place + 16] = struct.pack("<QQ", 0, len(whole))
    else:
        table = file.get_section_by_name(".symtab")
        for index in range(table.num_symbols()):
            place = table["sh_offset"] + index * table["sh_entsize"]
            hostile[place + 4] = 2  # a function
            hostile[place + 6 : place + 8] = struct.pack("<H", 1)
            hostile[place + 16 : place + 24] = struct.pack("<Q", len(whole))
    (place,) = compare(tmp_path, whole, bytes(hostile))
    assert place.startswith("byte ")


def test_code_for_another_instruction_set_has_that_as_its_reason(tmp_path: Path) -> None:
    wheels = []
    for name, source in (("x86-64-v3", SOURCE), ("x86-64-v4", SOURCE.replace("x + 1", "x + 2"))):
        manifest = json.dumps({"target": {"isa": name}})
        files = {MEMBER: library(tmp_path / name, source), "tiny/_lowered/manifest.json": manifest}
        wheels.append(make_wheel(tmp_path / f"of-{name}" / "tiny-1.0-py3-none-any.whl", files))
    reasons = {each.place: each.reason for each in compare_wheels(*wheels)}
    assert reasons["/target/isa"] == reasons["function first"]
    assert "another instruction set" in reasons["function first"]


def test_libraries_that_differ_throughout_name_some_functions_and_count_the_rest(tmp_path: Path) -> None:
    sides = [
        library(
            tmp_path / str(by), "".join(f'extern "C" int f{at}(int x) {{ return x + {at + by}; }}' for at in range(20))
        )
        for by in (1, 5)
    ]
    found = compare(tmp_path, sides[0], sides[1])
    assert sum(place.startswith("function f") for place in found) == 12
    assert found["functions"].lines == ("8 more differ",)
