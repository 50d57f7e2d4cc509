"""The table of the C functions between compiled libraries and libtorch, and the range of versions that follows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch_shim import HEADERS, OTHER_DEVICES, Release, digest_of_signature, make_table, signatures, written

from hatch_lower.backends.aoti.versions import TABLE, LibrarySymbols, Shim, read_shim, read_symbols, torch_requirement

pytestmark = pytest.mark.torch

SHIM = Shim(
    "x86_64",
    ["2.13", "2.14", "2.15"],
    functions={
        "kept": [("2.13", "a")],
        "new": [("2.14", "a")],
        "changed": [("2.13", "a"), ("2.15", "b")],
        "gone": [("2.13", "a"), ("2.14", None)],
        "back": [("2.13", "a"), ("2.14", "b"), ("2.15", "a")],
    },
    interface={"Run": [("2.13", "r")], "Swap": [("2.13", "s"), ("2.15", "t")], "Fold": [("2.15", "f")]},
    looked_up={"2.13": ["Run"], "2.14": ["Run"], "2.15": ["Fold", "Run"]},
)


def library(*imported: str, exported: tuple[str, ...] = ("Run", "Fold")) -> LibrarySymbols:
    return LibrarySymbols([], set(imported), set(imported), set(exported))


# What headers say.


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("AOTI_TORCH_EXPORT int32_t f();", "int32_t()"),
        ("AOTI_TORCH_EXPORT AOTITorchError f(void);", "int32_t()"),
        (
            "AOTI_TORCH_EXPORT Error* f(const char * s, unsigned int , unsigned n);",
            "E * *(const char *, unsigned int, unsigned)",
        ),
        ("AOTI_TORCH_EXPORT void f(\n  Handle a, // first, of two\n  Handle* /* out */ b);", "void(H *, H * *)"),
        ("SLEEF_IMPORT SLEEF_CONST __m256 Sleef_expf8_u10(__m256);", "__m256(__m256)"),
        ("AOTI_API void f(Pair* p, c10::complex<float>* c);", "void(struct { int a ; } *, c10::complex < float > *)"),
        ("AOTI_API void f(void (*deleter)(void*, int), int x = 1);", "void(void ( * deleter ) ( void * , int ), int)"),
    ],
)
def test_a_signature_has_types_and_no_names(declared: str, expected: str) -> None:
    types = "using AOTITorchError = int32_t; using Handle = H*; typedef E* Error; struct Pair { int a; };"
    (signature,) = signatures([types, declared]).values()
    assert signature == expected


def test_a_changed_structure_is_another_signature() -> None:
    first, second = (
        signatures([f"struct Pair {{ {field}; }}; AOTI_API void f(Pair*);"]) for field in ("int a", "long a")
    )
    assert first != second


def release(version: str, **functions: str) -> Release:
    return Release(version, f"torch-{version}.whl", f"sha256 of {version}", functions, {"Run": "r"}, frozenset(["Run"]))


def test_a_table_has_the_changes_from_one_minor_version_to_the_next() -> None:
    table = make_table([release("2.10.0", f="b", g="a"), release("2.9.1", f="a", g="a"), release("2.11.0", f="b")])
    assert table["versions"] == ["2.9", "2.10", "2.11"]
    assert table["functions"] == {
        "f": [("2.9", digest_of_signature("a")), ("2.10", digest_of_signature("b"))],
        "g": [("2.9", digest_of_signature("a")), ("2.11", None)],
    }
    assert table["looked up"] == {"2.9": ["Run"], "2.10": ["Run"], "2.11": ["Run"]}
    assert table["wheels"]["torch-2.9.1.whl"] == "sha256 of 2.9.1"


def test_what_differs_between_patches_is_not_known() -> None:
    table = make_table([release("2.14.0", f="a"), release("2.14.1", f="b"), release("2.15.0", f="b")])
    assert table["functions"] == {"f": [("2.15", digest_of_signature("b"))]}


def test_versions_without_a_wheel_stay_as_they_are() -> None:
    releases = [release("2.10.0", f="b", g="a"), release("2.9.1", f="a", g="a"), release("2.11.0", f="b")]
    table = make_table(releases)
    assert make_table(releases[:1], table) == table
    assert make_table([release("2.10.1", f="a", g="a")], table)["functions"]["f"] == [
        ("2.9", digest_of_signature("a")),
        ("2.11", digest_of_signature("b")),
    ]
    assert make_table(releases[1:], make_table(releases[:1])) == table


# The table that is checked in.


def test_the_table_is_written_as_the_tool_writes_it() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert text == written(json.loads(text))


def test_the_table_says_what_the_headers_of_the_installed_torch_say() -> None:
    root = Path(torch.__file__).parent.parent
    paths = sorted(path for path in root.glob("torch/include/**/*.h"))
    named = [(path.relative_to(root).as_posix(), path) for path in paths]
    declared = signatures(
        [path.read_text() for name, path in named if HEADERS.fullmatch(name) and not OTHER_DEVICES.search(name)]
    )
    shim = read_shim()
    version = ".".join(torch.__version__.split(".")[:2])
    assert version in shim.versions
    for name, signature in declared.items():
        table = shim.interface if name.startswith("AOTInductor") else shim.functions
        known = shim.signature(table, name, version)
        # libtorch lacks what its headers declare for other devices
        assert known == digest_of_signature(signature) or (known is None and table is shim.functions), name
    known = {name for name in shim.functions if shim.signature(shim.functions, name, version)}
    assert known <= declared.keys()
    assert len(shim.functions) > 300


def test_the_table_has_what_inductor_calls() -> None:
    shim = read_shim()
    assert shim.versions[:5] == ["2.11", "2.12", "2.13", "2.14", "2.15"]
    called = {"aoti_torch_cpu_addmm_out", "aoti_torch_cpu_convolution", "aoti_torch_clone", "Sleef_expf8_u10"}
    assert called <= set(shim.functions)
    assert [since for since, _ in shim.functions["torch_has_storage"]] == ["2.14"]
    assert [since for since, _ in shim.interface["AOTInductorModelContainerDidCallLoadConstants"]] == ["2.14"]


# The versions that follow.


@pytest.mark.parametrize(
    ("built", "imported", "expected"),
    [
        ("2.13", [], ["2.13", "2.14", "2.15"]),
        ("2.14", ["kept"], ["2.13", "2.14", "2.15"]),
        ("2.15", ["kept"], ["2.13", "2.14", "2.15"]),
        ("2.15", ["kept", "new"], ["2.14", "2.15"]),
        ("2.13", ["changed"], ["2.13", "2.14"]),
        ("2.15", ["changed"], ["2.15"]),
        ("2.13", ["gone"], ["2.13"]),
        ("2.13", ["back"], ["2.13"]),
        ("2.13", ["kept", "_ZN3c106detail14torchCheckFailEv"], ["2.13"]),
        ("2.16", ["kept"], ["2.16"]),
    ],
)
def test_versions_are_those_around_the_builder_with_the_same_functions(
    built: str, imported: list[str], expected: list[str]
) -> None:
    assert SHIM.versions_alike(built, library(*imported)) == expected


def test_a_version_that_looks_up_what_a_library_lacks_is_none_for_it() -> None:
    assert SHIM.versions_alike("2.13", library("kept", exported=("Run",))) == ["2.13", "2.14"]
    assert SHIM.versions_alike("2.13", library("kept", exported=())) == ["2.13"]


def test_a_version_that_calls_a_library_in_another_way_is_none_for_it() -> None:
    shim = Shim("x86_64", SHIM.versions, SHIM.functions, SHIM.interface, {**SHIM.looked_up, "2.15": ["Run", "Swap"]})
    assert shim.versions_alike("2.14", library(exported=("Run", "Swap"))) == ["2.13", "2.14"]


EVERYTHING = tuple({name for names in read_shim().looked_up.values() for name in names})


@pytest.mark.parametrize(
    ("version", "imported", "expected"),
    [
        ("2.13.0+cpu", ["aoti_torch_clone"], "torch>=2.11,<2.16"),
        ("2.14.1+cu130", ["aoti_torch_clone", "torch_has_storage"], "torch>=2.14,<2.16"),
        ("2.11.0+cu130", ["aoti_torch_cpu_mm_out"], "torch>=2.11,<2.16"),
        ("2.12.1", ["aoti_torch_cpu__int_mm_out"], "torch>=2.12,<2.16"),
        ("2.11.0", ["aoti_torch_cpu__int_mm_out"], "torch==2.11.*"),
        ("2.13.1", ["aoti_torch_clone", "aoti_torch_of_somebody"], "torch==2.13.*"),
        ("2.99.0", ["aoti_torch_clone"], "torch==2.99.*"),
        ("2.13.0a0+git0123abc", ["aoti_torch_clone"], "torch==2.13.*"),
        ("2.13.0rc4", ["aoti_torch_clone"], "torch==2.13.*"),
    ],
)
def test_a_library_requires_the_versions_that_it_can_run_with(
    version: str, imported: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert torch_requirement(version, library(*imported, exported=EVERYTHING)) == expected


def test_another_machine_than_the_tables_has_the_builders_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert torch_requirement("2.13.0", library(exported=EVERYTHING)) == "torch==2.13.*"


def test_what_the_system_has_is_not_imported_from_torch(tmp_path: Path) -> None:
    source = 'extern "C" { int torchs(int); int puts(const char*); int ours() { return torchs(puts("")); } }'
    made: Mapping[str, Path] = {name: tmp_path / name for name in ("source.cpp", "library.so")}
    made["source.cpp"].write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", made["library.so"], made["source.cpp"]], check=True)
    symbols = read_symbols(made["library.so"].read_bytes())
    assert symbols.imported == {"torchs"}
    assert {"puts", "torchs"} <= symbols.undefined
    assert "ours" in symbols.exported
    assert "libc.so.6" in symbols.libraries
